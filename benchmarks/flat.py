"""What a preview costs where it cannot help: flat layers, on which every class is a candidate.

    python benchmarks/flat.py --threads 2 --json results/flat.json

    over = median over rounds of  (seconds of a query by the cascade) / (seconds of the same query by ``full``)

Layers of six kinds: isotropic rows so short that all logits are within a hundredth of a nat, one row with a little noise,
one row over and over, a few rows over and over, zeros, and isotropic rows at their usual length (not flat, for comparison).
The two engines have turns of the same length in every round. ``full`` reads the dense rows, too, and finishes ties in float64.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import headlong as hl
from headlong import native
from headlong.bench import measure
from headlong.engines.base import Engine

KINDS: dict[str, Callable[[np.random.Generator, int, int], Any]] = {
    "isotropic, short": lambda rng, vocab, dim: 1e-3 / dim**0.5 * rng.standard_normal((vocab, dim), np.float32),
    "one row and noise": lambda rng, vocab, dim: (
        rng.standard_normal((1, dim), np.float32) + 1e-3 * rng.standard_normal((vocab, dim), np.float32)
    ),
    "one row": lambda rng, vocab, dim: np.tile(rng.standard_normal((1, dim), np.float32), (vocab, 1)),
    "seven rows": lambda rng, vocab, dim: rng.standard_normal((7, dim), np.float32)[rng.integers(0, 7, vocab)],
    "zeros": lambda rng, vocab, dim: np.zeros((vocab, dim), np.float32),
    "isotropic": lambda rng, vocab, dim: rng.standard_normal((vocab, dim), np.float32) / dim**0.5,
}
SIZES = ((10_000, 64), (33_278, 512), (20_000, 2_048), (300_000, 128))
BATCHES = (1, 8, 64)
TURN, SETTLE = 0.02, 2
"""Seconds of a turn, and its first calls that do not count."""


def turn(engine: Engine, hidden: Any, **asked: Any) -> float:
    """Median seconds of a call, over a turn."""
    taken: list[float] = []
    until = time.perf_counter() + TURN
    while len(taken) < SETTLE + 3 or time.perf_counter() < until:
        start = time.perf_counter()
        engine.topk(hidden, 10, **asked)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[SETTLE:])


def compare(kind: str, vocab: int, dim: int, dtype: str, threads: int, rounds: int) -> Iterator[dict[str, Any]]:
    """One entry for each batch size."""
    rng = np.random.default_rng([vocab, dim])
    layer = hl.Layer(KINDS[kind](rng, vocab, dim).astype(dtype))
    hidden = rng.standard_normal((64, dim), np.float32)
    plain = hl.compile(layer, "full", threads=threads)
    fast = hl.compile(layer, "cascade", eps=0.2, delta=0.0, threads=threads)
    for batch in BATCHES:
        rows = np.ascontiguousarray(hidden[:batch])
        pairs = [(turn(plain, rows, eps=0.2), turn(fast, rows)) for _ in range(rounds)]
        yield {
            "layer": {"kind": kind, "vocab": vocab, "dim": dim, "dtype": dtype},
            "batch": batch,
            "over": round(statistics.median(cascade / full for full, cascade in pairs), 4),
            "full_seconds": round(statistics.median(full for full, _ in pairs), 7),
            "cascade_seconds": round(statistics.median(cascade for _, cascade in pairs), 7),
            "dense": int(fast.topk(rows, 10).cost.dense.sum()),
            "rounds": [[round(full, 7), round(cascade, 7)] for full, cascade in pairs],
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtype", default="float16", choices=("float32", "float16"))
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="only the first of them")
    parser.add_argument("--json", help="the record")
    options = parser.parse_args()
    runs = []
    for kind in options.kind or KINDS:
        for vocab, dim in SIZES[: options.sizes]:
            for run in compare(kind, vocab, dim, options.dtype, options.threads, options.rounds):
                runs.append(run)
                full, cascade = run["full_seconds"] * 1e6, run["cascade_seconds"] * 1e6
                sys.stdout.write(
                    f"{kind}, {vocab} x {dim}, batch {run['batch']}: full {full:.0f} us, cascade {cascade:.0f} us, "
                    f"{run['over'] - 1:+.1%}, {run['dense']} dense\n"
                )
    if options.json:
        measure.write_run(
            options.json, {"environment": measure.environment(options.threads, kernel=native.isa()), "runs": runs}
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
