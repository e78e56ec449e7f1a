"""How often promises break on layers and vectors that the commonest generators made and turned, beside what was promised.

::

    python tests/storm/promises.py --seeds 200

Data of NumPy's ``default_rng`` and ``RandomState`` and of PyTorch with seeds 0 to 9, turned by the orthogonal factor of the
generator's first normal numbers, as rotations are made: codes at ``delta`` 0.1 and 0.01, with as many seeds of our own. Fails
where Clopper and Pearson's lower end of a rate, at 1e-6, lies above its ``delta``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / "helpers")]

import headlong as hl  # noqa: E402
from oracle import truth  # noqa: E402
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    asked, broken = parser.parse_args(), False
    for name in GENERATORS:
        for delta in (0.1, 0.01):
            failed = trials = scanned = 0
            for seed in range(10):
                layer, hidden = turned(name, seed)
                exact = truth(layer, hidden)
                best = np.argsort(-exact.logits, axis=1, kind="stable")[:, :K]
                for own in range(asked.seeds):
                    top = hl.compile(layer, "codes", bits=2, eps=EPS, delta=delta, seed=own, threads=1).topk(hidden, K)
                    failed += int(((top.ids != best).any(axis=1) | (np.abs(top.lse - exact.lse) > EPS)).sum())
                    trials += len(hidden)
                    scanned += int(top.cost.dense.sum())
            chance = tail(failed, trials, delta)
            broken |= chance < 1e-6
            said = f"{failed} of {trials} broken, chance of as many {chance:.2g}; {scanned} read in full"
            print(f"{name}, delta {delta}: {said}", flush=True)
    return int(broken)


if __name__ == "__main__":
    sys.exit(main())
