"""How the time of a query grows with the classes and with the dimensions.

    python benchmarks/growth_synthetic.py --json results/growth.json --plot docs/figures

    against V   top-10 of 10^4 .. 10^7 classes in 64 dimensions (the largest mapped from a file), batch 1, ids proved
    against D   top-10 of as many classes as make 2^25 weights in 64 .. 8,192 dimensions

Isotropic layers, no calibration: int8 codes, the worst case, so that bytes are what is read for all classes and hardly any
more; beside it the time that NumPy's sum of as many bytes takes here: the slope of the memory bandwidth.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import headlong as hl
from headlong.bench import measure
from headlong.layers.matrix import Layer
from headlong.report import plots

VOCABS, DIMS = (10_000, 100_000, 1_000_000, 10_000_000), (64, 128, 256, 512, 1024, 2048, 4096, 8192)
NARROW, WEIGHTS, BLOCK, QUERIES, K = 64, 2**25, 1 << 18, 16, 10
STYLE = (
    "text{font:12px sans-serif;fill:#333}.soft{fill:#777}.grid{stroke:#ddd;fill:none}"
    ".span{stroke:#36c;fill:none}.mark{fill:#36c}"
)


def layer_of(vocab: int, dim: int, folder: Path) -> Layer:
    """Isotropic rows in bfloat16, mapped from a file."""
    file = np.memmap(folder / "weight", np.uint16, "w+", shape=(vocab, dim))
    rng = np.random.default_rng(vocab + dim)
    for start in range(0, vocab, BLOCK):
        part = rng.standard_normal((min(BLOCK, vocab - start), dim), np.float32) * np.float32(4 / math.sqrt(dim))
        file[start : start + len(part)] = part.astype(ml_dtypes.bfloat16).view(np.uint16)
    file.flush()
    return Layer(np.memmap(folder / "weight", np.uint16, "r", shape=(vocab, dim)).view(ml_dtypes.bfloat16))


def median(call: Callable[[int], Any], seconds: float = 2.0) -> float:
    taken: list[float] = []
    for turn in range(2):
        call(turn)
    while len(taken) < 7 or (sum(taken) < seconds and len(taken) < 200):
        start = time.perf_counter()
        call(len(taken))
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def measured(kind: str, vocab: int, dim: int, threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        layer = layer_of(vocab, dim, Path(name))
        start = time.perf_counter()
        engine = hl.compile(layer, "cascade", eps=math.inf, threads=threads)
        built = time.perf_counter() - start
        hidden = np.random.default_rng(1).standard_normal((QUERIES, dim)).astype(np.float32)
        rows = [hidden[i : i + 1] for i in range(QUERIES)]
        seconds = median(lambda turn: engine.topk(rows[turn % QUERIES], K))
        cost = [engine.topk(row, K).cost for row in rows[:4]]
        codes = engine.plan.levels[0].codes.reshape(-1).view(np.uint64)
        read = median(lambda turn: int(np.add.reduce(codes)), 0.5)
    total = float(np.mean([one.bytes[0] for one in cost]))
    return {
        "against": kind, "vocab": vocab, "dim": dim, "median_us": 1e6 * seconds, "bytes": total,
        "gigabytes_per_second": total / seconds / 1e9, "sum_gigabytes_per_second": codes.nbytes / read / 1e9,
        "rows": float(np.mean([one.rows[0] for one in cost])), "build_s": built,
    }  # fmt: skip


def plot(rows: list[dict[str, Any]], kind: str, key: str, names: tuple[str, str]) -> str:
    """Microseconds over classes or dimensions, beside what a plain sum of as many bytes takes."""
    shown = [row for row in rows if row["against"] == kind]
    series = [
        plots.Series("a proved top-10", tuple((row[key], row["median_us"], f"{row[key]:,}: {row['median_us']:.0f} µs")
                                              for row in shown)),
        plots.Series("a sum of the bytes", tuple((row[key], row["bytes"] / row["sum_gigabytes_per_second"] / 1e3,
                                                  f"{row[key]:,}") for row in shown)),
    ]  # fmt: skip
    drawn = plots.lines("Time of a query", series, (lambda x: f"{x:,.0f}", lambda y: f"{y:,g} µs"), names)
    return drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">", f"><style>{STYLE}</style>", 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--most", type=int, default=VOCABS[-1])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    rows = []
    todo = [("V", vocab, NARROW) for vocab in VOCABS] + [("D", WEIGHTS // dim, dim) for dim in DIMS]
    with measure.pinned(asked.threads):
        for kind, vocab, dim in todo:
            if vocab <= asked.most:
                rows.append(measured(kind, vocab, dim, asked.threads))
                sys.stdout.write(json.dumps(rows[-1]) + "\n")
                sys.stdout.flush()
    record = {"environment": measure.environment(asked.threads), "facts": {"k": K}, "rows": rows}
    asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if asked.plot is not None:
        for kind, key, name in (("V", "vocab", "classes"), ("D", "dim", "dimensions")):
            drawn = plot(rows, kind, key, (name, "median of one query"))
            (asked.plot / f"growth-{name}.svg").write_text(drawn + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
