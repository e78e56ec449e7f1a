"""One call of the output layer where a decoder makes it: right after its other layers, which have emptied the caches.

    python benchmarks/cold_calls.py LAYER --hidden HIDDEN --calibration HIDDEN results/cold-calls.json

Between any two calls other weights are multiplied by a vector in PyTorch; contestants in turns, in a fresh order each round,
one timed call a turn. It is what ``headlong bench`` does by default, with more rounds and README's contestants alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headlong.arrays import evenly
from headlong.bench import cold, measure
from headlong.bench import run as bench
from headlong.bench.settings import Settings
from headlong.cli import inputs
from headlong.cli.terminal import bars
from headlong.costs.machine_load import Neighbours, load_average
from headlong.report.summaries import DENSE, percentile

NAMES = (
    "full", "cascade", "calibrated, ids only", "calibrated, default promise", "calibrated widths, ids but for 0.01",
    "torch fp32", "torch bf16", "torch int8", "torch int8 dynamic", "hnswlib",
)  # fmt: skip
QUERIES = 256
QUARTILES = {"median": 50, "q25": 25, "q75": 75, "p90": 90}


def rows(found: list[measure.Timing]) -> tuple[str, list[dict[str, Any]]]:
    """The fastest dense product, and a row for each contestant: quartiles of its time, its speed beside that product."""
    base = min((one for one in found if one.contestant in DENSE), key=lambda one: statistics.median(one.seconds))
    table = []
    for name, _, seconds in found:
        times = {f"{word}_us": 1e6 * percentile(seconds, at) for word, at in QUARTILES.items()}
        speed = statistics.median(base.seconds) / statistics.median(seconds)
        table.append({"method": name, **times, "speed_up": speed})
    return base.contestant, table


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
    layer, load, neighbours = inputs.layer(asked.layer), load_average(), Neighbours()
    queries = np.asarray(evenly(inputs.hidden(asked.hidden), QUERIES)).astype(np.float32)
    with measure.pinned(asked.threads), bars() as stage:
        settings, calibration = Settings(threads=asked.threads), np.asarray(inputs.hidden(asked.calibration))
        field = bench.contestants(layer, NAMES, settings, stage("compile"), calibration)
        work = cold.OtherLayers(cold.megabytes())
        over, table = rows(cold.contest(field, queries, 1, asked.rounds, work, stage("ask")))
    facts = {"layer": Path(asked.layer).stem, "between two calls": work.made, "rounds": asked.rounds, "over": over}
    made = measure.environment(asked.threads, load=load, others=neighbours.share())
    record = {"environment": made, "facts": facts, "rows": table}
    asked.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
