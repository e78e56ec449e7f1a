"""How the time of a query grows with the classes, beside indexes: phrases of real text, or runs of its characters.

    python benchmarks/phrases.py make FOLDER            2^14 to 2^20 classes; or make-characters, up to ten million
    python benchmarks/classes_beside_indexes.py build FOLDER CLASSES [KIND ...]       everything of so many classes, to files
    python benchmarks/classes_beside_indexes.py time FOLDER CLASSES results/classes-curves.json [CONTESTANT ...]
    python benchmarks/classes_beside_indexes.py plot results/classes-curves.json docs/figures

    recall      mean share of the ten largest logits of float64 among the ten ids of an answer; of ties, those that came first
    loop, cold  median microseconds of one query at a time: the same query just before, or 96 MB of other numbers
    batch       median microseconds a query where all are asked at once

The indexes are those of ``indexes.py``, at each value of their knob; ``faiss Flat`` and ``torch`` read all rows, and are
asked fewer times. ``build`` takes the kinds that are named, or all; ``time`` takes those that were built, or of
them those that are named, and leaves the others' rows in the file as they are.
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
from indexes import KINDS, SMALL_GRAPHS
from phrases import QUERIES, K, compiled, read

import headlong as hl
from headlong.bench import measure
from headlong.bench.rivals.registry import with_bias, with_one
from headlong.engines.base import Engine
from headlong.report.page import STYLE
from headlong.report.plots import Series, lines, standalone

THREADS, ROUNDS, FLAT, TORCH = 2, 32, "faiss Flat", "torch"
WHOLE = (FLAT, TORCH)
EVERY = KINDS | SMALL_GRAPHS
SECONDS = 1.0
"""For all rounds of one contestant, in each way of being asked; one round at least, all queries at once counted whole."""
AT_ONCE, MOST_LOGITS = 1 << 17, 1 << 28
"""Classes that are compared with float64 at once; logits of a batch beyond which torch, which holds them all, is left out."""
ENOUGH = 0.98
"""The recall at which an index is a point of the figure: the least knob that has it."""


class Asked(NamedTuple):
    """One contestant at one value of its knob."""

    name: str
    knob: int
    prepare: Callable[[Any], Any]
    ids: Callable[[Any], Any]
    """Of one query ``[1, dim]`` or of all of them."""


def home(folder: Path, vocab: int) -> Path:
    found = folder / f"classes-{vocab}"
    found.mkdir(exist_ok=True)
    return found


def build(folder: Path, vocab: int, kinds: list[str]) -> None:
    layer, calibration, _ = read(folder, vocab)
    here = home(folder, vocab)
    for kind in kinds or ["headlong", FLAT, *KINDS]:
        start = time.process_time()
        if kind == "headlong":
            compiled(layer, calibration, "blocks").save(here / "blocks.safetensors")
        elif kind == FLAT:
            keep_flat(layer, here / FLAT.replace(" ", "-"))
        else:
            EVERY[kind].keep(layer, here / kind.replace(" ", "-"))
        (here / f"{kind}.txt").write_text(str(time.process_time() - start), encoding="utf-8")
        sys.stdout.write(f"{vocab} {kind}: {time.process_time() - start:.0f} CPU s\n")
        sys.stdout.flush()


def keep_flat(layer: hl.Layer, path: Path) -> None:
    """Some rows at a time, so that they are there once."""
    flat = faiss.IndexFlatIP(layer.dim + 1)
    for start in range(0, layer.vocab, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        flat.add(with_bias(hl.Layer(layer.weight[part], layer.bias[part])))  # type: ignore[index]
    faiss.write_index(flat, str(path))


def builds(folder: Path) -> list[dict[str, Any]]:
    """What was built there, and the processor seconds that it took."""
    taken = sorted((int(file.parent.name.partition("-")[2]), file.stem, file) for file in folder.glob("classes-*/*.txt"))
    return [{"classes": vocab, "kind": kind, "cpu_s": float(file.read_text(encoding="utf-8"))} for vocab, kind, file in taken]


def contestants(folder: Path, vocab: int, only: list[str]) -> Iterator[Asked]:
    """What was built. Ours, and torch, read the rows in one mapped file."""
    here = home(folder, vocab)
    blocks: Any = hl.load(here / "blocks.safetensors", threads=THREADS, verify=False)  # as `build` left it
    layer = blocks.layer
    yield Asked("headlong, blocks", 0, lambda x: x, lambda x: blocks.topk(x, K).ids)
    if not only or "headlong, plain" in only:
        plan = blocks.plan._replace(blocks=None)
        plain: Any = Engine(layer, blocks.method, plan, blocks.norms, blocks.promise, threads=THREADS)
        yield Asked("headlong, plain", 0, lambda x: x, lambda x: plain.topk(x, K).ids)
    if (here / f"{FLAT}.txt").exists() and (not only or FLAT in only):
        flat = faiss.read_index(str(here / FLAT.replace(" ", "-")))
        yield Asked(FLAT, 0, with_one, lambda x: flat.search(x, K)[1])
    if not only or TORCH in only:
        weight, bias = torch.from_numpy(layer.weight), torch.from_numpy(layer.bias)
        linear = torch.nn.functional.linear
        yield Asked(TORCH, 0, torch.from_numpy, lambda x: torch.topk(linear(x, weight, bias), K).indices.numpy())
    for name, kind in EVERY.items():
        if not (here / f"{name}.txt").exists() or (only and name not in only):
            continue
        index = kind.open(here / name.replace(" ", "-"), layer.dim, THREADS)
        for knob in kind.knob:

            def ids(x: Any, kind: Any = kind, index: Any = index, knob: int = knob) -> Any:
                kind.turn(index, knob)
                return np.asarray(kind.ask(index, x)).reshape(len(x), -1)

            yield Asked(name, knob, kind.prepare, ids)


def best_of(layer: hl.Layer, queries: Any) -> Any:
    """The ids of the largest logits in float64, ``[queries, K]``."""
    logits, ids = np.empty((len(queries), 0)), np.empty((len(queries), 0), np.int64)
    for start in range(0, layer.vocab, AT_ONCE):
        rows = slice(start, min(start + AT_ONCE, layer.vocab))
        more = queries.astype(np.float64) @ layer.weight[rows].astype(np.float64).T + layer.bias[rows]  # type: ignore[index]
        numbers = np.broadcast_to(np.arange(rows.start, rows.stop), more.shape)
        logits, ids = np.concatenate([logits, more], axis=1), np.concatenate([ids, numbers], axis=1)
        best = np.argpartition(-logits, K - 1, axis=1)[:, :K]
        logits, ids = (np.take_along_axis(side, best, axis=1) for side in (logits, ids))
    return ids


def timed(folder: Path, vocab: int, only: list[str]) -> list[dict[str, Any]]:
    """Recall on all queries and medians, everyone in turns."""
    layer, _, queries = read(folder, vocab)
    truth = home(folder, vocab) / "best.npy"
    if not truth.exists():
        np.save(truth, best_of(layer, queries))
    best, field, other = np.load(truth), list(contestants(folder, vocab, only)), np.ones(96 * 250_000, np.float32)
    blocks = [[one.prepare(np.ascontiguousarray(row[None])) for row in queries] for one in field]
    found = []
    for one, own in zip(field, blocks, strict=True):
        asked = own[: 4 if one.name in WHOLE else None]
        right = [len(set(one.ids(x)[0].tolist()) & set(row.tolist())) for x, row in zip(asked, best, strict=False)]
        found.append({"classes": vocab, "contestant": one.name, "knob": one.knob, "recall": sum(right) / (K * len(asked))})
    every = [one.prepare(np.ascontiguousarray(queries)) for one in field]
    for way, before in (("loop", None), ("cold", other.sum), ("batch", None)):
        seconds: list[list[float]] = [[] for _ in field]
        for turn in range(ROUNDS):
            for one, own, all_, taken in zip(field, blocks, every, seconds, strict=True):
                too_much = way == "batch" and one.name == TORCH and vocab * QUERIES > MOST_LOGITS
                if too_much or (taken and sum(taken) + taken[-1] > SECONDS):
                    continue
                x = all_ if way == "batch" else own[turn % QUERIES]
                if way != "batch":
                    one.ids(x)
                if before is not None:
                    before()
                taken.append(measure.wall(one.ids, x))
        for row, taken in zip(found, seconds, strict=True):
            if taken:
                row[f"{way}_us"] = 1e6 * statistics.median(taken) / (len(queries) if way == "batch" else 1)
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
        if points:  # who never has the recall is no line of the figure
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
        new = timed(folder, vocab, sys.argv[5:])
        again = {(row["classes"], row["contestant"]) for row in new}
        rows = [row for row in rows if (row["classes"], row["contestant"]) not in again] + new
        about = {"environment": measure.environment(THREADS), "k": K, "queries": QUERIES}
        record = {**about, "rows": rows, "builds": builds(folder)}
        out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
