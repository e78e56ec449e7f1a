"""Ids but for a rate beside the curves of approximate indexes: time against recall, in a loop and with cold caches.

    python benchmarks/recall_curves.py build NAME LAYER HIDDEN... --folder FOLDER --json results/recall-curves.json
    python benchmarks/recall_curves.py build --made --folder FOLDER --json results/recall-curves.json
    python benchmarks/recall_curves.py time --folder FOLDER --json results/recall-curves.json
    python benchmarks/recall_curves.py plot --json results/recall-curves.json docs/figures

    recall      mean share of the ten largest logits of float64 among the ten ids of an answer
    whole       share of the answers all of whose ten ids are among them
    loop, cold  median microseconds of one query at a time, calls back to back, or each after 96 MB of other weights

``build`` learns and builds everything on 6,000 vectors (an index takes the layer's rows alone), asks each contestant 1,000
others, and leaves all of it in FOLDER; ``time`` loads that and times it, contestants in turns. An index's knob runs over the
values below: its curve. Everyone may use the same number of threads.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blocks import recommender, recurrent
from indexes import KINDS, Floats, K, Kind
from numpy.typing import NDArray
from promises import exact

import headlong as hl
from headlong.bench import cold, measure
from headlong.bench.measure import Contestant
from headlong.cli import inputs
from headlong.layers.matrix import Layer
from headlong.report.page import STYLE
from headlong.report.plots import Series, lines, standalone

CALIBRATION, ASKED, TIMED = 6000, 1000, 64
LOOPS, ROUNDS = 3, 24
TIE, LEAST = 1e-9, 1e-4
OURS: dict[str, dict[str, Any]] = {
    "headlong, ids proved": {},
    "headlong, ids but for 0.01": {"delta_ids": 0.01, "over": ("query", "calibration")},
    "headlong, ids but for 0.05": {"delta_ids": 0.05, "over": ("query", "calibration")},
}


def contestants(folder: Path, dim: int, threads: int) -> Iterator[tuple[str, int, Contestant]]:
    """What was built there, at each value of its knob."""
    for name in OURS:
        engine = hl.load(folder / f"{name}.safetensors", threads=threads)
        yield name, 0, Contestant(name, lambda x, engine=engine: engine.topk(x, K).ids)  # type: ignore[misc]
    for name, kind in KINDS.items():
        index = kind.open(folder / name.replace(" ", "-"), dim, threads)
        for knob in kind.knob:

            def call(x: Floats, kind: Kind = kind, index: Any = index, knob: int = knob) -> Any:
                kind.turn(index, knob)
                return kind.ask(index, x)

            yield name, knob, Contestant(f"{name} {knob}", call, kind.prepare)


def build(name: str, layer: Layer, vectors: NDArray[Any], root: Path, threads: int) -> list[dict[str, Any]]:
    """Everything of one layer, in its folder, and how often each answer is right."""
    vectors = np.random.default_rng(0).permutation(vectors)[: CALIBRATION + ASKED].astype(np.float32)
    calibration, hidden = vectors[:CALIBRATION], vectors[CALIBRATION:]
    folder = root / "".join(letter if letter.isalnum() else "-" for letter in name)
    folder.mkdir(parents=True, exist_ok=True)
    for ours, options in OURS.items():
        engine = hl.compile(layer, "cascade", calibration=calibration, eps=math.inf, threads=threads, **options)
        engine.save(folder / f"{ours}.safetensors")
    for index, kind in KINDS.items():
        kind.keep(layer, folder / index.replace(" ", "-"))
    np.save(folder / "hidden.npy", hidden[:TIMED])
    (folder / "name.txt").write_text(name, encoding="utf-8")
    return judged(name, layer, hidden, folder, threads)


def judged(name: str, layer: Layer, hidden: Floats, folder: Path, threads: int) -> list[dict[str, Any]]:
    """How many ids of each answer are right; an index may find fewer than were asked for."""
    weight, bias = layer.weight.astype(np.float64), np.zeros(layer.vocab) if layer.bias is None else layer.bias
    least = exact(layer, hidden, K).least
    found = []
    for contestant, knob, one in contestants(folder, layer.dim, threads):
        ids = np.full((len(hidden), K), -1, np.int64)
        for row, given in zip(ids, hidden, strict=True):
            answer = np.asarray(one.call(one.prepare(given[None]))).reshape(-1).astype(np.int64)
            row[: len(answer)] = answer
        logits = np.einsum("bkd,bd->bk", weight[ids], hidden.astype(np.float64)) + bias[ids]
        right = (ids >= 0) & (logits >= (least - TIE * (1 + np.abs(least)))[:, None])
        line = {"layer": name, "contestant": contestant, "knob": knob}
        found.append({**line, "recall": float(right.mean()), "whole": float(right.all(axis=1).mean())})
    return found


def timed(folder: Path, threads: int) -> list[dict[str, Any]]:
    """Medians of one query at a time."""
    hidden = np.load(folder / "hidden.npy")
    field = list(contestants(folder, hidden.shape[1], threads))
    loops = []
    for _, _, one in field:
        blocks, best = [one.prepare(row[None]) for row in hidden], []
        for _ in range(LOOPS):
            best += [measure.wall(one.call, block) for block in blocks]
        loops.append(statistics.median(best[len(blocks) :]))
    work = cold.OtherLayers(cold.LEAST)
    colds = cold.contest([one for *_, one in field], hidden, 1, ROUNDS, work)
    name = (folder / "name.txt").read_text(encoding="utf-8")
    found = []
    for (contestant, knob, _), loop, timing in zip(field, loops, colds, strict=True):
        line = {"layer": name, "contestant": contestant, "knob": knob}
        found.append({**line, "loop_us": 1e6 * loop, "cold_us": 1e6 * statistics.median(timing.seconds)})
    return found


def plot(path: Path, out: Path) -> None:
    """A figure a layer: the share of the ten ids that is missed, against microseconds of a cold call."""
    rows = [row for row in json.loads(path.read_text(encoding="utf-8"))["rows"] if "cold_us" in row]
    for number, layer in enumerate(sorted({row["layer"] for row in rows})):
        series = []
        for name in [*OURS, *KINDS]:
            own = [row for row in rows if (row["layer"], row["contestant"]) == (layer, name)]
            points = sorted(((row["cold_us"], max(1 - row["recall"], LEAST), row) for row in own), key=lambda point: point[:2])
            noted = tuple((x, y, f"{x:.0f} us, {row['recall']:.2%} of the ids, knob {row['knob']}") for x, y, row in points)
            series.append(Series(name, noted))
        names = ("microseconds of a cold call", "ids that are missed")
        svg = lines(f"{layer}: ten ids", series, (lambda us: f"{us:.0f}", lambda part: f"{part:.2%}"), names)
        (out / f"recall-curves-{number}.svg").write_text(standalone(svg, STYLE) + "\n", encoding="utf-8")


def write(new: list[dict[str, Any]], path: Path, threads: int) -> None:
    """The file with what is new in its rows."""
    known = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    rows = {(row["layer"], row["contestant"], row["knob"]): row for row in known}
    for row in new:
        key = (row["layer"], row["contestant"], row["knob"])
        rows[key] = rows.get(key, {}) | row
    facts = {"asked": ASKED, "calibrated_with": CALIBRATION, "timed": TIMED, "between two cold calls": f"{cold.LEAST} MB"}
    record = {"environment": measure.environment(threads), "facts": facts, "rows": list(rows.values())}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("build", "time", "plot"))
    parser.add_argument("sources", nargs="*", help="build: NAME LAYER HIDDEN...; plot: the folder of figures")
    parser.add_argument("--made", action="store_true", help="the two layers that benchmarks/blocks.py makes")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_intermixed_args()
    torch.set_num_threads(asked.threads)
    if asked.step == "plot":
        plot(asked.json, Path(asked.sources[0]))
    elif asked.step == "time":
        for folder in sorted(asked.folder.iterdir()):
            write(timed(folder, asked.threads), asked.json, asked.threads)
    elif asked.made:
        for name, (layer, vectors) in {"a recommender's, made": recommender(), "an LSTM's, made": recurrent()}.items():
            write(build(name, layer, vectors, asked.folder, asked.threads), asked.json, asked.threads)
    else:
        name, layer_file, *hidden = asked.sources
        vectors = np.concatenate([np.asarray(inputs.hidden(source)) for source in hidden])
        write(build(name, inputs.layer(layer_file), vectors, asked.folder, asked.threads), asked.json, asked.threads)


if __name__ == "__main__":
    main()
