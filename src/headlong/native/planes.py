"""The codes of one plane of rotated rows, as NumPy says it: the twin of ``plane`` in csrc/encode/kernels.inl.

A plane is ``(bits, step)``; ``previews/encode.py`` says what the steps are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array
from headlong.native.rows import int8_codes, int8_step
from headlong.native.types import Doubles, Floats
from headlong.plan import pack

STEPS = {1: 2.0, 2: 0.9957, 4: 0.3352}
"""The best uniform step for a Gaussian, in standard deviations; a row's scale is fitted afterwards."""

LANES = 16
"""Numbers that are summed up side by side: the order of every sum of a row, here and at every level of native code."""

Plane = tuple[int, str]


def take_plane(left: Floats, plane: Plane, before: Floats) -> tuple[NDArray[np.uint8], Floats, Doubles]:
    """Packed codes of ``left [n, count]``, which become what they leave; their scales, given those of the plane before, and
    ``‖scale * code‖``."""
    bits, step = plane
    codes, scale = eight_bits(left) if bits == 8 else few_bits(left, bits, step, before)
    whole = codes.astype(np.float32) - 128 if bits == 8 else 2 * codes.astype(np.float32) - (2**bits - 1)
    size = scale * np.sqrt(lane_sums(whole * whole)) * np.float32(1 + (left.shape[1] + 8) * 2.0**-24)
    whole *= scale[:, None]
    left -= whole
    return pack(codes, bits), scale, size.astype(np.float64)


def eight_bits(values: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """``u`` of ``scale * (u - 128)``, in float32."""
    scale = int8_step(largest_of(values))
    codes = int8_codes(values * _inverse(scale)[:, None]) + 128
    return codes.astype(np.uint8), scale


def _inverse(scale: Floats) -> Floats:
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)


def few_bits(values: Floats, bits: int, step: str, before: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """``u`` of ``scale * (2 u - 2^bits + 1)``."""
    half = 2 ** (bits - 1)
    if step == "gaussian":
        with np.errstate(over="ignore", invalid="ignore"):
            size = np.asarray(np.sqrt(lane_sums(values * values) / np.float32(values.shape[1])), np.float32)
        usable = (size > 1e-30) & (size < 1e30)
        wide = STEPS[bits] * size
    else:
        scale = np.asarray((largest_of(values) if step == "upper" else before) * np.float32(2.0**-bits), np.float32)
        usable = scale >= 1e-35
        wide = 2 * scale
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        codes = values * np.where(usable, 1 / wide, 0).astype(np.float32)[:, None]
    codes = np.minimum(np.maximum(codes, -half) + half, 2 * half - np.float32(0.5)).astype(np.uint8)
    if step == "gaussian":
        whole = 2 * codes.astype(np.float32) - (2 * half - 1)
        scale = np.asarray(lane_sums(values * whole) / lane_sums(whole * whole), np.float32)
        usable &= scale > 1e-35
    return codes, np.where(usable, scale, 0).astype(np.float32)


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


def norm_of(values: Array) -> Doubles:
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", values, values, dtype=np.float64)), np.float64)


def largest_of(values: Array) -> Array:
    return np.asarray(np.maximum(values.max(axis=1, initial=0.0), -values.min(axis=1, initial=0.0)))
