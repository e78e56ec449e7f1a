"""Distances of many rows at once, in pieces: what an index compares when an engine's few best are not enough.

::

    products    <x, y>                            distances    |x - y|^2 = |x|^2 - 2 <x, y> + |y|^2

Both are of float64 products. Where the sum of a distance cancels by more than float32 shows, it is that of differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
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


def pieces(count: int, width: int) -> Iterator[slice]:
    """Runs of ``count`` that hold about ``PIECE`` numbers."""
    step = max(1, PIECE // max(1, width))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
