"""From a layer to int8 codes in another basis: one native pass over the rows.

    B_i = (w_i - centre) back         float32, :data:`CHUNK` coordinates added up at once; off by unit_g ‖w_i - centre‖ at most
    B_i[g] = scale code + what is lost                   of a group of coordinates; scale = max|B_i[g]| / 127, as everywhere
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.arrays import large_empty
from headlong.layers.matrix import Layer
from headlong.native import Floats
from headlong.plan import CLASS_BLOCK, padded
from headlong.previews.whitening import Basis

MOST_NORM = 2.0**60
"""Largest row that is coded: with queries up to the same norm, float32 estimates stay far from overflow."""
LARGEST_BASE = 2.0**100
CHUNK = 128
"""Coordinates that a product in float32 adds up in one go."""
UNDERFLOWN = 2.0**-120
"""More than what float32 flushes towards zero in a product of a row with the basis, as a length."""


class Group(NamedTuple):
    """The coordinates ``[start, stop)`` of the basis; not ``coded``: a norm alone is kept."""

    start: int
    stop: int
    coded: bool


Groups = tuple[Group, ...]


class Encoded(NamedTuple):
    """Codes, and per class, padded to whole blocks, what they are and lose, rounded up.

    ``codes, scale``            of the coded groups: ``[blocks, words, 64, 4]``, ``[coded groups, padded]``
    ``lost, rounded``           ``[groups, padded]``: ‖what codes leave‖, and what rounding adds to that
    ``size``                    ``[padded]``: ‖scale * code‖
    ``base, length``            ``[padded]``: bias + <w - centre, mean>, to the nearest; ‖w - centre‖
    ``uncoded``                 rows out of float32's reach, taken for zero here: they are to be scored whatever comes
    """

    codes: NDArray[np.uint8]
    scale: Floats
    lost: Floats
    rounded: Floats
    size: Floats
    base: Floats
    length: Floats
    uncoded: NDArray[np.bool_]


def encode(layer: Layer, basis: Basis, groups: Groups, threads: int = 1) -> Encoded:
    """The codes of all rows. Only the coordinates that there are groups of are rotated."""
    found, units = _places(layer, groups), _units(layer, basis, groups)
    columns = max(group.stop for group in groups)
    native.encode_into(
        layer.weight, layer.bias, basis.centre, basis.mean, np.ascontiguousarray(basis.back, np.float32), columns,
        [(*group[:2], unit, group.coded) for group, unit in zip(groups, units, strict=True)], found,
        (MOST_NORM / layer.dim, MOST_NORM, LARGEST_BASE, UNDERFLOWN), threads,
    )  # fmt: skip
    return found


def sum_up(a: Floats, b: Floats) -> Floats:
    """No less than ``a + b``."""
    return np.asarray((a + b) * np.float32(1 + 2.0**-22))


def _places(layer: Layer, groups: Groups) -> Encoded:
    count = padded(layer.vocab)
    words = [-(-(group.stop - group.start) // 4) for group in groups if group.coded]
    codes = large_empty((count // CLASS_BLOCK, sum(words), CLASS_BLOCK, 4))
    lost, rounded = np.zeros((2, len(groups), count), np.float32)
    size, base, length = np.zeros((3, count), np.float32)
    return Encoded(codes, np.zeros((len(words), count), np.float32), lost, rounded, size, base, length, np.zeros(count, bool))


def _units(layer: Layer, basis: Basis, groups: Groups) -> list[float]:
    """What rounding takes of the rotated coordinates of each group at most, over the length of the row."""
    unit = (min(layer.dim, CHUNK) + -(-layer.dim // CHUNK) + 16) * 2.0**-24
    return [unit * float(np.linalg.norm(basis.back[:, group.start : group.stop])) for group in groups]
