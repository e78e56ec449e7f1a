"""Exact searches by published bounds beside blocks: rows and bytes that a query reads, its time, and whether ids are float64's.

    python benchmarks/exact_search.py results/exact-search.json [LAYER ...] --trained LAYER --hidden HIDDEN ... --phrases FOLDER
    python benchmarks/exact_search.py results/exact-search.json --times [LAYER ...] ...

LAYERs are names, listed below: all that there are files for if none is given; the two that are made need no files. Without
``--times`` what each contestant reads is counted, and layers that the record has already are left out: it goes on where it
ended. ``--times`` adds the times, measured anew. PHRASES is a folder that ``phrases.py make`` left, LEMP the library that
``kernels/lemp_calls.cpp`` was built to; without it LEMP is left out.

    rows, bytes    means of one query, each asked alone; bytes of LEMP are not known
    wrong          queries of which an id is not float64's, ties aside
    loop, cold     median microseconds of one query at a time, a contestant's calls back to back, or each after a sum over 96 MB
    together       of LEMP: microseconds of a query where all are asked at once, by its own clock
    load, others   the load average before a layer's times, and the share of the processors that other programs took meanwhile

Every contestant has one thread. ``torch`` reads every row. MAXIMUS has lists for clusters of queries: it is given those that
will be asked among them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from blocks import recommender, recurrent
from exact_rivals import Fexipro, Floats, Lemp, Maximus, with_one
from phrases import read, wrong

import headlong as hl
from headlong.bench import measure
from headlong.cli import inputs
from headlong.cli.terminal import bars
from headlong.costs.machine_load import Neighbours, load_average

K, CALIBRATION, ASKED, TIMED, PASSES, OTHER = 10, 4096, 256, 64, 3, 96
SECONDS = 20.0
"""For all calls of one contestant, in a loop and cold."""
MADE = {"a recommender's, made": recommender, "an LSTM's, made": recurrent}
TRAINED, PHRASES = "WikiText-2, a trained GPT's", "phrases of WikiText-2"
NAMES = (TRAINED, *MADE, PHRASES)
CLASSES = 1 << 20
FEW, MANY = 8, 64
"""Clusters of MAXIMUS: its authors' number, and more."""


class One(NamedTuple):
    """A contestant, asked a vector with its 1."""

    call: Callable[[Floats], Any]
    """What is timed."""
    ask: Callable[[Floats], tuple[Any, int, int | None]]
    """Ids, rows and bytes."""
    index: Any = None


def subject(name: str, asked: argparse.Namespace) -> tuple[hl.Layer, Floats, Floats]:
    """The layer, vectors that may be learned from and vectors that ask."""
    if name == PHRASES:
        layer, calibration, queries = read(asked.phrases, CLASSES)
        return layer, np.asarray(calibration, np.float32), np.asarray(queries, np.float32)
    if name == TRAINED:
        vectors = np.concatenate([np.asarray(inputs.hidden(source)) for source in asked.hidden])
        layer = inputs.layer(asked.trained)
        vectors = np.random.default_rng(0).permutation(vectors)[: CALIBRATION + ASKED].astype(np.float32)
    else:
        layer, vectors = MADE[name]()
    return layer, vectors[:CALIBRATION], vectors[CALIBRATION : CALIBRATION + ASKED]


def contestants(layer: hl.Layer, calibration: Floats, queries: Floats, library: Path | None, step: Any) -> dict[str, One]:
    """By name."""
    bias = np.zeros(layer.vocab) if layer.bias is None else layer.bias
    rows = np.column_stack([np.asarray(layer.weight, np.float32), bias]).astype(np.float32)
    with_bias, users = torch.from_numpy(rows), with_one(np.concatenate([calibration, queries]))
    engine: Any = hl.compile(layer, eps=math.inf, calibration=calibration, threads=1)

    def ours(x: Floats) -> tuple[Any, int, int]:
        top = engine.topk(x[None, :-1], K)
        return top.ids[0], int(top.cost.rows[0]), int(top.cost.bytes[0])

    def dense(x: Floats) -> Any:
        return torch.topk(with_bias @ torch.from_numpy(x), K).indices.numpy()

    found = {
        "headlong": One(lambda x: engine.topk(x[None, :-1], K).ids, ours),
        "torch": One(dense, lambda x: (dense(x), len(rows), rows.nbytes)),
    }
    builders: dict[str, Callable[[], Any]] = {"FEXIPRO": lambda: Fexipro(rows, K)}
    builders |= {f"MAXIMUS, {count} clusters": partial(Maximus, rows, K, users, count) for count in (FEW, MANY)}
    if library is not None:
        builders["LEMP"] = lambda: Lemp(rows, K, library, with_one(calibration))
    made: dict[str, Any] = {}
    for name, build in builders.items():
        made[name] = build()
        step(len(made), len(builders))
    return found | {name: One(one.ask, one.ask, one) for name, one in made.items()}


def counted(name: str, layer: hl.Layer, queries: Floats, field: dict[str, One], step: Any) -> list[dict[str, Any]]:
    """What each reads, and whether it is right."""
    rows, each = [], with_one(queries)
    for place, (contestant, one) in enumerate(field.items()):
        answers = [one.ask(x) for x in each]
        scored, read_ = [answer[1] for answer in answers], [answer[2] for answer in answers]
        row = {"layer": name, "classes": layer.vocab, "dim": layer.dim, "contestant": contestant}
        row |= {"rows": statistics.mean(scored), "wrong": wrong(layer, queries, np.stack([answer[0] for answer in answers]))}
        if None not in read_:
            row["bytes"] = statistics.mean(float(size) for size in read_ if size is not None)
        if isinstance(one.index, Lemp):
            ids, together, _ = one.index.together(each)
            row |= {"rows together": together / len(each), "wrong together": wrong(layer, queries, ids)}
        rows.append({**row, "asked": len(queries), "commit": measure.commit()})
        step(place + 1, len(field))
    return rows


def timed(queries: Floats, field: dict[str, One], step: Any) -> dict[str, dict[str, float]]:
    """Medians of each contestant, in turns; as many calls as :data:`SECONDS` allow, a few at least."""
    each, other = with_one(queries[:TIMED]), np.ones(OTHER * 250_000, np.float32)
    loops: dict[str, list[float]] = {name: [] for name in field}
    colds: dict[str, list[float]] = {name: [] for name in field}
    for turn in range(PASSES):
        for name, one in field.items():
            started = time.perf_counter()
            for x in each:
                taken = measure.wall(one.call, x)
                if turn:  # the first pass brings everything into the caches
                    loops[name].append(taken)
                if time.perf_counter() - started > SECONDS / PASSES:
                    break
        step(turn + 1, PASSES + len(each))
    for turn, x in enumerate(each):
        for name, one in field.items():
            if sum(colds[name]) < SECONDS:
                other.sum()
                colds[name].append(measure.wall(one.call, x))
        step(PASSES + turn + 1, PASSES + len(each))
    found = {}
    for name, one in field.items():
        found[name] = {"loop_us": 1e6 * statistics.median(loops[name]), "cold_us": 1e6 * statistics.median(colds[name])}
        if isinstance(one.index, Lemp):
            found[name]["together_us"] = 1e6 * min(one.index.together(each)[2] for _ in range(PASSES)) / len(each)
    return found


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    facts = {
        "k": K,
        "calibrated_with": CALIBRATION,
        "timed": TIMED,
        "between two cold calls": f"{OTHER} MB",
    }
    record = {"environment": measure.environment(1), "facts": facts, "rows": rows}
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path, help="the record, written and gone on with")
    parser.add_argument("layers", nargs="*", metavar="LAYER", help=f"of: {'; '.join(NAMES)}")
    parser.add_argument("--times", action="store_true", help="measure the times, also of layers that have some")
    parser.add_argument("--trained", metavar="LAYER", help=f"the file of the layer {TRAINED!r}")
    parser.add_argument("--hidden", nargs="+", default=[], help="its hidden vectors, FILE or FILE:NAME")
    parser.add_argument("--phrases", type=Path, metavar="FOLDER", help="what phrases.py made")
    parser.add_argument("--lemp", type=Path, metavar="LIBRARY", help="built from kernels/lemp_calls.cpp")
    asked = parser.parse_intermixed_args()
    if unknown := set(asked.layers) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected {'; '.join(NAMES)}")
    there = {TRAINED: asked.trained and asked.hidden, PHRASES: asked.phrases}
    asked.layers = [name for name in asked.layers or NAMES if there.get(name, True)]
    return asked


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    rows = json.loads(asked.json.read_text(encoding="utf-8"))["rows"] if asked.json.is_file() else []
    with measure.pinned(1), bars() as stage:
        for name in asked.layers:
            known = {row["contestant"]: row for row in rows if row["layer"] == name}
            if known and not asked.times:
                continue
            layer, calibration, queries = subject(name, asked)
            field = contestants(layer, calibration, queries, asked.lemp, stage(f"{name}: built"))
            if not set(field) <= set(known):
                known |= {row["contestant"]: row for row in counted(name, layer, queries, field, stage(f"{name}: counted"))}
            if asked.times:
                load, neighbours = load_average(), Neighbours()
                for contestant, times in timed(queries, field, stage(f"{name}: timed")).items():
                    known[contestant] |= {**times, "load": load, "others": neighbours.share()}
            rows = [row for row in rows if row["layer"] != name] + list(known.values())
            write(asked.json, rows)


if __name__ == "__main__":
    main()
