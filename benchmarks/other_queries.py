"""Queries unlike those that a plan was made from: what searches by blocks cost them, and when engines stop making these.

    python benchmarks/other_queries.py results/other-queries.json [FOLDER of phrases.py make-characters]

    always      the plan that calibration vectors chose, its blocks never on trial
    on trial    the same, as ``compile`` makes it
    pass        the plan of the same vectors without blocks

Each is asked 1,024 queries of a kind before it is timed; then all take turns, one query at a time in a loop, and 64 at once.
Medians, as multiples of the pass.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from blocks import recommender, recurrent

import headlong as hl
from headlong.bench import measure
from headlong.engines.adapting import always_searching
from headlong.layers.matrix import Layer

THREADS, CALIBRATION, QUERIES, ROUNDS, EACH = 2, 2000, 1024, 40, 64
Rows = np.ndarray[Any, np.dtype[np.float32]]


def layers(characters: Path | None) -> dict[str, tuple[Layer, Rows]]:
    """Of the characters every hundredth class."""
    found: dict[str, tuple[Layer, Rows]] = {"a recommender's, made": recommender(), "an LSTM's, made": recurrent()}
    if characters is not None:
        parts = (characters / f"{name}.npy" for name in ("weight", "bias", "calibration"))
        weight, bias, hidden = (np.load(part, mmap_mode="r") for part in parts)
        layer = Layer(np.ascontiguousarray(weight[::100]), np.ascontiguousarray(bias[::100]))
        found["100,000 runs of characters"] = layer, np.asarray(hidden[:: len(hidden) // 4000], np.float32)
    return found


def kinds(hidden: Rows) -> dict[str, Rows]:
    """The same vectors shorter, longer and the other way round, and others as long in random directions."""
    random = np.random.default_rng(0).standard_normal(hidden.shape)
    random *= np.linalg.norm(hidden, axis=1, keepdims=True) / np.linalg.norm(random, axis=1, keepdims=True)
    found = {"alike": hidden, "300 times shorter": hidden / 300, "ten times longer": hidden * 10, "negative": -hidden}
    return found | {"random": random.astype(np.float32)}


def ratios(layer: Layer, calibration: Rows, hidden: Rows, k: int) -> dict[str, dict[str, float]]:
    plain = hl.compile(layer, "cascade", calibration=calibration, eps=math.inf, threads=THREADS, blocks=False)
    tried: Any = hl.compile(layer, "cascade", calibration=calibration, eps=math.inf, threads=THREADS)
    engines = {"pass": plain, "always": always_searching(tried), "on trial": tried}
    for engine in engines.values():
        for row in hidden:
            engine.topk(row[None], k)
    found: dict[str, dict[str, float]] = {}
    for way, size in (("loop", 1), ("batch", EACH)):
        taken: dict[str, list[float]] = {name: [] for name in engines}
        for turn in range(ROUNDS):
            rows = np.ascontiguousarray(hidden[turn * size % QUERIES :][:size])
            for name, engine in engines.items():
                engine.topk(rows, k)
                taken[name].append(measure.wall(lambda x, engine=engine: engine.topk(x, k), rows))
        medians = {name: statistics.median(values) for name, values in taken.items()}
        found[way] = {"pass_us": 1e6 * medians["pass"] / size}
        found[way] |= {name: medians[name] / medians["pass"] for name in ("always", "on trial")}
    return found


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    rows = []
    for name, (layer, vectors) in layers(Path(sys.argv[2]) if len(sys.argv) > 2 else None).items():
        calibration, asked = vectors[:CALIBRATION], vectors[CALIBRATION : CALIBRATION + QUERIES]
        for kind, hidden in kinds(asked).items():
            for k in (1, 10, 64):
                rows.append({"layer": name, "queries": kind, "k": k, **ratios(layer, calibration, hidden, k)})
                sys.stdout.write(f"{rows[-1]}\n")
                sys.stdout.flush()
    record = {"environment": measure.environment(THREADS), "calibration": CALIBRATION, "rows": rows}
    Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
