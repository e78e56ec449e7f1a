"""Scores of a metric in twice float64's precision, and how near an engine's logits are to them.

::

    inner_product   <x, y>                                      of rows as they are
    cosine          <x, y> / (|x| |y|), 0 where a length is     ranked by rows / |y|, rounded to float32
    l2              -|x - y|^2                                  ranked by rows with the bias -|y|^2 / 2, rounded to float32

Greater is nearer. ``reach`` bounds a row's score by its logit, roundings of the layer's numbers and of the logit included.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headlong.arrays import Array
from headlong.dtypes import STORED, UNIT, Doubles
from headlong.errors import DtypeError, NonFiniteError
from headlong.layers.matrix import Layer
from headlong.store.checksum import PIECE

METRICS = ("inner_product", "cosine", "l2")
HALF = 2.0**-23
"""Twice what rounding to float32 takes of a number."""


LARGEST = float(np.finfo(np.float32).max)


class Piece(NamedTuple):
    """Some rows, the layer that ranks them, and the length of the longest."""

    metric: str
    rows: Array
    layer: Layer
    longest: float


def piece_of(rows: Array, metric: str, first: int = 0) -> Piece:
    """``rows [m, dim]``, the first of which is number ``first``."""
    if rows.dtype not in STORED:
        raise DtypeError(f"the items are {rows.dtype}; expected float32, float16 or bfloat16: convert them first")
    squares, directions = np.empty(len(rows)), None
    if metric == "cosine":
        directions = np.empty(rows.shape, np.float32)
    for some in steps(len(rows), rows.shape[1]):
        wide = rows[some].astype(np.float64)
        squares[some] = np.square(wide).sum(axis=1)
        if not np.isfinite(squares[some]).all():
            row = int(np.argmin(np.isfinite(squares[some])))
            raise NonFiniteError(f"row {first + some.start + row} of the items holds NaN or infinity; drop or repair it")
        if directions is not None:
            length = np.sqrt(squares[some])
            directions[some] = wide / np.where(length > 0, length, 1.0)[:, None]
    longest = float(np.sqrt(squares.max(initial=0.0)))
    if directions is not None:
        return Piece(metric, rows, Layer(directions), longest)
    if metric == "inner_product":
        return Piece(metric, rows, Layer(rows), longest)
    if longest**2 > LARGEST:
        row = first + int(np.argmax(squares))
        raise NonFiniteError(f"row {row:,} of the items is so long that its square is beyond float32; rescale the rows")
    return Piece(metric, rows, Layer(rows, (-0.5 * squares).astype(np.float32)), longest)


def scored(queries: Doubles, rows: Array, metric: str) -> Doubles:
    """``[n]``: of each query with the row at its place, to the last bit of float64 but for one, whatever the order of sums."""
    found = np.empty(len(queries))
    for some in steps(len(queries), queries.shape[1]):
        x, y = queries[some], rows[some].astype(np.float64)
        if metric == "l2":
            found[some] = -summed(np.square(x - y))
            continue
        found[some] = summed(x * y)
        if metric == "cosine":
            size = np.sqrt(summed(np.square(x))) * np.sqrt(summed(np.square(y)))
            found[some] = np.where(size > 0, found[some] / np.where(size > 0, size, 1.0), 0.0)
    return found


def reach(piece: Piece, queries: Doubles, logits: Doubles, worst: Doubles) -> Doubles:
    """``[n, m]``: scores that rows with the logits ``logits [n, m]`` do not exceed, if they exceed ``worst [n]`` at all."""
    own = np.sqrt(np.square(queries).sum(axis=1))[:, None]
    rounding = (queries.shape[1] + 16) * 2 * UNIT
    if piece.metric == "inner_product":
        return np.asarray(logits + rounding * own * piece.longest)
    if piece.metric == "cosine":
        return np.asarray((logits + (HALF + rounding) * own) / np.where(own > 0, own, 1.0))
    near = own + np.sqrt(np.maximum(0.0, -worst))[:, None]  # no row that is so near is longer than that
    length = np.minimum(piece.longest, near)
    lost = HALF * length**2 / 2 + rounding * (own + piece.longest) ** 2
    return np.asarray(2 * (logits + lost) - own**2)


def summed(terms: Doubles) -> Doubles:
    """``sum(terms, axis=-1)``, what each addition rounds off summed beside it."""
    lost = np.zeros(terms.shape[:-1])
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        a, b, left = terms[..., :half], terms[..., half : 2 * half], terms[..., 2 * half :]
        total = a + b
        moved = total - a
        lost += ((a - (total - moved)) + (b - moved)).sum(axis=-1)
        terms = np.concatenate([total, left], axis=-1) if left.shape[-1] else total
    return np.asarray((terms[..., 0] if terms.shape[-1] else np.zeros(terms.shape[:-1])) + lost)


def steps(count: int, width: int) -> list[slice]:
    """Runs of ``count`` rows of ``width`` numbers that float64 has room for in a few MB."""
    step = max(1, PIECE // 64 // max(1, width))
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]
