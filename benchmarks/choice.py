"""Whether "auto" takes the fastest of our own ways to keep a promise: layer by layer, promise by promise, in a loop and cold.

    python benchmarks/choice.py results/choice.json                      layers made up by headlong.bench.synthetic
    python benchmarks/choice.py results/choice.json --layer LAYER --hidden HIDDEN

Goes on with the layers that the file does not hold yet. Each case asks the same queries of every engine in turns: "auto" with
and without calibration vectors, and ``full``, ``cascade`` and calibrated ``cascade`` as a user may name them. ``over`` is
auto's median over that of the fastest, which knows no more than auto did.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import headlong as hl
from headlong.bench import measure
from headlong.bench.synthetic import synthetic
from headlong.cli import inputs
from headlong.cli.terminal import bars

MEGABYTES, CALIBRATION, K, SEED = 96, 4096, 10, 3
SHAPES = ((10_000, 100, 0.5), (10_000, 200, 1.0), (12_000, 64, 1.0), (50_000, 256, 1.0), (262_144, 640, 1.0))
"""Classes, dimensions, and how fast the energy of hidden vectors falls off."""
PROMISES: dict[str, dict[str, Any]] = {
    "ids proved": {"eps": math.inf},
    "default promise": {},
    "eps 0.2 proved": {"eps": 0.2, "delta": 0.0},
}
BATCHES = {1: 60, 8: 16}
"""Queries at once, and in how many turns."""
OURS = ("full", "cascade")


def engines(layer: hl.Layer, vectors: np.ndarray, options: dict[str, Any], threads: int) -> dict[str, Any]:
    """By name; those that know calibration vectors end in ", calibrated"."""
    found: dict[str, Any] = {}
    for method in ("auto", *OURS):
        found[method] = hl.compile(layer, method, threads=threads, **options)
        if method != "full":
            found[f"{method}, calibrated"] = hl.compile(layer, method, calibration=vectors, threads=threads, **options)
    return found


def timed(
    field: dict[str, Any], asked: np.ndarray, batch: int, turns: int, other: np.ndarray | None, k: int = K
) -> dict[str, list[float]]:
    """The microseconds of each turn's call of each engine."""
    taken: dict[str, list[float]] = {name: [] for name in field}
    names = list(field)
    for turn in range(turns):
        rows = np.ascontiguousarray(asked[turn * batch % (len(asked) - batch + 1) :][:batch])
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if other is None:
                field[name].topk(rows, k)
            else:
                other.sum()
            start = time.perf_counter()
            field[name].topk(rows, k)
            taken[name].append(1e6 * (time.perf_counter() - start))
    return taken


def alike(one: Any, other: Any) -> bool:
    """Whether two engines read the same things in the same order."""
    plans = [(engine.name, engine.plan.dense, [level.layout for level in engine.plan.levels]) for engine in (one, other)]
    blocks = [None if engine.plan.blocks is None else engine.plan.blocks.look for engine in (one, other)]
    return plans[0] == plans[1] and blocks[0] == blocks[1]


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the turns' ratios."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def cases(name: str, layer: hl.Layer, hidden: np.ndarray, threads: int, other: np.ndarray) -> list[dict[str, Any]]:
    """A row for each promise, batch, state, and what auto knew."""
    rows = []
    for promise, options in PROMISES.items():
        field = engines(layer, hidden[:CALIBRATION], options, threads)
        for batch, turns in BATCHES.items():
            for state, between in (("a loop", None), ("cold caches", other)):
                times = timed(field, hidden[CALIBRATION:], batch, turns, between)
                for auto in ("auto", "auto, calibrated"):
                    named = [*OURS, *(["cascade, calibrated"] if auto != "auto" else [])]
                    rivals = [one for one in named if not alike(field[one], field[auto])]
                    ratios = {one: ratio(times[auto], times[one]) for one in rivals}
                    best = max(ratios, key=lambda one: ratios[one])
                    row = {"layer": name, "promise": promise, "batch": batch, "state": state, "auto": auto, "fastest": best}
                    row |= {"took": field[auto].name, "over": max(1.0, ratios[best])}
                    rows.append(row | {"median_us": {one: statistics.median(each) for one, each in times.items()}})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layer")
    parser.add_argument("--hidden")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(options.out.read_text())["rows"] if options.out.is_file() else []
    known, other = {row["layer"] for row in rows}, np.ones(MEGABYTES * 250_000, np.float32)
    with measure.pinned(options.threads), bars() as stage:

        def take(name: str, layer: hl.Layer, hidden: np.ndarray) -> None:
            rows.extend(cases(name, layer, hidden, options.threads, other))
            record = {"environment": measure.environment(options.threads), "facts": {"k": K}, "rows": rows}
            options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

        if options.layer is not None:
            name = Path(options.layer).stem
            if name not in known:
                take(name, inputs.layer(options.layer), np.asarray(inputs.hidden(options.hidden)).astype(np.float32))
            return
        for vocab, dim, power in SHAPES:
            name = f"{vocab:,} x {dim}, a = {power:g}"
            if name not in known:
                made = synthetic(vocab, dim, power, 512, SEED, stage(name))
                take(name, made.layer, np.concatenate([made.calibration[:CALIBRATION], made.hidden]))


if __name__ == "__main__":
    main()
