"""Approximate indexes as their authors recommend them: built once, kept in a file, asked at each value of a knob.

    largest <w, x>                   rows as they are, by inner product
    least |[w, rest] - [x, 0]|²      "lifted": rest = sqrt(max |w|² - |w|²) makes all rows as long as the longest, so that the
                                     nearest are those of the largest products; which way is faster depends on the rows

Biases are one more coordinate of a row, where a query has a 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import hnswlib
import numpy as np
from numpy.typing import NDArray
from usearch.index import Index

from headlong.bench.rivals.registry import with_bias, with_one
from headlong.layers.matrix import Layer

K = 10
VIEWS = (10, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
"""Neighbours in view of a graph's search."""
LISTS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Lists, or leaves, that are searched."""
SAMPLE = 1 << 20
"""Rows that ScaNN's leaves are found from; its authors take a fifth of a million."""
LIFTED = ", lifted"
Floats = NDArray[np.float32]


def lifted(rows: Floats) -> Floats:
    """One more coordinate, with which all rows have the length of the longest."""
    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    return np.column_stack([rows, np.sqrt(np.maximum(squares.max() - squares, 0)).astype(np.float32)])


class Kind(NamedTuple):
    """An index that is built once, kept in a file, and asked at each value of its knob."""

    build: Callable[[Floats, Path, bool], None]
    load: Callable[[Path, int, int, bool], Any]
    turn: Callable[[Any, int], None]
    ask: Callable[[Any, Floats], Any]
    knob: tuple[int, ...]
    lifted: bool = False

    def keep(self, layer: Layer, path: Path) -> None:
        rows = with_bias(layer)
        self.build(lifted(rows) if self.lifted else rows, path, self.lifted)

    def open(self, path: Path, dim: int, threads: int) -> Any:
        """``dim`` of the layer."""
        return self.load(path, dim + 1 + self.lifted, threads, self.lifted)

    def prepare(self, hidden: Any) -> Floats:
        wide = with_one(hidden)
        return np.pad(wide, ((0, 0), (0, 1))) if self.lifted else wide


def _hnswlib(rows: Floats, path: Path, near: bool, links: int = 32, view: int = 200) -> None:
    index = hnswlib.Index(space="l2" if near else "ip", dim=rows.shape[1])
    index.init_index(max_elements=len(rows), M=links, ef_construction=view, random_seed=0)
    index.add_items(rows)
    index.save_index(str(path))


def _load_hnswlib(path: Path, dim: int, threads: int, near: bool) -> Any:
    index = hnswlib.Index(space="l2" if near else "ip", dim=dim)
    index.load_index(str(path))
    index.set_num_threads(threads)
    return index


def _metric(near: bool) -> int:
    return int(faiss.METRIC_L2 if near else faiss.METRIC_INNER_PRODUCT)


def _faiss_hnsw(rows: Floats, path: Path, near: bool, links: int = 32, view: int = 200) -> None:
    index = faiss.IndexHNSWFlat(rows.shape[1], links, _metric(near))
    index.hnsw.efConstruction = view
    index.add(rows)
    faiss.write_index(index, str(path))


def _faiss_ivf(rows: Floats, path: Path, near: bool) -> None:
    dim = rows.shape[1]
    index = faiss.IndexIVFFlat(faiss.IndexFlat(dim, _metric(near)), dim, round(math.sqrt(len(rows))), _metric(near))
    index.train(rows)
    index.add(rows)
    faiss.write_index(index, str(path))


def _load_faiss(path: Path, dim: int, threads: int, near: bool) -> Any:
    faiss.omp_set_num_threads(threads)
    return faiss.read_index(str(path))


def _usearch(rows: Floats, path: Path, near: bool, links: int = 32, view: int = 200) -> None:
    metric = "l2sq" if near else "ip"
    index = Index(ndim=rows.shape[1], metric=metric, dtype="f32", connectivity=links, expansion_add=view)
    index.add(np.arange(len(rows)), rows)
    index.save(str(path))


def _load_usearch(path: Path, dim: int, threads: int, near: bool) -> Any:
    index = Index(ndim=dim, metric="l2sq" if near else "ip", dtype="f32")
    index.load(str(path))
    return index


def _scann(rows: Floats, path: Path, near: bool) -> None:
    import scann  # not on every machine

    leaves = round(math.sqrt(len(rows)))
    tree = {"num_leaves": leaves, "num_leaves_to_search": leaves, "training_sample_size": min(len(rows), SAMPLE)}
    builder = scann.scann_ops_pybind.builder(rows, K, "dot_product").tree(**tree)
    index = builder.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(20 * K).build()
    path.mkdir(exist_ok=True)
    index.serialize(str(path))


class Scann:
    """Leaves are an argument of its search."""

    def __init__(self, path: Path) -> None:
        import scann

        self.index, self.leaves = scann.scann_ops_pybind.load_searcher(str(path)), 1

    def search(self, hidden: Floats) -> Any:
        if len(hidden) > 1:
            return self.index.search_batched(hidden, final_num_neighbors=K, leaves_to_search=self.leaves)[0]
        return self.index.search(hidden[0], final_num_neighbors=K, leaves_to_search=self.leaves)[0][None]


def _attribute(name: str) -> Callable[[Any, int], None]:
    return lambda index, n: setattr(index, name, n)


def _faiss_ids(index: Any, x: Floats) -> Any:
    return index.search(x, K)[1]


_BY_PRODUCT = {
    "hnswlib": Kind(
        _hnswlib, _load_hnswlib, lambda index, n: index.set_ef(n), lambda index, x: index.knn_query(x, K)[0], VIEWS
    ),
    "faiss HNSW": Kind(_faiss_hnsw, _load_faiss, lambda index, n: setattr(index.hnsw, "efSearch", n), _faiss_ids, VIEWS),
    "faiss IVF": Kind(_faiss_ivf, _load_faiss, _attribute("nprobe"), _faiss_ids, LISTS),
    "usearch": Kind(_usearch, _load_usearch, _attribute("expansion_search"), lambda index, x: index.search(x, K).keys, VIEWS),
}
_SMALL = {"links": 16, "view": 100}
KINDS = {
    **_BY_PRODUCT,
    **{name + LIFTED: _BY_PRODUCT[name]._replace(lifted=True) for name in ("hnswlib", "faiss IVF")},
    "scann": Kind(_scann, lambda path, *_: Scann(path), _attribute("leaves"), lambda index, x: index.search(x), LISTS),
}
SMALL_GRAPHS = {
    "hnswlib, 16 links" + LIFTED: KINDS["hnswlib"]._replace(build=partial(_hnswlib, **_SMALL), lifted=True),
    "faiss HNSW, 16 links" + LIFTED: KINDS["faiss HNSW"]._replace(build=partial(_faiss_hnsw, **_SMALL), lifted=True),
    "usearch, 16 links": KINDS["usearch"]._replace(build=partial(_usearch, **_SMALL)),
    "usearch, 8 links": KINDS["usearch"]._replace(build=partial(_usearch, links=8, view=32)),
}
"""Graphs of half as many links, searched half as wide when they are built: a million rows take minutes instead of hours. Of ten
million rows one of a quarter as many."""
