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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import hnswlib
import numpy as np
import scann
import torch
from blocks import recommender, recurrent
from numpy.typing import NDArray
from promises import exact
from usearch.index import Index

import headlong as hl
from headlong.bench import cold, measure
from headlong.bench.measure import Contestant
from headlong.bench.rivals.registry import with_bias, with_one
from headlong.cli import inputs
from headlong.layers.matrix import Layer
from headlong.report.page import STYLE
from headlong.report.plots import Series, lines, standalone

K, CALIBRATION, ASKED, TIMED = 10, 6000, 1000, 64
LOOPS, ROUNDS = 3, 24
TIE, LEAST = 1e-9, 1e-4
VIEWS = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
"""Neighbours in view of a graph's search."""
LISTS = (1, 2, 4, 8, 16, 32, 64)
"""Lists, or leaves, that are searched."""
OURS: dict[str, dict[str, Any]] = {
    "headlong, ids proved": {},
    "headlong, ids but for 0.01": {"delta_ids": 0.01, "over": ("query", "calibration")},
    "headlong, ids but for 0.05": {"delta_ids": 0.05, "over": ("query", "calibration")},
}
Floats = NDArray[np.float32]


class Kind(NamedTuple):
    """An index that is built once, kept in a file, and asked at each value of its knob."""

    build: Callable[[Floats, Path], None]
    load: Callable[[Path, int, int], Any]
    turn: Callable[[Any, int], None]
    ask: Callable[[Any, Floats], Any]
    knob: tuple[int, ...]


def _hnswlib(rows: Floats, path: Path) -> None:
    index = hnswlib.Index(space="ip", dim=rows.shape[1])
    index.init_index(max_elements=len(rows), M=32, ef_construction=200, random_seed=0)
    index.add_items(rows)
    index.save_index(str(path))


def _load_hnswlib(path: Path, dim: int, threads: int) -> Any:
    index = hnswlib.Index(space="ip", dim=dim)
    index.load_index(str(path))
    index.set_num_threads(threads)
    return index


def _faiss_hnsw(rows: Floats, path: Path) -> None:
    index = faiss.IndexHNSWFlat(rows.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = 200
    index.add(rows)
    faiss.write_index(index, str(path))


def _faiss_ivf(rows: Floats, path: Path) -> None:
    dim = rows.shape[1]
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, round(math.sqrt(len(rows))), faiss.METRIC_INNER_PRODUCT)
    index.train(rows)
    index.add(rows)
    faiss.write_index(index, str(path))


def _load_faiss(path: Path, dim: int, threads: int) -> Any:
    faiss.omp_set_num_threads(threads)
    return faiss.read_index(str(path))


def _usearch(rows: Floats, path: Path) -> None:
    index = Index(ndim=rows.shape[1], metric="ip", dtype="f32", connectivity=32, expansion_add=200)
    index.add(np.arange(len(rows)), rows)
    index.save(str(path))


def _load_usearch(path: Path, dim: int, threads: int) -> Any:
    index = Index(ndim=dim, metric="ip", dtype="f32", connectivity=32, expansion_add=200)
    index.load(str(path))
    return index


def _scann(rows: Floats, path: Path) -> None:
    leaves = round(math.sqrt(len(rows)))
    builder = scann.scann_ops_pybind.builder(rows, K, "dot_product").tree(leaves, leaves, training_sample_size=len(rows))
    index = builder.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(20 * K).build()
    path.mkdir(exist_ok=True)
    index.serialize(str(path))


class Scann:
    """Leaves are an argument of its search."""

    def __init__(self, path: Path) -> None:
        self.index, self.leaves = scann.scann_ops_pybind.load_searcher(str(path)), 1

    def search(self, hidden: Floats) -> Any:
        return self.index.search(hidden[0], final_num_neighbors=K, leaves_to_search=self.leaves)[0][None]


def _attribute(name: str) -> Callable[[Any, int], None]:
    return lambda index, n: setattr(index, name, n)


def _faiss_ids(index: Any, x: Floats) -> Any:
    return index.search(x, K)[1]


KINDS = {
    "hnswlib": Kind(
        _hnswlib, _load_hnswlib, lambda index, n: index.set_ef(n), lambda index, x: index.knn_query(x, K)[0], VIEWS
    ),
    "faiss HNSW": Kind(_faiss_hnsw, _load_faiss, lambda index, n: setattr(index.hnsw, "efSearch", n), _faiss_ids, VIEWS),
    "faiss IVF": Kind(_faiss_ivf, _load_faiss, _attribute("nprobe"), _faiss_ids, LISTS),
    "usearch": Kind(_usearch, _load_usearch, _attribute("expansion_search"), lambda index, x: index.search(x, K).keys, VIEWS),
    "scann": Kind(_scann, lambda path, *_: Scann(path), _attribute("leaves"), lambda index, x: index.search(x), LISTS),
}


def contestants(folder: Path, dim: int, threads: int) -> Iterator[tuple[str, int, Contestant]]:
    """What was built there, at each value of its knob."""
    for name in OURS:
        engine = hl.load(folder / f"{name}.safetensors", threads=threads)
        yield name, 0, Contestant(name, lambda x, engine=engine: engine.topk(x, K).ids)  # type: ignore[misc]
    for name, kind in KINDS.items():
        index = kind.load(folder / name.replace(" ", "-"), dim + 1, threads)
        for knob in kind.knob:

            def call(x: Floats, kind: Kind = kind, index: Any = index, knob: int = knob) -> Any:
                kind.turn(index, knob)
                return kind.ask(index, x)

            yield name, knob, Contestant(f"{name} {knob}", call, with_one)


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
        kind.build(with_bias(layer), folder / index.replace(" ", "-"))
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
    colds = cold.race([one for *_, one in field], hidden, 1, ROUNDS, work)
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
