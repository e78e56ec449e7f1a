"""FEXIPRO's and MAXIMUS's exact searches, and LEMP by its authors' library: what exact_search.py measures.

::

    index = Fexipro(rows, k); ids, scored, read = index.ask(query)

``rows [vocab, dim]`` and ``query [dim]`` hold the bias as their last coordinate. The searches are in
``kernels/exact_search.cpp``, which says what they compute and where it was published; here is what they prepare.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

KERNEL = Path(__file__).parent / "kernels/exact_search.cpp"
FAST = ("-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math")
FLAGS = ["-std=c++17", "-O3", "-march=native", *FAST, "-shared", "-fPIC"]
HEAD, UNITS = 0.7, 100
"""FEXIPRO's share of the singular values' sum in the head, and units of a coordinate: its authors' values."""
UP, PASSES = 1 + 2.0**-20, 10
ANGLE, ROOM = 1e-6, 2.0**-20
"""For rounding: radians, and of a length."""
AT_ONCE = 1 << 16
Floats = NDArray[np.float32]
Answer = tuple[NDArray[np.int64], int, int | None]
"""Ids, rows that were scored, bytes that were read where that is known."""


class Rows(ctypes.Structure):
    """As in the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rows", "heads", "head_codes", "rest_codes", "head_sums", "rest_sums")),
        *((name, ctypes.c_void_p) for name in ("lengths", "rests", "ids", "turn")),
        *((name, ctypes.c_int64) for name in ("vocab", "dim", "head")),
        *((name, ctypes.c_double) for name in ("head_unit", "rest_unit")),
    )


class Lists(ctypes.Structure):
    """As in the kernel."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rows", "centres", "widest", "bounds", "order")),
        *((name, ctypes.c_int64) for name in ("vocab", "dim", "clusters")),
    )


@cache
def kernel() -> Any:
    """Built for this machine by its C++ compiler."""
    with tempfile.TemporaryDirectory() as folder:
        made = str(Path(folder) / "exact_search.so")
        subprocess.run(["c++", *FLAGS, str(KERNEL), "-o", made], check=True)
        found = ctypes.CDLL(made)
    found.fexipro.restype = found.maximus.restype = ctypes.c_int64
    return found


def at(array: NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def lengths_of(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Some rows at a time, so that few are there in float64."""
    parts = (rows[start : start + AT_ONCE].astype(np.float64) for start in range(0, len(rows), AT_ONCE))
    return np.concatenate([np.linalg.norm(part, axis=1) for part in parts])


def coded(values: NDArray[np.float64]) -> tuple[NDArray[np.int8], NDArray[np.int32], float]:
    """``|value - unit * code| < unit``, with the value's sign; the sums of ``|code| + 1``; the unit."""
    unit = max(float(np.abs(values).max()), 1e-30) / UNITS
    codes = (values / unit).astype(np.int8)  # whole parts
    return codes, np.abs(codes).sum(axis=1, dtype=np.int32) + np.int32(values.shape[1]), unit


class Asked:
    """A search of the kernel over what was prepared for it."""

    def __init__(self, name: str, prepared: ctypes.Structure, k: int) -> None:
        self.search, self.prepared, self.k = getattr(kernel(), name), prepared, k
        self.whole = ctypes.byref(prepared)

    def __call__(self, query: Floats) -> Answer:
        ids, read = np.full(self.k, -1, np.int64), ctypes.c_int64()
        scored = self.search(self.whole, at(query), self.k, at(ids), ctypes.byref(read))
        return ids, int(scored), read.value


class Fexipro:
    """Rows rotated by their singular vectors, each coordinate of a row over its singular value, a query's times it."""

    def __init__(self, rows: Floats, k: int) -> None:
        vocab, dim = rows.shape
        gram = sum(part.T @ part for part in (rows[i : i + AT_ONCE].astype(np.float64) for i in range(0, vocab, AT_ONCE)))
        squares, turn = np.linalg.eigh(np.asarray(gram))
        values = np.sqrt(np.maximum(squares[::-1], squares[-1] * 1e-12))
        down, turn_and_scale = turn[:, ::-1] / values, np.ascontiguousarray(turn[:, ::-1] * values)
        head = min(int(np.searchsorted(np.cumsum(values), HEAD * values.sum())) + 1, dim - 1)
        lengths = (lengths_of(rows) * UP).astype(np.float32)
        order = np.argsort(-lengths, kind="stable").astype(np.int64)
        rows = np.ascontiguousarray(rows[order])
        rotated = np.concatenate([rows[i : i + AT_ONCE] @ down for i in range(0, vocab, AT_ONCE)])
        codes, sums, unit = coded(rotated[:, :head])
        rest_codes, rest_sums, rest_unit = coded(rotated[:, head:])
        rests = (np.linalg.norm(rotated[:, head:], axis=1) * UP).astype(np.float32)
        heads = rotated[:, :head].astype(np.float32)
        self.kept = (rows, heads, codes, rest_codes, sums, rest_sums, lengths[order], rests, order, turn_and_scale)
        self.asked = Asked("fexipro", Rows(*(at(part) for part in self.kept), vocab, dim, head, unit, rest_unit), k)

    def ask(self, query: Floats) -> Answer:
        return self.asked(query)


class Maximus:
    """A list of all rows for each cluster of the queries, ``users [n, dim]``; a query that is none of them reads every row
    where it is further from its centre than they are."""

    def __init__(self, rows: Floats, k: int, users: Floats, clusters: int) -> None:
        rows = np.ascontiguousarray(rows)
        centres, widest = gathered(users, clusters)
        lengths = lengths_of(rows)
        order, bounds = np.empty((clusters, len(rows)), np.int32), np.empty((clusters, len(rows)), np.float32)
        for cluster, (centre, angle) in enumerate(zip(centres, widest, strict=True)):
            away = np.arccos(np.clip(rows @ centre / np.maximum(lengths, 1e-30), -1, 1))
            most = lengths * (np.cos(np.maximum(0, away - angle - ANGLE)) + ROOM)
            order[cluster] = np.argsort(-most, kind="stable")
            bounds[cluster] = most[order[cluster]]
        self.kept = (rows, centres, widest, bounds, order)
        self.asked = Asked("maximus", Lists(*(at(part) for part in self.kept), *rows.shape, clusters), k)

    def ask(self, query: Floats) -> Answer:
        return self.asked(query)


def gathered(users: Floats, clusters: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Directions of clusters of vectors of length one, by k-means, and the widest angle of each."""
    ones = users / lengths_of(users)[:, None]
    centres = ones[np.random.default_rng(0).choice(len(ones), clusters, replace=False)]
    for _ in range(PASSES):
        home = (ones @ centres.T).argmax(axis=1)
        sums = np.zeros_like(centres)
        np.add.at(sums, home, ones)
        some = np.linalg.norm(sums, axis=1) > 0
        centres[some] = sums[some] / np.linalg.norm(sums[some], axis=1)[:, None]
    near = ones @ centres.T
    angles = np.arccos(np.clip(near.max(axis=1), -1, 1))
    widest = np.zeros(clusters)
    np.maximum.at(widest, near.argmax(axis=1), angles)
    return np.ascontiguousarray(centres), widest + ANGLE / 2


class Lemp:
    """LEMP-LI, its authors' best exact method, tuned on vectors; in a library that ``kernels/lemp_calls.cpp`` was built to."""

    def __init__(self, rows: Floats, k: int, library: Path, vectors: Floats, cache_kib: int = 1024) -> None:
        self.k, self.calls = k, ctypes.CDLL(str(library))
        self.calls.lemp_open.restype, self.calls.lemp_ask.restype = ctypes.c_void_p, ctypes.c_int64
        rows = np.ascontiguousarray(rows, np.float32)
        sizes = [ctypes.c_int64(size) for size in rows.shape]
        self.opened = ctypes.c_void_p(self.calls.lemp_open(at(rows), *sizes, k, cache_kib))
        self.together(vectors)

    def together(self, queries: Floats) -> tuple[NDArray[np.int64], int, float]:
        """All queries at once: ids ``[queries, k]``, rows of all, and its own seconds of searching."""
        queries = np.ascontiguousarray(queries)
        ids, seconds = np.full((len(queries), self.k), -1, np.int64), ctypes.c_double()
        sizes = [ctypes.c_int64(size) for size in queries.shape]
        scored = self.calls.lemp_ask(self.opened, at(queries), *sizes, self.k, at(ids), ctypes.byref(seconds))
        return ids, int(scored), seconds.value

    def ask(self, query: Floats) -> Answer:
        ids, scored, _ = self.together(query[None])
        return ids[0], scored, None


def with_one(queries: Floats) -> Floats:
    """``[queries, 1]``: the half of the bias."""
    return np.ascontiguousarray(np.column_stack([queries, np.ones(len(queries), np.float32)]), np.float32)


def counted(index: Any, queries: Sequence[Floats]) -> tuple[NDArray[np.int64], list[int], list[int | None]]:
    """Ids of all queries, each alone; rows and bytes of each."""
    answers = [index.ask(query) for query in queries]
    return np.stack([one[0] for one in answers]), [one[1] for one in answers], [one[2] for one in answers]
