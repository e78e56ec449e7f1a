"""What an engine learns from its own queries: without vectors, adapted to its first queries, compiled with calibration vectors.

    python benchmarks/adapt.py LAYER HIDDEN results/adapt.json

Each promise is asked one query at a time, in a loop and after other weights have emptied the caches. The three engines take
turns, in every order, of some queries in a row: what all of them run stays in the caches longer than what one of them does, so
single turns would flatter those that are alike. The adapted engine has answered :data:`BEFORE` queries, which are not asked
again; the plan was swapped in while it did. ``over`` is the median over the queries of the time over the calibrated one's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any, cast

import numpy as np

import headlong as hl
from headlong.arrays import evenly
from headlong.bench import measure
from headlong.cli import inputs
from headlong.cli.terminal import bars
from headlong.engines.adapting import Adapting

MEGABYTES, BEFORE, CALIBRATION, ASKED, IN_A_ROW, K = 96, 2000, 4096, 360, 10, 10
PROMISES: dict[str, dict[str, Any]] = {
    "ids proved": {"eps": math.inf},
    "default promise": {},
    "eps 0.2 proved": {"eps": 0.2, "delta": 0.0},
}
STATES, CALIBRATED = ("a loop", "cold caches"), "calibrated"


def engines(layer: hl.Layer, hidden: np.ndarray, options: dict[str, Any], threads: int) -> dict[str, Any]:
    """The three, by name; the adapted one has answered and waited for its plan."""
    adapting = cast(Adapting, hl.compile(layer, "cascade", adapt=True, threads=threads, **options))
    for row in hidden[:BEFORE]:
        adapting.topk(row[None], K)
    adapting.wait()
    return {
        "without vectors": hl.compile(layer, "cascade", threads=threads, **options),
        f"adapted, after {BEFORE:,} queries": adapting,
        CALIBRATED: hl.compile(layer, "cascade", calibration=hidden[:CALIBRATION], threads=threads, **options),
    }


def timed(field: dict[str, Any], asked: np.ndarray, other: np.ndarray | None) -> dict[str, list[float]]:
    """Microseconds of each engine for each query, in turns."""
    taken: dict[str, list[float]] = {name: [] for name in field}
    orders = list(itertools.permutations(field))
    for turn, start in enumerate(range(0, len(asked), IN_A_ROW)):
        for name, row in itertools.product(orders[turn % len(orders)], asked[start : start + IN_A_ROW]):
            if other is None:
                field[name].topk(row[None], K)
            else:
                other.sum()
            begun = time.perf_counter()
            field[name].topk(row[None], K)
            taken[name].append(1e6 * (time.perf_counter() - begun))
    return taken


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the queries' ratios."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layer")
    parser.add_argument("hidden")
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    layer, other = inputs.layer(options.layer), np.ones(MEGABYTES * 250_000, np.float32)
    hidden = np.asarray(inputs.hidden(options.hidden)).astype(np.float32)
    asked = np.asarray(evenly(hidden[max(BEFORE, CALIBRATION) :], ASKED))
    rows: list[dict[str, Any]] = []
    with measure.pinned(options.threads), bars() as stage:
        report = stage("promises")
        for done, (promise, wanted) in enumerate(PROMISES.items()):
            report(done, len(PROMISES))
            field = engines(layer, hidden, wanted, options.threads)
            times = {state: timed(field, asked, None if state == "a loop" else other) for state in STATES}
            for name, engine in field.items():
                read = float(np.mean([engine.topk(row[None], K).cost.bytes[0] for row in asked]))
                share = read / (4.0 * layer.vocab * layer.dim)
                row: dict[str, Any] = {"promise": promise, "engine": name, "share_read": share}
                row |= {f"{state}, us": statistics.median(times[state][name]) for state in STATES}
                rows.append(row | {f"{state}, over": ratio(times[state][name], times[state][CALIBRATED]) for state in STATES})
        report(len(PROMISES), len(PROMISES))
    facts = {"layer": Path(options.layer).stem, "queries": ASKED, "calibration vectors": CALIBRATION}
    record = {"environment": measure.environment(options.threads), "facts": facts, "rows": rows}
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
