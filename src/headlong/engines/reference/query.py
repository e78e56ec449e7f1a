"""Exact logits in NumPy: one query, the classes that are there, and what is known of their logits.

The NumPy twin of ``csrc/executor``, for reading and for checking it. The questions (top-k, normaliser, samples) are in
``rows.py``. Everything is float64 and whole-vocabulary arrays; nothing here is meant to be fast.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import pieces
from headlong.dtypes import UNIT, Doubles, Flags, Ids
from headlong.links import Link
from headlong.plan import Preview


class Matrix(NamedTuple):
    """What a query reads: the stored rows, how the logits become log-probabilities, and a published method's preview.

    ``weight [vocab, dim]`` as stored, ``bias [vocab]`` or None, ``norms [vocab]`` ‖w_i‖ rounded up.
    """

    weight: NDArray[Any]
    bias: NDArray[np.float32] | None
    norms: NDArray[np.float32]
    link: Link
    preview: Preview | None = None


class Query:
    """One hidden vector against one matrix, restricted to the ``live`` classes.

    ``logits [vocab]``  exact, or what a preview takes for them; ``within``: the classes that a top-k is chosen from
    """

    def __init__(self, matrix: Matrix, hidden: Doubles, live: Flags, k: int) -> None:
        self.matrix, self.hidden, self.live, self.within = matrix, hidden, live, live
        vocab, dim = matrix.weight.shape
        everything, row_bytes = np.arange(vocab), dim * matrix.weight.itemsize
        self.proves = matrix.preview is None
        self.rounding: Doubles = rounding(matrix, hidden)
        if matrix.preview is None:
            self.logits = np.full(vocab, -np.inf)
            self.logits[live] = logits(matrix, hidden, everything[live])
            self.rows = int(live.sum())
            self.bytes = float(self.rows * row_bytes)
            return
        rotation, columns, base, rows = matrix.preview
        x = hidden @ rotation.astype(np.float64)
        self.logits = np.where(live, base[:vocab] + columns.astype(np.float64) @ x, -np.inf)
        best = np.argsort(-self.logits, kind="stable")[: max(rows, k)]
        best = best[live[best]]
        self.logits[best] = logits(matrix, hidden, best)
        self.within = np.isin(everything, best)
        self.rows, self.bytes = len(best), float(columns.nbytes + rotation.nbytes + len(best) * row_bytes)

    def exponents(self, temperature: float = 1.0) -> Doubles:
        """``link(z) / temperature`` of all classes; -inf for those that are not there."""
        return np.where(self.live, self.matrix.link(np.where(self.live, self.logits, 0.0)) / temperature, -np.inf)


def logits(matrix: Matrix, hidden: Doubles, ids: Ids) -> Doubles:
    """The exact logits of ``ids``."""
    values = np.empty(len(ids))
    for part in pieces(len(ids), matrix.weight.shape[1]):
        with np.errstate(invalid="ignore"):
            values[part] = dots(matrix.weight[ids[part]], hidden)
    if matrix.bias is not None:
        values += matrix.bias[ids].astype(np.float64)
    values[~np.isfinite(values)] = -math.inf  # rows damaged since their norms were taken are no rivals, and order like others
    return values


def rounding(matrix: Matrix, hidden: Doubles) -> Doubles:
    """How far the float64 logit of each class can be from the real number."""
    dim = matrix.weight.shape[1]
    norms = np.minimum(matrix.norms.astype(np.float64), math.sqrt(dim) * float(np.finfo(np.float32).max))
    bias = 0.0 if matrix.bias is None else np.abs(matrix.bias.astype(np.float64))
    return np.asarray((dim + 4) * UNIT * (norms * float(np.linalg.norm(hidden)) + bias))


def ordered(matrix: Matrix, hidden: Doubles, ids: Ids, values: Doubles, k: int) -> tuple[Ids, Doubles]:
    """``ids`` and their logits, the first ``k`` of them largest first, equal ones by id.

    Logits that are closer than sums may be off are summed again without rounding, and rounded once, as in
    ``csrc/executor/true_order.h``.
    """
    off = 2 * float(rounding(matrix, hidden)[ids].max(initial=0.0))
    order = np.lexsort((ids, -values))
    ids, values = ids[order], values[order]
    with np.errstate(invalid="ignore"):  # of classes that are not there
        starts = np.flatnonzero(np.concatenate([[True], values[:-1] - values[1:] > off]))
    for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
        if start < k and stop > start + 1 and np.isfinite(values[start]):
            run, exact = ids[start:stop], unrounded(matrix, hidden, ids[start:stop])
            order = np.lexsort((run, -exact))
            ids[start:stop], values[start:stop] = run[order], exact[order]
    return ids, values


def unrounded(matrix: Matrix, hidden: Doubles, ids: Ids) -> Doubles:
    """The logits of ``ids`` as real numbers, rounded once. Equal rows are summed once."""
    high = (hidden.view(np.uint64) & ~np.uint64(2**27 - 1)).view(np.float64)  # 26 bits, and 27: products with a row are exact
    factors, known = np.concatenate([high, hidden - high]), dict[bytes, float]()
    values = np.empty(len(ids))
    for place, one in enumerate(ids):
        bias = 0.0 if matrix.bias is None else float(matrix.bias[one])
        row = matrix.weight[one]
        key = row.tobytes() + struct.pack("d", bias)
        if key not in known:
            known[key] = math.fsum([*(np.tile(row.astype(np.float64), 2) * factors).tolist(), bias])
        values[place] = known[key]
    return values


def dots(rows: NDArray[Any], hidden: Doubles) -> Doubles:
    """``rows @ hidden``. The products of float32 and float32 are exact in float64; sums round, from the smallest term up,
    so that rows with the same terms tie. In a matrix product not even equal rows would."""
    return np.asarray(np.sort(rows.astype(np.float64) * hidden, axis=1).sum(axis=1))
