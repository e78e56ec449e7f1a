"""Instructions a query of a batch takes, ours and PyTorch's: what a processor has to do, whatever its clock and its neighbours.

    python benchmarks/batch_instructions.py LAYER HIDDEN results/batch-instructions.json

Valgrind's callgrind counts them, with one thread; it knows AVX2 and not AVX-512. A process that answers four batches less one
that answers two is what two batches cost. Ours are told apart by what they are for where the native module keeps its names
(``-DKEEP_NAMES=NOSTRIP``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import headlong as hl
from headlong import __version__
from headlong.bench import measure, rivals
from headlong.bench.measure import Contestant
from headlong.layers.matrix import Layer
from headlong.store import open_file

K, CALIBRATION, BATCHES, FEWER = 10, 4096, (8, 64), 2
OURS: dict[str, dict[str, Any]] = {"ids proved": {"eps": math.inf}, "default promise": {}}
RIVALS = ("torch fp32", "torch int8 dynamic")
PARTS = {
    "rotation and codes of the queries": r"rotate|prepare|encode",
    "search of blocks": r"Run::|Sweep|opened|closer_of|spread|sixteen|taken|listed",
    "products of codes": r"batch_tile|batch_scan|scan_|dot_bits|dot_codes",
    "bounds and exponentials": r"weigh|lanes_|lane_|gaps|interval|radius|batch_sums|largest|survivors|log|exp",
    "exact rows": r"dot_|tile<|gather|read_|resolve",
}
"""The first whose pattern is found in a function's name has its instructions; what is left is ``rest``."""


def child(name: str, batch: int, batches: int, folder: Path) -> None:
    hidden = np.load(folder / "hidden.npy")
    if name in OURS:
        engine = hl.load(folder / f"{name}.headlong", threads=1, verify=False)
        assert isinstance(engine, hl.Engine)
        one = Contestant(name, lambda rows: engine.topk(rows, K), lambda rows: rows)
    else:
        one = rivals.contestant(name, Layer.load(folder / "layer.safetensors"), K, 1)
    for at in range(0, batches * batch, batch):
        one.call(one.prepare(np.ascontiguousarray(hidden[at : at + batch])))


def counted(name: str, batch: int, batches: int, folder: Path) -> Counter[str]:
    """Instructions of every function of a process."""
    out = folder / "callgrind.out"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", sys.executable, __file__]
    given = ["--child", name, str(batch), str(batches), str(folder)]
    subprocess.run([*command, *given], check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": "0"})
    annotate = ["callgrind_annotate", "--threshold=100", str(out)]
    told = subprocess.run(annotate, check=True, capture_output=True, text=True).stdout
    found: Counter[str] = Counter()
    for line in told.splitlines():
        if match := re.match(r"\s*([\d,]+) \([ \d.]+%\)\s+(\S*?:)(.*)", line):
            found[match[3] if "_native" in match[3] else "elsewhere"] += int(match[1].replace(",", ""))
    return found


def part(function: str) -> str:
    name = function.split("(headlong")[0]
    return next((part for part, pattern in PARTS.items() if re.search(pattern, name)), "rest")


def row_of(name: str, batch: int, folder: Path) -> dict[str, Any]:
    more = counted(name, batch, 2 * FEWER, folder)
    more.subtract(counted(name, batch, FEWER, folder))
    parts: Counter[str] = Counter()
    for function, count in more.items():
        parts[part(function)] += count
    queries = FEWER * batch
    row: dict[str, Any] = {"contestant": name, "batch": batch, "instructions": sum(more.values()) / queries}
    return row | ({"parts": {name: count / queries for name, count in parts.most_common()}} if name in OURS else {})


def main() -> None:
    if "--child" in sys.argv:
        name, batch, batches, given = sys.argv[2:]
        child(name, int(batch), int(batches), Path(given))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layer")
    parser.add_argument("hidden")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    layer, file = hl.Layer.load(options.layer, weight="weight", bias="bias"), open_file(options.hidden)
    hidden = np.concatenate([file.read("train_hidden"), file.read("valid_hidden")]).astype(np.float32)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        layer.save(folder / "layer.safetensors")
        np.save(folder / "hidden.npy", hidden[CALIBRATION : CALIBRATION + 2 * FEWER * max(BATCHES)])
        for ours, promise in OURS.items():
            engine = hl.compile(layer, "cascade", calibration=hidden[:CALIBRATION], threads=1, **promise)
            engine.save(folder / f"{ours}.headlong")
        rows: list[dict[str, Any]] = []
        for batch, one in itertools.product(BATCHES, (*OURS, *RIVALS)):
            rows.append(row_of(one, batch, folder))
            sys.stdout.write(f"{rows[-1]}\n")
            record = {"version": __version__, "environment": measure.environment(1), "rows": rows}
            options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")  # each takes minutes


if __name__ == "__main__":
    main()
