"""From a layer to int8 codes in another basis: one pass over the rows, natively, or as NumPy says it.

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
from headlong.native import Doubles, Floats
from headlong.native.planes import eight_bits, lane_sums, largest_of, left_of
from headlong.plan import CLASS_BLOCK, interleave, padded
from headlong.previews.whitening import Basis, parts

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
    if native.isa() == native.REFERENCE:
        reference = _Reference(layer, basis, groups, units, columns, found)
        for part in parts(layer.weight):
            reference.take(part)
        return found
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


class _Reference:
    """The encoder in NumPy, some blocks of rows at a time."""

    def __init__(
        self, layer: Layer, basis: Basis, groups: Groups, units: list[float], columns: int, to: Encoded
    ) -> None:
        self.layer, self.basis, self.groups, self.units, self.columns = layer, basis, groups, units, columns
        self.to = to
        self.forth = np.ascontiguousarray(basis.back, np.float32)

    def take(self, part: slice) -> None:
        """The classes ``part``, whole blocks but for the last."""
        layer, to = self.layer, self.to
        rows = layer.weight[part] - self.basis.centre
        rotated = self._rotated(rows)
        base = lane_sums(rows * self.basis.mean)
        if layer.bias is not None:
            base = base + layer.bias[part]
        length = np.sqrt(lane_sums(rows * rows)) * (1 + 1e-12)
        with np.errstate(invalid="ignore"):
            within = largest_of(rotated[:, : self.columns]) <= MOST_NORM / layer.dim
            uncoded = ~(within & (length <= MOST_NORM) & (np.abs(base) <= LARGEST_BASE))
        rotated[uncoded], base[uncoded], length[uncoded] = 0.0, 0.0, 0.0
        to.uncoded[part], to.base[part], to.length[part] = uncoded, base, native.round_up(length)
        square = self._coded(part, rotated, length)
        to.size[part] = native.round_up(np.sqrt(square) * (1 + 1e-12))

    def _coded(self, part: slice, rotated: Floats, length: Doubles) -> Doubles:
        """Returns ``‖codes‖²``."""
        to, square, packed, scales = self.to, np.zeros(len(rotated)), [], []
        for g, group in enumerate(self.groups):
            left, size = np.ascontiguousarray(rotated[:, group.start : group.stop]), np.zeros(len(rotated))
            if group.coded:
                codes, scale = eight_bits(left)
                whole = codes.astype(np.float32) - 128
                rounding = np.float32(1 + (left.shape[1] + 8) * 2.0**-24)
                size = (scale * np.sqrt(lane_sums(whole * whole)) * rounding).astype(np.float64)
                left -= whole * scale[:, None]
                packed.append(interleave(codes))
                scales.append(scale)
            # The product with the basis, and what is left being rounded where codes were taken from it.
            rounded = self.units[g] * length + UNDERFLOWN + 2.0**-21 * size
            to.lost[g, part], to.rounded[g, part] = native.round_up(left_of(left)), native.round_up(rounded)
            square += size * size
        to.codes[part.start // CLASS_BLOCK : -(-part.stop // CLASS_BLOCK)] = np.concatenate(packed, axis=1)
        to.scale[:, part] = scales
        return square

    def _rotated(self, rows: Doubles) -> Floats:
        """``rows @ back`` in float32, of :data:`CHUNK` coordinates at a time."""
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = rows.astype(np.float32)
            rotated = narrow[:, :CHUNK] @ self.forth[:CHUNK]
            for start in range(CHUNK, rows.shape[1], CHUNK):
                rotated += narrow[:, start : start + CHUNK] @ self.forth[start : start + CHUNK]
        return rotated
