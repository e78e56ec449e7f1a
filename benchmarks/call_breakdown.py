"""Where the time of one call goes: in a loop, after other weights have emptied the caches, after a torch product on all cores.

    python benchmarks/call_breakdown.py LAYER HIDDEN results/call-breakdown.json

The native module leaves marks on the way of a call (``csrc/runtime/trace.h``): Python before it, the rotation, the query's
codes, the looks, exact rows, the normaliser, the arrays handed back. Each number is the median over calls of the time since the
mark before.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headlong as hl
from headlong import __version__, native
from headlong.bench import measure
from headlong.engines.base import Engine
from headlong.store import open_file

MEGABYTES, CALLS, UNCOUNTED, K, CALIBRATION = 96, 60, 3, 10, 4096
PROMISES: dict[str, tuple[bool, dict[str, Any]]] = {
    "ids proved": (True, {"eps": math.inf}),
    "ids proved, without blocks": (True, {"eps": math.inf, "blocks": False}),
    "default promise": (True, {}),
    "no calibration, eps 0.2 proved": (False, {"eps": 0.2, "delta": 0.0}),
}


def one_call(engine: Engine, row: Any) -> tuple[float, Counter[str]]:
    """Microseconds of a call, and of each part of it."""
    module = native.loaded()
    module.trace_begin()
    start = time.perf_counter()
    engine.topk(row, K)
    end = time.perf_counter()
    parts: Counter[str] = Counter()
    before = start
    for what, at in module.trace_end():
        parts[what] += 1e6 * (at - before)  # type: ignore[assignment]
        before = at
    parts["Python after"] += 1e6 * (end - before)  # type: ignore[assignment]
    return 1e6 * (end - start), parts


def breakdown(engine: Engine, queries: Any, before: Callable[[], Any], loop: bool) -> dict[str, Any]:
    """Medians over calls."""
    totals, each = [], []
    for turn in range(CALLS + UNCOUNTED):
        row = np.ascontiguousarray(queries[turn : turn + 1])
        for _ in range(UNCOUNTED * loop):
            engine.topk(row, K)
        before()
        total, parts = one_call(engine, row)
        if turn >= UNCOUNTED:
            totals.append(total)
            each.append(parts)
    names = list(dict.fromkeys(name for parts in each for name in parts))
    return {
        "total_us": float(np.median(totals)),
        "parts_us": {name: float(np.median([parts[name] for parts in each])) for name in names},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layer")
    parser.add_argument("hidden")
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    layer = hl.Layer.load(options.layer, weight="weight", bias="bias")
    file = open_file(options.hidden)
    hidden = np.concatenate([file.read("train_hidden"), file.read("valid_hidden")]).astype(np.float32)
    other, square = np.ones(MEGABYTES * 250_000, np.float32), torch.ones(2048, 2048)
    states: dict[str, Callable[[], Any]] = {
        "a loop": lambda: None,
        "cold caches": other.sum,
        "after torch on all cores": lambda: torch.nn.functional.linear(square[:1], square),
    }
    rows = []
    for name, (given, promise) in PROMISES.items():
        calibration = hidden[:CALIBRATION] if given else None
        engine = hl.compile(layer, "cascade", calibration=calibration, threads=options.threads, **promise)
        assert isinstance(engine, Engine)
        for state, before in states.items():
            found = breakdown(engine, hidden[CALIBRATION:], before, loop=state == "a loop")
            rows.append({"promise": name, "state": state, **found})
            parts = ", ".join(f"{part} {us:.0f}" for part, us in found["parts_us"].items())
            sys.stdout.write(f"{name}, {state}: {found['total_us']:.0f} us: {parts}\n")
    about = {"version": __version__, "environment": measure.environment(options.threads), "megabytes between": MEGABYTES}
    record = {**about, "rows": rows}
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
