"""How far the estimates of all classes are off as one vector, which the sum of their exponentials follows.

    E = rows as they are - what is read of them,  ‖E‖ = sqrt(largest eigenvalue of E^T E):  |sum_i p_i <E_i, x>| <= ‖p‖ ‖E‖ ‖x‖

Each class alone may be off by ``‖E_i‖ ‖x‖``. But the errors of codes are nearly uncorrelated, and for weights p that are spread
over many classes their sum is a small part of that. This is no estimate: it holds for every x and every p. Normalisers are
proved by it in ``csrc/normaliser/joint_error.cpp``.

E^T E is summed up in float64 from products in float32 of :data:`AT_ONCE` rows, whose rounding is added to the result. Of
rows in another basis the encoder does it (``encode.py``), while it has them: of what codes leave, or of all where none are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headlong.native import Doubles
from headlong.plan import CLASS_BLOCK, Level, row_bytes, unpack

AT_ONCE = 512
"""Rows whose products are added up in float32: whole blocks of classes, as in csrc/encode/grams.h."""
MOST_PRODUCTS = 2.0**38
"""Multiplications that compiling may spend on this: a few seconds. Larger layers go without."""
ROUNDS = 8
"""Powers that tell about how large a norm is."""
FLUSHED = 2.0**-60
"""Of an entry: what products in float32 may lose by flushing small ones towards zero."""


def spectral_norm(vocab: int, dim: int, errors: Callable[[slice], Doubles], uncoded: NDArray[np.bool_]) -> float:
    """No less than ``‖E‖``; 0 where that is not to be had.

    ``errors(part)``  E of the classes of a slice, ``[n, dim]`` in float64
    ``uncoded``       ``[padded]``: classes of which nothing is known have no part in this
    """
    if not affordable(vocab, dim * dim):
        return 0.0
    gram = np.zeros((dim, dim))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for first in range(0, vocab, AT_ONCE):
            part = slice(first, min(first + AT_ONCE, vocab))
            rows = errors(part).astype(np.float32)
            rows[uncoded[part]] = 0.0
            gram += rows.T @ rows
    return bounded(gram, vocab)


def bounded(gram: Doubles, vocab: int) -> float:
    """No less than ``‖E‖``, from ``E^T E`` as it is summed up: the root of the largest eigenvalue that a matrix so far from
    ``gram`` may have; 0 where that is not to be had."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares, dim, rounding = float(np.trace(gram)), len(gram), (AT_ONCE + 8) * 2.0**-24
        rounded = rounding / (1 - rounding) * squares
        if not (np.isfinite(rounded) and np.isfinite(gram).all()):
            return 0.0
    largest = max(float(np.linalg.eigvalsh(gram)[-1]), 0.0)
    rounded += dim * 2.0**-48 * squares
    return float(np.sqrt(largest + rounded)) * (1 + 2.0**-20) + FLUSHED * float(np.sqrt(vocab * dim))


def about_norm(rows: Doubles) -> float:
    """About ``‖rows‖``, for choices: from the longest row on, by powers."""
    along = rows[np.einsum("ij,ij->i", rows, rows).argmax()]
    for _ in range(ROUNDS):
        size = float(np.linalg.norm(along))
        if not 0 < size < np.inf:
            return size
        along = (along / size) @ rows.T @ rows
    return float(np.sqrt(np.linalg.norm(along)))


def affordable(vocab: int, squares: int) -> bool:
    """Whether products of ``squares`` pairs of coordinates are summed up over all classes."""
    return float(vocab) * squares <= MOST_PRODUCTS


def decoded(level: Level, segment: int, part: slice) -> Doubles:
    """What the codes of one segment of an interleaved level mean, ``[n, stop - start]``; ``part`` begins with a block."""
    sizes = [-(-row_bytes(stop, bits, start) // 4) for start, stop, bits in level.layout]
    begin, (start, stop, bits) = sum(sizes[:segment]), level.layout[segment]
    blocks = level.codes[part.start // CLASS_BLOCK : -(-part.stop // CLASS_BLOCK), begin : begin + sizes[segment]]
    packed = np.ascontiguousarray(blocks.transpose(0, 2, 1, 3)).reshape(-1, 4 * sizes[segment])
    assert level.scale is not None
    return unpack(packed[: part.stop - part.start], bits, stop - start) * level.scale[segment, part].astype(np.float64)[:, None]
