"""What compiling costs, beside two float32 products [V, D] x [D, D] and one eigendecomposition of that size.

    python benchmarks/build_costs.py LAYER --calibration HIDDEN results/build-costs.json
    python benchmarks/build_costs.py 262144,640,1 results/build-costs.json

Both in turns, the median of each; ``kept`` is what the plan keeps in memory beside the layer, as a share of the layer in
bfloat16. Rows of the layer are replaced, those of other layers kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import headlong as hl
from headlong.bench import measure, synthetic
from headlong.bench import run as bench
from headlong.cli import inputs

PROMISES: dict[str, dict[str, Any]] = {
    "default promise": {}, "default promise, no blocks": {"blocks": False}, "ids only": {"eps": np.inf},
    "ids only, no blocks": {"eps": np.inf, "blocks": False},
}  # fmt: skip


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    made = work()
    return time.perf_counter() - start, made


def yardstick(layer: hl.Layer) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    weight = np.asarray(layer.weight, np.float32)
    turn = rng.standard_normal((layer.dim, layer.dim), np.float32)
    gram = turn @ turn.T

    def work() -> None:
        for _ in range(2):
            weight @ turn
        np.linalg.eigh(gram)

    return work


def rows(layer: hl.Layer, calibration: Any, threads: int, rounds: int) -> list[dict[str, Any]]:
    base, seconds = yardstick(layer), {name: [] for name in ("base", *PROMISES)}
    memory: dict[str, int] = {}
    for _ in range(rounds):
        seconds["base"].append(timed(base)[0])
        for name, promise in PROMISES.items():
            options = {"calibration": calibration, "threads": threads, **promise}
            took, engine = timed(lambda options=options: hl.compile(layer, "cascade", **options))
            seconds[name].append(took)
            memory[name] = bench.kept(engine.plan)
    yard = statistics.median(seconds["base"])
    return [
        {"promise": name, "yardstick_s": yard, "compile_s": (took := statistics.median(seconds[name])), "ratio": took / yard,
         "kept": memory[name] / (2 * layer.vocab * layer.dim), "rounds": rounds}
        for name in PROMISES
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layer")
    parser.add_argument("--calibration")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    if asked.calibration is None:
        layer, _, calibration = synthetic.synthetic(*synthetic.shape(asked.layer), 1, 0, lambda done, total: None)
    else:
        layer, calibration = inputs.layer(asked.layer), np.asarray(inputs.hidden(asked.calibration))
    name = Path(asked.layer).stem
    with measure.pinned(asked.threads):
        measured = rows(layer, calibration, asked.threads, asked.rounds)
    found = [{"layer": name, "vocab": layer.vocab, "dim": layer.dim, **row} for row in measured]
    old = json.loads(asked.out.read_text(encoding="utf-8"))["rows"] if asked.out.is_file() else []
    others = [row for row in old if row["layer"] != name]
    record = {"environment": measure.environment(asked.threads), "facts": {"order": "in turns"}, "rows": [*others, *found]}
    asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
