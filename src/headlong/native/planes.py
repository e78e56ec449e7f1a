"""int8 codes of rotated rows, as NumPy says it: the twin of ``plane`` in csrc/encode/kernels.inl."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array
from headlong.native.rows import int8_codes, int8_step
from headlong.native.types import Doubles, Floats

LANES = 16
"""Numbers that are summed up side by side: the order of every sum of a row, here and at every level of native code."""


def eight_bits(values: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """``u`` of ``scale * (u - 128)``, in float32."""
    scale = int8_step(largest_of(values))
    codes = int8_codes(values * _inverse(scale)[:, None]) + 128
    return codes.astype(np.uint8), scale


def _inverse(scale: Floats) -> Floats:
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)


def left_of(values: Floats) -> Doubles:
    """``‖values‖``, in float32 but where squares would underflow, and what rounding takes of it."""
    square = lane_sums(values * values).astype(np.float64)
    small = square < 1e-20
    square[small] = lane_sums(values[small].astype(np.float64) ** 2)
    return np.asarray(np.sqrt(square) * (1 + (values.shape[1] + 8) * 2.0**-24))


def lane_sums(values: Array) -> Array:
    """Sums of rows: entry j goes to lane j mod 16, and then the upper half of the lanes to the lower one, until one is left."""
    lanes = np.zeros((len(values), LANES), values.dtype)
    for start in range(0, values.shape[1], LANES):
        some = values[:, start : start + LANES]
        lanes[:, : some.shape[1]] += some
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def largest_of(values: Array) -> Array:
    return np.asarray(np.maximum(values.max(axis=1, initial=0.0), -values.min(axis=1, initial=0.0)))
