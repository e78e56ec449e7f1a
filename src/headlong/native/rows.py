"""Passes over the rows of a layer: norms and products, each with its NumPy twin, and codes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array, round_up
from headlong.dtypes import Doubles, Floats
from headlong.native.instruction_level import REFERENCE, isa
from headlong.native.load_module import loaded
from headlong.packed_rows import stored_as
from headlong.plan import TILE

PIECE = 1 << 24
"""Bytes of float64 that a streaming pass holds at once."""


def row_norms(weight: Array, thread_count: int = 1) -> Floats:
    """``‖w_i‖`` rounded up, ``[vocab]``; NaN for a row that holds NaN or infinity."""
    if isa() != REFERENCE:
        norms: Floats = loaded().row_norms(*stored_as(weight), thread_count, isa())
        return norms
    norms = np.empty(len(weight), np.float32)
    for part, rows in _pieces(weight):
        with np.errstate(invalid="ignore"):
            size = np.sqrt((rows * rows).sum(axis=1))
        norms[part] = np.where(np.isfinite(rows).all(axis=1), round_up(size * (1 + 1e-12)), np.nan)
    return norms


def products(weight: Array, hidden: Doubles, thread_count: int = 1) -> Doubles:
    """``hidden @ weight.T`` in float64, ``[n, vocab]``, for a few vectors."""
    out = np.empty((len(hidden), len(weight)))
    if isa() == REFERENCE:
        for part, rows in _pieces(weight):
            out[:, part] = hidden @ rows.T
    else:
        wide = np.ascontiguousarray(hidden, np.float64)
        loaded().products_into(*stored_as(weight), wide, out, thread_count, isa())
    return out


def logits(weight: Array, bias: Floats | None, hidden: Doubles, thread_count: int = 1) -> Doubles:
    """All logits ``hidden @ weight.T + bias`` of a few vectors, in float64."""
    found = products(weight, hidden, thread_count)
    if bias is not None:
        found += bias
    return found


def _pieces(weight: Array) -> Iterator[tuple[slice, Doubles]]:
    """The rows as float64, some whole blocks at a time: no pass ever holds a wide copy of the layer."""
    step = max(1, PIECE // (8 * weight.shape[1] * TILE)) * TILE
    for start in range(0, len(weight), step):
        part = slice(start, min(start + step, len(weight)))
        yield part, weight[part].astype(np.float64)


def gumbels(seed: int, row: int, draws: range, ids: NDArray[np.int64]) -> Doubles:
    """``[draws, ids]``: the noise of each class, by ``(seed, row, draw, id)`` alone, as in ``engines/reference/gumbel.py``."""
    noise: Doubles = loaded().gumbels(seed, row, draws.start, len(draws), np.ascontiguousarray(ids, np.int64))
    return noise
