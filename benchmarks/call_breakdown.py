"""Where the time of one call goes, whatever it asks: in a loop, with cold caches, after a torch product on all cores.

    python benchmarks/call_breakdown.py LAYER HIDDEN results/call-breakdown.json

The native module leaves marks on the way of a call (``csrc/runtime/trace.h``): Python before it, the rotation, the query's
codes, the looks, exact rows, the normaliser, the arrays handed back. Each number is the median over calls of the time since the
mark before. Caches are cold once other weights went through them.
"""

from __future__ import annotations

import argparse
import itertools
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
IDS = np.arange(0, 10 * K, 10)[None]
Call = Callable[[Engine, Any], Any]
CALLS_OF: dict[str, Call] = {
    "topk": lambda engine, row: engine.topk(row, K),
    "lse": lambda engine, row: engine.lse(row),
    "log_prob of 10 ids": lambda engine, row: engine.log_prob(row, IDS),
    "sample": lambda engine, row: engine.sample(row, seed=7),
    "sample, top_k 50": lambda engine, row: engine.sample(row, top_k=50, seed=7),
    "sample, top_p 0.9": lambda engine, row: engine.sample(row, temperature=0.8, top_p=0.9, seed=7),
    "sample, min_p 0.05": lambda engine, row: engine.sample(row, min_p=0.05, seed=7),
}
ASKED = {
    "ids proved": ("topk", "sample, top_k 50", "sample, min_p 0.05"),
    "default promise": tuple(CALLS_OF),
}
"""What is asked under each promise; ``topk`` alone where none is named."""


def one_call(call: Call, engine: Engine, row: Any) -> tuple[float, Counter[str]]:
    """Microseconds of a call, and of each part of it."""
    module = native.loaded()
    module.trace_begin()
    start = time.perf_counter()
    call(engine, row)
    end = time.perf_counter()
    parts: Counter[str] = Counter()
    before = start
    for what, at in module.trace_end():
        parts[what] += 1e6 * (at - before)  # type: ignore[assignment]
        before = at
    parts["Python after"] += 1e6 * (end - before)  # type: ignore[assignment]
    return 1e6 * (end - start), parts


def breakdown(call: Call, engine: Engine, queries: Any, before: Callable[[], Any], loop: bool) -> dict[str, Any]:
    """Medians over calls."""
    totals, each = [], []
    for turn in range(CALLS + UNCOUNTED):
        row = np.ascontiguousarray(queries[turn : turn + 1])
        for _ in range(UNCOUNTED * loop):
            call(engine, row)
        before()
        total, parts = one_call(call, engine, row)
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
        for verb, (state, before) in itertools.product(ASKED.get(name, ("topk",)), states.items()):
            found = breakdown(CALLS_OF[verb], engine, hidden[CALIBRATION:], before, loop=state == "a loop")
            rows.append({"promise": name, "call": verb, "state": state, **found})
            parts = ", ".join(f"{part} {us:.0f}" for part, us in found["parts_us"].items())
            sys.stdout.write(f"{name}, {verb}, {state}: {found['total_us']:.0f} us: {parts}\n")
    about = {"version": __version__, "environment": measure.environment(options.threads), "megabytes between": MEGABYTES}
    record = {**about, "rows": rows}
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
