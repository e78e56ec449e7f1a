"""One call of the output layer where a decoder makes it: right after its other layers, which have emptied the caches.

    python benchmarks/cold_calls.py LAYER --hidden HIDDEN --calibration HIDDEN results/cold-calls.json

Between any two calls ``SIZE`` MB of other weights are multiplied by a vector in PyTorch; contestants in turns, in a fresh order
each round, one timed call a turn. ``headlong bench`` times calls in a row instead, after two that are not timed.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headlong.arrays import evenly
from headlong.bench import measure
from headlong.bench import run as bench
from headlong.cli import inputs
from headlong.cli.terminal import bars

NAMES = (
    "full", "cascade", "calibrated, ids only", "calibrated, default promise", "calibrated widths, ids but for 0.01",
    "torch fp32", "torch bf16", "hnswlib",
)  # fmt: skip
SIZE, LAYERS, QUERIES = 96, 6, 256


def other_layers(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.randn(len(x), len(x)) for _ in range(LAYERS)]


@torch.inference_mode()
def step(x: torch.Tensor, layers: Sequence[torch.Tensor]) -> torch.Tensor:
    for weight in layers:
        x = torch.nn.functional.linear(x, weight)
    return x


def times(field: Sequence[measure.Contestant], queries: Any, rounds: int, progress: measure.Progress) -> dict[str, list[float]]:
    width = int((SIZE * 1e6 / 4 / LAYERS) ** 0.5)
    x, order, rng = torch.randn(width), list(field), random.Random(0)
    layers = other_layers(x)
    prepared = {one.name: [one.prepare(queries[i : i + 1]) for i in range(len(queries))] for one in field}
    seconds: dict[str, list[float]] = {one.name: [] for one in field}
    for turn in range(rounds):
        rng.shuffle(order)
        for one in order:
            step(x, layers)
            seconds[one.name].append(measure.wall(one.call, prepared[one.name][turn % len(queries)]))
        progress(turn + 1, rounds)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layer")
    parser.add_argument("--hidden", required=True)
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    layer = inputs.layer(asked.layer)
    queries = np.asarray(evenly(inputs.hidden(asked.hidden), QUERIES)).astype(np.float32)
    with measure.pinned(asked.threads), bars() as stage:
        settings = bench.Settings(threads=asked.threads)
        field = bench.contestants(layer, NAMES, settings, stage("compile"), np.asarray(inputs.hidden(asked.calibration)))
        found = times(field, queries, asked.rounds, stage("ask"))
    base = float(np.median(found["torch fp32"]))
    rows = [
        {"method": name, "median_us": 1e6 * float(np.median(values)), "p90_us": 1e6 * float(np.percentile(values, 90)),
         "speed_up": base / float(np.median(values))}
        for name, values in found.items()
    ]  # fmt: skip
    facts = {"layer": Path(asked.layer).stem, "megabytes between": SIZE, "rounds": asked.rounds}
    record = {"environment": measure.environment(asked.threads), "facts": facts, "rows": rows}
    asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
