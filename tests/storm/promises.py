"""How often promises break on layers and vectors that the commonest generators made and turned, beside what was promised.

::

    python tests/storm/promises.py --seeds 200
    python tests/storm/promises.py --seeds 10 --layer gemma

Data of NumPy's ``default_rng`` and ``RandomState`` and of PyTorch with seeds 0 to 9, turned by the orthogonal factor of the
generator's first normal numbers, as rotations are made: codes at ``delta`` 0.1 and 0.01, with as many seeds of our own. Fails
where Clopper and Pearson's lower end of a rate, at 1e-6, lies above its ``delta``. ``--layer``: one of a real model
(``benchmarks/common/real_layers.py``), compiled as its users do: all its vectors at the default ``delta`` and at 0, and some
vectors to a seed at 0.1 and 0.01.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests/helpers"), str(ROOT / "benchmarks")]

import headlong as hl  # noqa: E402
from oracle import logsumexp, truth  # noqa: E402
from rates import tail  # noqa: E402

CLASSES, DIM, QUERIES, K, EPS = 1500, 64, 12, 5, 0.05


def _torch(seed: int) -> Callable[[int, int], np.ndarray]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return lambda n, m: torch.randn(n, m, generator=generator, dtype=torch.float64).numpy()


def _numpy(kind: Any, seed: int) -> Callable[[int, int], np.ndarray]:
    chance = kind(seed)
    return lambda n, m: chance.standard_normal((n, m))


GENERATORS: dict[str, Callable[[int], Callable[[int, int], np.ndarray]]] = {
    "default_rng": partial(_numpy, np.random.default_rng), "RandomState": partial(_numpy, np.random.RandomState),
    "torch": _torch,
}  # fmt: skip


def turned(name: str, seed: int) -> tuple[hl.Layer, np.ndarray]:
    """Rows and vectors with most of their energy in few directions, turned by the generator's first square of numbers."""
    normal = GENERATORS[name](seed)
    orthogonal, triangle = np.linalg.qr(normal(DIM, DIM))
    turn, fall = (orthogonal * np.where(np.diag(triangle) < 0, -1.0, 1.0)).T, 1 / np.sqrt(1 + np.arange(DIM))
    rows, vectors = normal(CLASSES, DIM) * fall @ turn, normal(QUERIES, DIM) * fall @ turn
    weight = (rows / np.linalg.norm(rows, axis=1).mean()).astype(np.float32)
    return hl.Layer(weight), 9 * vectors / np.linalg.norm(vectors, axis=1).mean()


def exact(layer: hl.Layer, hidden: np.ndarray, classes: int = 4096) -> tuple[np.ndarray, np.ndarray]:
    """The best ids and the normaliser of each row, by products in float64, some classes of all rows at a time."""
    rows, ids, logits, norms = hidden.astype(np.float64), [], [], []
    for at in range(0, layer.vocab, classes):
        bias = None if layer.bias is None else layer.bias[at : at + classes]
        right = truth(hl.Layer(layer.weight[at : at + classes], bias, layer.link), rows)
        count = min(4 * K, right.logits.shape[1])
        some = np.sort(np.argpartition(-right.logits, count - 1, axis=1)[:, :count], axis=1)
        ids.append(at + some)
        logits.append(np.take_along_axis(right.logits, some, 1))
        norms.append(right.lse)
    order = np.argsort(-np.hstack(logits), axis=1, kind="stable")[:, :K]
    return np.take_along_axis(np.hstack(ids), order, 1), logsumexp(np.stack(norms, axis=1))


def told(name: str, delta: float, failed: int, trials: int, scanned: int) -> bool:
    """Prints a rate. Whether it breaks its promise."""
    chance = tail(failed, trials, delta) if delta > 0 else float(failed == 0)
    said = f"{failed} of {trials} broken, chance of as many {chance:.2g}; {scanned} read in full"
    print(f"{name}, delta {delta}: {said}", flush=True)
    return chance < 1e-6


def of_layer(name: str, seeds: int, rows: int) -> bool:
    from common.real_layers import load

    found, broken = load(name), False
    hidden = found.valid[:rows]
    best, norms = exact(found.layer, hidden)
    for calibration in (None, found.train):
        for delta in (0.1, 0.01, 1e-6, 0.0):
            some = delta >= 0.01
            failed = trials = scanned = 0
            for seed in range(seeds if some else 1):
                engine = hl.compile(found.layer, "codes", calibration=calibration, delta=delta, seed=seed)
                at = slice(seed, None, seeds) if some else slice(None)
                top = engine.topk(hidden[at], K)
                far = np.abs(top.lse - norms[at]) > engine.promise.eps
                failed += int(((top.ids != best[at]).any(axis=1) | far).sum())
                trials += len(top.ids)
                scanned += int(top.cost.dense.sum())
            broken |= told(f"{name}, {'plain' if calibration is None else 'calibrated'}", delta, failed, trials, scanned)
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--layer")
    parser.add_argument("--rows", type=int, default=4096)
    asked, broken = parser.parse_args(), False
    if asked.layer is not None:
        return int(of_layer(asked.layer, asked.seeds, asked.rows))
    for name in GENERATORS:
        for delta in (0.1, 0.01):
            failed = trials = scanned = 0
            for seed in range(10):
                layer, hidden = turned(name, seed)
                best, norms = exact(layer, hidden)
                for own in range(asked.seeds):
                    top = hl.compile(layer, "codes", bits=2, eps=EPS, delta=delta, seed=own, threads=1).topk(hidden, K)
                    failed += int(((top.ids != best).any(axis=1) | (np.abs(top.lse - norms) > EPS)).sum())
                    trials += len(hidden)
                    scanned += int(top.cost.dense.sum())
            broken |= told(name, delta, failed, trials, scanned)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
