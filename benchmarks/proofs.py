"""Normalisers that are proved: all classes bounded together, and class by class, in turns in one run.

    python benchmarks/proofs.py LAYER HIDDEN results/proofs.json

The same plan twice: as compiled, and without what it knows of the errors of all classes together (``plan.Term.together``). Rows
and bytes of a query, and its time in a loop, alone and eight at once: medians, and means too, since a few queries cost most.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import headlong as hl
from headlong import __version__
from headlong.bench import measure
from headlong.engines.base import Engine
from headlong.store import open_file

CALIBRATION, K, CALLS, UNCOUNTED = 4096, 10, {1: 80, 8: 20}, 3
ASKED = list(itertools.product((False, True), (0.2, 0.05, 0.01)))


def one_by_one(engine: Engine) -> Engine:
    """The same plan, which knows of each class alone."""
    first, *deeper = engine.plan.levels
    terms = tuple(term._replace(together=0.0) for term in first.terms)
    plan = engine.plan._replace(levels=(first._replace(terms=terms), *deeper))
    return Engine(engine.layer, engine.method, plan, engine.norms, engine.promise, threads=engine.threads)


def in_turns(engines: dict[str, Engine], queries: Any, batch: int) -> dict[str, Any]:
    """Microseconds, rows and bytes of a query of each engine."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    costs: dict[str, list[Any]] = {name: [] for name in engines}
    for turn in range(CALLS[batch] + UNCOUNTED):
        rows = np.ascontiguousarray(queries[turn * batch : (turn + 1) * batch])
        for name, engine in engines.items():
            start = time.perf_counter()
            found = engine.topk(rows, K)
            if turn >= UNCOUNTED:
                times[name].append(1e6 * (time.perf_counter() - start) / batch)
                costs[name].append((found.cost.rows.mean(), found.cost.bytes.mean(), found.cost.dense.mean()))
    return {
        name: {
            "median_us": float(np.median(times[name])),
            "mean_us": float(np.mean(times[name])),
            **dict(zip(("rows", "bytes", "dense"), map(float, np.mean(costs[name], axis=0)), strict=True)),
        }
        for name in engines
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layer")
    parser.add_argument("hidden")
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    layer = hl.Layer.load(options.layer, weight="weight", bias="bias")
    file = open_file(options.hidden)
    calibration, queries = file.read("train_hidden")[:CALIBRATION], file.read("valid_hidden").astype(np.float32)
    rows = []
    for calibrated, eps in ASKED:
        engine = hl.compile(
            layer, "cascade", eps=eps, delta=0.0, calibration=calibration if calibrated else None, threads=options.threads
        )
        assert isinstance(engine, Engine)
        engines = {"together": engine, "one by one": one_by_one(engine)}
        for batch in CALLS:
            row = {"calibrated": calibrated, "eps": eps, "batch": batch, **in_turns(engines, queries, batch)}
            rows.append(row)
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
    about = {"version": __version__, "environment": measure.environment(options.threads), "k": K}
    options.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
