"""Distances of many rows at once, in pieces: what an index compares when an engine's few best are not enough.

::

    products    <x, y>                            distances    |x - y|^2 = |x|^2 - 2 <x, y> + |y|^2

Both are of float64 products. Where the sum of a distance cancels by more than float32 shows, it is that of differences. Of
a query's nearest rows those that roundings could put in another order are summed without any (``told_apart``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import Doubles
from headlong.randomness import stream

PIECE = 1 << 20
"""Numbers written out at once."""
LOST = 2.0**-46
"""What a sum of three float64 products can be off by, relative to the largest of them, for up to 2^20 coordinates."""


def products(queries: Doubles, rows: NDArray[Any]) -> Doubles:
    """``[n, m]``: every query with every row."""
    found = np.empty((len(queries), len(rows)))
    for some in pieces(len(rows), rows.shape[1]):
        found[:, some] = queries @ rows[some].astype(np.float64).T
    return found


def distances(queries: Doubles, rows: NDArray[Any]) -> Doubles:
    """``[n, m]`` squared."""
    own = np.square(queries).sum(1)[:, None]
    found = np.empty((len(queries), len(rows)))
    for some in pieces(len(rows), rows.shape[1]):
        wide = rows[some].astype(np.float64)
        theirs = np.square(wide).sum(1)
        found[:, some] = own - 2 * (queries @ wide.T) + theirs
        vague = np.nonzero(found[:, some] * 2.0**-25 < LOST * (own + theirs))
        for part in pieces(len(vague[0]), rows.shape[1]):
            query, row = vague[0][part], vague[1][part]
            found[query, some.start + row] = np.square(queries[query] - wide[row]).sum(1)
    return found


def distances_at(queries: Doubles, rows: NDArray[Any], places: NDArray[np.int64]) -> Doubles:
    """``[n, k]`` squared, of the rows at ``places [n, k]`` to their own query, from differences."""
    found = np.empty(places.shape)
    for some in pieces(len(queries), rows.shape[1] * max(1, places.shape[1])):
        found[some] = np.square(queries[some, None] - rows[places[some]].astype(np.float64)).sum(-1)
    return found


def told_apart(queries: Doubles, rows: NDArray[Any], places: NDArray[np.int64], found: Doubles) -> Doubles:
    """:func:`distances_at`, rounded once where two of a query's are so near that roundings may decide: rows whose coordinates
    change places are equally far."""
    order = np.argsort(found, axis=1)
    rising = np.take_along_axis(found, order, axis=1)
    lost = (queries.shape[1] + 4) * 2.0**-52
    close = rising[:, 1:] - rising[:, :-1] <= lost * rising[:, 1:]
    near = np.zeros(found.shape, bool)
    np.put_along_axis(near, order, np.pad(close, ((0, 0), (1, 0))) | np.pad(close, ((0, 0), (0, 1))), axis=1)
    exact = found.copy()
    for query in np.flatnonzero(near.any(axis=1)):
        exact[query, near[query]] = _exact(queries[query], rows[places[query, near[query]]], exact[query, near[query]])
    return exact


def nearest_of_all(query: Doubles, rows: NDArray[Any], among: NDArray[np.int64], k: int) -> tuple[Doubles, NDArray[np.int64]]:
    """The k nearest of the rows ``among``, ascending, and their squared distances ``[k]``: by what :func:`told_apart` says,
    equal ones by id."""
    found = np.empty(len(among))
    for some in pieces(len(among), rows.shape[1]):
        found[some] = distances_at(query[None], rows, among[None, some])[0]
    kth = np.partition(found, k - 1)[k - 1]
    near = np.flatnonzero(found <= kth * (1 + 4 * (len(query) + 4) * 2.0**-52))
    exact = told_apart(query[None], rows, among[None, near], found[None, near])[0]
    order = np.lexsort((near, exact))[:k]
    return exact[order], among[near[order]]


def _exact(query: Doubles, rows: NDArray[Any], found: Doubles) -> Doubles:
    """The distances rounded once, of each row that there are others than; ``found`` where all are the same row."""
    first, which = _alike(rows)
    if len(first) == 1:
        return found
    return np.array([_rounded_once(query, row) for row in rows[first].astype(np.float64)])[which]


def _alike(rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first row of each group of equal rows, and the group of each row: by a number that is made of all its words, where
    sorting whole rows looks at equal ones again and again."""
    words = np.ascontiguousarray(rows).view(f"u{rows.itemsize}")
    factors = stream("words of equal rows").integers(1, 2**63, rows.shape[1], np.uint64)
    parts = list(pieces(len(rows), rows.shape[1]))
    keys = np.concatenate([words[some].astype(np.uint64) @ factors for some in parts])
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    if any((words[some] != words[first[which[some]]]).any() for some in parts):  # one number for two rows
        _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return first, which.reshape(-1)


def _rounded_once(query: Doubles, row: Doubles) -> float:
    """Products of two float32 numbers are exact in float64."""
    return math.fsum(np.concatenate([query * query, -2 * query * row, row * row]).tolist())


def pieces(count: int, width: int) -> Iterator[slice]:
    """Runs of ``count`` that hold about ``PIECE`` numbers."""
    step = max(1, PIECE // max(1, width))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
