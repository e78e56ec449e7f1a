"""How the time of a query grows with the classes, beside indexes: phrases of real text, 2^14 to 2^20 of them.

    python benchmarks/phrases.py make FOLDER
    python benchmarks/classes_curves.py build FOLDER CLASSES [KIND ...]       everything of so many classes, to files
    python benchmarks/classes_curves.py time FOLDER CLASSES results/classes-curves.json
    python benchmarks/classes_curves.py plot results/classes-curves.json docs/figures

    recall      mean share of the ten largest logits of float64 among the ten ids of an answer
    loop, cold  median microseconds of one query at a time: the same query just before, or 96 MB of other numbers

The indexes are those of ``recall_curves.py``, at each value of their knob; ``faiss Flat`` reads all rows. ``build`` takes the
kinds that are named, or all; ``time`` takes those that were built.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
import torch
from phrases import QUERIES, WAYS, K, compiled, read
from recall_curves import KINDS

import headlong as hl
from headlong.bench import measure
from headlong.bench.rivals.registry import with_bias, with_one
from headlong.report.page import STYLE
from headlong.report.plots import Series, lines, standalone

THREADS, ROUNDS, FLAT, FLAT_ROUNDS = 2, 32, "faiss Flat", 8
ENOUGH = 0.98
"""The recall at which an index is a point of the figure: the least knob that has it."""


class Asked(NamedTuple):
    """One contestant at one value of its knob."""

    name: str
    knob: int
    prepare: Callable[[Any], Any]
    ids: Callable[[Any], Any]


def home(folder: Path, vocab: int) -> Path:
    found = folder / f"classes-{vocab}"
    found.mkdir(exist_ok=True)
    return found


def build(folder: Path, vocab: int, kinds: list[str]) -> None:
    layer, calibration, _ = read(folder, vocab)
    here, rows = home(folder, vocab), with_bias(layer)
    for kind in kinds or ["headlong", FLAT, *KINDS]:
        start = time.process_time()
        if kind == "headlong":
            for way in WAYS:
                compiled(layer, calibration, way).save(here / f"{way}.safetensors")
        elif kind != FLAT:
            KINDS[kind].build(rows, here / kind.replace(" ", "-"))
        (here / f"{kind}.txt").write_text(str(time.process_time() - start), encoding="utf-8")
        sys.stdout.write(f"{vocab} {kind}: {time.process_time() - start:.0f} CPU s\n")
        sys.stdout.flush()


def contestants(folder: Path, vocab: int) -> Iterator[Asked]:
    """What was built."""
    here = home(folder, vocab)
    layer = read(folder, vocab)[0]
    for way in WAYS:
        engine = hl.load(here / f"{way}.safetensors", threads=THREADS)
        yield Asked(f"headlong, {way}", 0, lambda x: x, lambda x, engine=engine: engine.topk(x, K).ids)  # type: ignore[misc]
    flat = faiss.IndexFlatIP(layer.dim + 1)
    flat.add(with_bias(layer))
    yield Asked(FLAT, 0, with_one, lambda x: flat.search(x, K)[1])
    for name, kind in KINDS.items():
        if not (here / f"{name}.txt").exists():
            continue
        index = kind.load(here / name.replace(" ", "-"), layer.dim + 1, THREADS)
        for knob in kind.knob:

            def ids(x: Any, kind: Any = kind, index: Any = index, knob: int = knob) -> Any:
                kind.turn(index, knob)
                return np.asarray(kind.ask(index, x)).reshape(1, -1)

            yield Asked(name, knob, with_one, ids)


def timed(folder: Path, vocab: int) -> list[dict[str, Any]]:
    """Recall on all queries and medians, everyone in turns."""
    layer, _, queries = read(folder, vocab)
    logits = queries.astype(np.float64) @ layer.weight.astype(np.float64).T + layer.bias
    best = np.argpartition(-logits, K, axis=1)[:, :K]
    field, other = list(contestants(folder, vocab)), np.ones(96 * 250_000, np.float32)
    blocks = [[one.prepare(np.ascontiguousarray(row[None])) for row in queries] for one in field]
    found = []
    for one, own in zip(field, blocks, strict=True):
        right = [len(set(one.ids(x)[0].tolist()) & set(row.tolist())) for x, row in zip(own, best, strict=True)]
        found.append({"classes": vocab, "contestant": one.name, "knob": one.knob, "recall": sum(right) / (K * QUERIES)})
    for way, before in (("loop", None), ("cold", other.sum)):
        seconds: list[list[float]] = [[] for _ in field]
        for turn in range(ROUNDS):
            for one, own, taken in zip(field, blocks, seconds, strict=True):
                if one.name == FLAT and turn >= FLAT_ROUNDS:
                    continue
                x = own[turn % QUERIES]
                one.ids(x)
                if before is not None:
                    before()
                taken.append(measure.wall(one.ids, x))
        for row, taken in zip(found, seconds, strict=True):
            row[f"{way}_us"] = 1e6 * statistics.median(taken)
    return found


def plot(path: Path, out: Path) -> None:
    """Microseconds of a cold call against classes: each index where it has the recall."""
    rows, series = json.loads(path.read_text(encoding="utf-8"))["rows"], []
    for name in dict.fromkeys(row["contestant"] for row in rows):
        points = []
        for vocab in sorted({row["classes"] for row in rows}):
            own = [row for row in rows if (row["contestant"], row["classes"]) == (name, vocab) and row["recall"] >= ENOUGH]
            if own:
                row = min(own, key=lambda row: float(row["cold_us"]))
                points.append((vocab, row["cold_us"], f"{vocab:,} classes: {row['cold_us']:.0f} us, {row['recall']:.1%}"))
        series.append(Series(name, tuple(points)))
    axes = (lambda n: f"2^{math.log2(n):.0f}", lambda us: f"{us:.0f} us")
    svg = lines(f"ten ids, at least {ENOUGH:.0%} of them", series, axes, ("classes", "a cold call"))
    (out / "classes-curves.svg").write_text(standalone(svg, STYLE) + "\n", encoding="utf-8")


def main() -> None:
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    torch.set_num_threads(THREADS)
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "plot":
        plot(folder, Path(sys.argv[3]))
    elif what == "build":
        build(folder, int(sys.argv[3]), sys.argv[4:])
    else:
        vocab, out = int(sys.argv[3]), Path(sys.argv[4])
        rows = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else []
        rows = [row for row in rows if row["classes"] != vocab] + timed(folder, vocab)
        record = {"environment": measure.environment(THREADS), "k": K, "queries": QUERIES, "rows": rows}
        out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
