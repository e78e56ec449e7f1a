"""How near a query comes to a plain read of the bytes it takes, both measured in one run.

    python benchmarks/bandwidth.py LAYER --hidden FILE:TENSOR --threads 2 --json results/bandwidth.json

    share = median over rounds of  (bytes of the preview / seconds of a query at batch 1) / (bytes / second of a plain read)

Three queries, each a whole call: the look at all classes alone, which is what a scan can be held to; ``topk`` of ids, which
adds rows scored exactly; ``topk`` with its normaliser. In every round the plain read (of as many bytes) and each query have
one turn, and a share compares turns of the same round: a machine that others use changes its speed from one round to the
next. A layer of random rows, too large for the caches, comes second.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import headlong as hl
from headlong import native
from headlong.bench import measure
from headlong.cli import inputs
from headlong.engines.base import Engine
from headlong.layers.matrix import Layer
from headlong.plan import Plan

PAUSE, SETTLE = 0.02, 10
LARGER = 200_000
"""Classes of the second layer."""
QUERIES: dict[str, Callable[[Engine, Any], Any]] = {
    "the scan: intervals of all classes": lambda engine, row: engine.lse(row, eps=math.inf),
    "ids": lambda engine, row: engine.topk(row, 10, eps=math.inf),
    "ids and log-probabilities, eps 0.2 proved": lambda engine, row: engine.topk(row, 10, eps=0.2),
}


def preview_bytes(plan: Plan) -> int:
    """What level 0 reads for every query."""
    level = plan.levels[0]
    parts = (level.codes, level.scale, level.slack, plan.base)
    return sum(part.nbytes for part in parts if part is not None)


def one_turn(call: Callable[[Engine, Any], Any], engine: Engine, rows: Any) -> float:
    """Median seconds of one call after another, less the first few."""
    taken = []
    for row in rows:
        start = time.perf_counter()
        call(engine, row)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[SETTLE:])


def compare(layer: Layer, hidden: Any, threads: int, rounds: int, calls: int) -> list[dict[str, Any]]:
    """One entry for each kind of query, with every round in it."""
    engine = hl.compile(layer, "cascade", eps=0.2, delta=0.0, threads=threads)
    size = preview_bytes(engine.plan)
    plain: list[float] = []
    seconds: dict[str, list[float]] = {name: [] for name in QUERIES}
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        time.sleep(PAUSE)
        plain.append(native.bandwidth(size, threads, 9))
        for name, call in QUERIES.items():
            time.sleep(PAUSE)
            seconds[name].append(one_turn(call, engine, hidden[rng.integers(0, len(hidden), calls)][:, None, :]))
    facts = {"vocab": layer.vocab, "dim": layer.dim, "dtype": layer.dtype, "preview_bytes": size}
    return [{**facts, "query": name, **summary(size, plain, taken)} for name, taken in seconds.items()]


def summary(size: int, plain: list[float], taken: list[float]) -> dict[str, Any]:
    speeds = [size / one / 1e9 for one in taken]
    return {
        "share": round(statistics.median(speed / most for speed, most in zip(speeds, plain, strict=True)), 4),
        "gigabytes_per_second": round(statistics.median(speeds), 2),
        "plain_gigabytes_per_second": round(statistics.median(plain), 2),
        "median_seconds": round(statistics.median(taken), 7),
        "rounds": [[round(speed, 2), round(most, 2)] for speed, most in zip(speeds, plain, strict=True)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("layer", help="path[:tensor]")
    parser.add_argument("--hidden", required=True, help="path[:tensor]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--calls", type=int, default=90)
    parser.add_argument("--json", help="the record")
    options = parser.parse_args()
    layer = inputs.layer(options.layer)
    hidden = np.ascontiguousarray(inputs.hidden(options.hidden), np.float32)
    rng = np.random.default_rng(0)
    larger = hl.Layer(rng.standard_normal((LARGER, layer.dim), np.float32) / layer.dim**0.5)
    runs = compare(layer, hidden, options.threads, options.rounds, options.calls)
    other = rng.standard_normal((1000, layer.dim), np.float32)
    runs += compare(larger, other, options.threads, options.rounds // 2, options.calls)
    for run in runs:
        speeds = f"{run['gigabytes_per_second']} of {run['plain_gigabytes_per_second']} GB/s"
        sys.stdout.write(f"{run['vocab']} x {run['dim']}, {run['query']}: {speeds}, {run['share']:.0%}\n")
    if options.json:
        environment = measure.environment(options.threads, kernel=native.isa(), layer=Path(options.layer).stem)
        measure.write_run(options.json, {"environment": environment, "runs": runs})
    return 0


if __name__ == "__main__":
    sys.exit(main())
