"""How far the estimates of all classes are off as one vector, which the sum of their exponentials follows.

    E = rows as they are - what is read of them,  ‖E‖ = sqrt(largest eigenvalue of E^T E):  |sum_i p_i <E_i, x>| <= ‖p‖ ‖E‖ ‖x‖

Each class alone may be off by ``‖E_i‖ ‖x‖``. But the errors of codes are nearly uncorrelated, and for weights p that are spread
over many classes their sum is a small part of that. This is no estimate: it holds for every x and every p. Normalisers are
proved by it in ``csrc/normaliser/joint_error.cpp``.

E^T E is summed up in float64 from products in float32 of :data:`AT_ONCE` rows, whose rounding is added to the result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headlong.native import Doubles
from headlong.plan import CLASS_BLOCK, Level, deinterleave, in_bytes

AT_ONCE = 512
"""Rows whose products are added up in float32: whole blocks of classes."""
MOST_PRODUCTS = 2.0**38
"""Multiplications that compiling may spend on this: a few seconds. Larger layers go without."""
FLUSHED = 2.0**-60
"""Of an entry: what products in float32 may lose by flushing small ones towards zero."""


def spectral_norm(vocab: int, dim: int, errors: Callable[[slice], Doubles], uncoded: NDArray[np.bool_]) -> float:
    """No less than ``‖E‖``; 0 where that is not to be had.

    ``errors(part)``  E of the classes of a slice, ``[n, dim]`` in float64
    ``uncoded``       ``[padded]``: classes of which nothing is known have no part in this
    """
    if float(vocab) * dim * dim > MOST_PRODUCTS:
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


def decoded(level: Level, part: slice) -> Doubles:
    """What the codes of an interleaved level of one segment mean, ``[n, dim]``; ``part`` begins with a block."""
    ((start, stop),) = level.layout
    blocks = level.codes[part.start // CLASS_BLOCK : -(-part.stop // CLASS_BLOCK)]
    rows = deinterleave(in_bytes(blocks, stop - start), part.stop - part.start)[:, : stop - start]
    assert level.scale is not None
    return (rows.astype(np.float64) - 128) * level.scale[0, part].astype(np.float64)[:, None]
