"""From a layer to codes in another basis: one pass over the rows, natively, or as NumPy says it.

    B_i = (w_i - centre) back         float32, :data:`CHUNK` coordinates added up at once; off by unit_g ‖w_i - centre‖ at most
    B_i[g] = scale code + ... + rest  plane after plane, each coding what the ones before left of the coordinates of a group

Coarse planes are read for all classes, fine ones for those that stay open. A plane is ``(bits, step)``:

    "absmax"    8 bits, ``max|B| / 127``, as everywhere
    "gaussian"  the best uniform step for a Gaussian of the row's size (Max 1960), and then the best scale for those codes
    "upper"     cells, ``max|B| 2^(1 - bits)`` wide, that hold every entry, so that a plane behind it with
    "lower"     cuts each cell into ``2^bits``: both are the halves of one longer code
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.arrays import large_empty
from headlong.layers.matrix import Layer
from headlong.native import Doubles, Floats
from headlong.native.planes import Plane, lane_sums, largest_of, left_of, take_plane
from headlong.plan import CLASS_BLOCK, interleave, padded, row_bytes
from headlong.previews.int8 import LARGEST_BASE, MOST_NORM
from headlong.previews.joint_error import AT_ONCE
from headlong.previews.whitening import Basis, parts

CHUNK = 128
"""Coordinates that a product in float32 adds up in one go."""
UNDERFLOWN = 2.0**-120
"""More than what float32 flushes towards zero in a product of a row with the basis, as a length."""


class Group(NamedTuple):
    """The coordinates ``[start, stop)`` of the basis and the planes that code them; none: a norm alone is kept."""

    start: int
    stop: int
    planes: tuple[Plane, ...]

    @property
    def layout(self) -> tuple[tuple[int, int, int], ...]:
        return tuple((self.start, self.stop, bits) for bits, _ in self.planes)


class Groups(NamedTuple):
    """All coordinates in coarse groups; each fine one is made of whole coarse ones, and codes what those leave. ``joint``: the
    products of what coarse planes leave are summed up over all rows, too."""

    coarse: tuple[Group, ...]
    fine: tuple[Group, ...]
    joint: bool = False

    def cover(self, group: Group) -> int:
        """Which fine group a coarse one is a part of; -1: none."""
        return next((f for f, fine in enumerate(self.fine) if fine.start <= group.start and group.stop <= fine.stop), -1)

    def grams(self, flat: Doubles) -> list[Doubles]:
        """``E^T E`` of every coarse group, from where the encoder left them."""
        sizes = [group.stop - group.start for group in self.coarse]
        ends = np.cumsum([0, *(size * size for size in sizes)])
        return [flat[at : at + size * size].reshape(size, size) for at, size in zip(ends[:-1], sizes, strict=True)]


class Encoded(NamedTuple):
    """Codes, and per class, padded to whole blocks, what they are and lose, rounded up.

    ``codes, scale``            of the coarse planes: ``[blocks, words, 64, 4]``, ``[planes, padded]``
    ``rest, rest_scale``        of the fine ones: ``[vocab, bytes]``, ``[planes, padded]``
    ``lost, rounded``           ``[groups, padded]``: ‖what coarse planes leave‖, and what rounding adds to that
    ``rest_lost``               ``[groups, padded]``: after the fine planes, rounding included
    ``size, rest_size``         ``[padded]``: ‖scale * code‖ of the coarse planes, of all
    ``base, length``            ``[padded]``: bias + <w - centre, mean>, to the nearest; ‖w - centre‖
    ``uncoded``                 rows out of float32's reach, taken for zero here: they are to be scored whatever comes
    ``grams``                   group after group ``E^T E``, E what coarse planes leave of all rows, in float32 and in float64
                                as ``joint_error.py`` says. None of them: not asked for
    """

    codes: NDArray[np.uint8]
    rest: NDArray[np.uint8]
    scale: Floats
    rest_scale: Floats
    lost: Floats
    rounded: Floats
    rest_lost: Floats
    size: Floats
    rest_size: Floats
    base: Floats
    length: Floats
    uncoded: NDArray[np.bool_]
    grams: Doubles


def encode(layer: Layer, basis: Basis, groups: Groups, threads: int = 1) -> Encoded:
    """The codes of one view."""
    return encode_all(layer, basis, (groups,), threads)[0]


def encode_all(layer: Layer, basis: Basis, views: Sequence[Groups], threads: int = 1) -> list[Encoded]:
    """The codes of every view, in one pass: rows are rotated once. Only the coordinates that a view has groups of are."""
    found = [_places(layer, groups) for groups in views]
    units = [_units(layer, basis, groups) for groups in views]
    columns = max(group.stop for groups in views for group in groups.coarse)
    if native.isa() == native.REFERENCE:
        for groups, sizes, to in zip(views, units, found, strict=True):
            reference = _Reference(layer, basis, groups, sizes, columns, to)
            for part in parts(layer.weight, AT_ONCE):
                reference.take(part)
        return found
    asked = []
    for groups, sizes, to in zip(views, units, found, strict=True):
        coarse = [(*group[:2], unit, group.planes) for group, unit in zip(groups.coarse, sizes, strict=True)]
        asked.append((coarse, [(*group[:2], 0.0, group.planes) for group in groups.fine], to))
    native.encode_into(
        layer.weight, layer.bias, basis.centre, basis.mean, np.ascontiguousarray(basis.back, np.float32), columns, asked,
        (MOST_NORM / layer.dim, MOST_NORM, LARGEST_BASE, UNDERFLOWN), threads,
    )  # fmt: skip
    return found


def part_of(found: Encoded, part: slice) -> Encoded:
    """What was found of the classes ``part``, which begins with a block."""
    end = -(-min(part.stop, len(found.rest)) // CLASS_BLOCK) * CLASS_BLOCK
    return _cut(found, slice(part.start, end), found.codes[part.start // CLASS_BLOCK : end // CLASS_BLOCK])


def blocks_in(found: Encoded, blocks: NDArray[np.int64]) -> Encoded:
    """What was found of some whole blocks of classes."""
    return _cut(found, (blocks[:, None] * CLASS_BLOCK + np.arange(CLASS_BLOCK)).ravel(), found.codes[blocks])


def _cut(found: Encoded, ids: slice | NDArray[np.int64], codes: NDArray[np.uint8]) -> Encoded:
    apart: dict[str, Any] = {"codes": codes, "rest": found.rest[ids], "grams": np.zeros(0)}
    return Encoded(**{name: apart[name] if name in apart else array[..., ids] for name, array in found._asdict().items()})


def sum_up(a: Floats, b: Floats) -> Floats:
    """No less than ``a + b``."""
    return np.asarray((a + b) * np.float32(1 + 2.0**-22))


def _places(layer: Layer, groups: Groups) -> Encoded:
    vocab, count = layer.vocab, padded(layer.vocab)
    coarse, fine = ([row_bytes(stop, bits, start) for one in side for start, stop, bits in one.layout] for side in groups[:2])
    codes = large_empty((count // CLASS_BLOCK, sum(-(-size // 4) for size in coarse), CLASS_BLOCK, 4))
    scale, rest_scale = (np.zeros((len(side), count), np.float32) for side in (coarse, fine))
    lost, rounded, rest_lost = np.zeros((3, len(groups.coarse), count), np.float32)
    size, rest_size, base, length = np.zeros((4, count), np.float32)
    rest, uncoded = large_empty((vocab, sum(fine))), np.zeros(count, bool)
    grams = np.zeros(sum((group.stop - group.start) ** 2 for group in groups.coarse) if groups.joint else 0)
    return Encoded(codes, rest, scale, rest_scale, lost, rounded, rest_lost, size, rest_size, base, length, uncoded, grams)


def _units(layer: Layer, basis: Basis, groups: Groups) -> list[float]:
    """What rounding takes of the rotated coordinates of each group at most, over the length of the row."""
    unit = (min(layer.dim, CHUNK) + -(-layer.dim // CHUNK) + 16) * 2.0**-24
    return [unit * float(np.linalg.norm(basis.back[:, group.start : group.stop])) for group in groups.coarse]


def _squares(sizes: list[Doubles], count: int) -> Doubles:
    """The sum of their squares, one after the other."""
    total = np.zeros(count)
    for size in sizes:
        total += size * size
    return total


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
        left = self._rotated(rows)
        base = lane_sums(rows * self.basis.mean)
        if layer.bias is not None:
            base = base + layer.bias[part]
        length = np.sqrt(lane_sums(rows * rows)) * (1 + 1e-12)
        with np.errstate(invalid="ignore"):
            within = largest_of(left[:, : self.columns]) <= MOST_NORM / layer.dim
            uncoded = ~(within & (length <= MOST_NORM) & (np.abs(base) <= LARGEST_BASE))
        left[uncoded], base[uncoded], length[uncoded] = 0.0, 0.0, 0.0
        to.uncoded[part], to.base[part], to.length[part] = uncoded, base, native.round_up(length)
        sizes = self._coarse(part, left, length)
        more = self._fine(part, left)
        covers = [self.groups.cover(group) for group in self.groups.coarse]
        for g, cover in enumerate(covers):
            here = left[:, self.groups.coarse[g].start : self.groups.coarse[g].stop]
            lost = to.lost[g, part].astype(np.float64) if cover < 0 else left_of(here) + 2.0**-21 * more[cover]
            to.rest_lost[g, part] = native.round_up(lost + to.rounded[g, part])
        square = _squares(sizes, len(left))
        to.size[part] = native.round_up(np.sqrt(square) * (1 + 1e-12))
        for f, size in enumerate(more):
            covered = _squares([sizes[g] for g, cover in enumerate(covers) if cover == f], len(left))
            both = np.sqrt(covered) + size
            square += both * both - covered
        to.rest_size[part] = native.round_up(np.sqrt(np.maximum(square, 0)) * (1 + 1e-12))

    def _coarse(self, part: slice, rotated: Floats, length: Doubles) -> list[Doubles]:
        """Takes the coarse planes from ``rotated``; returns their ``‖codes‖``, group by group."""
        to, sizes, packed, scales = self.to, [], [], []
        for g, group in enumerate(self.groups.coarse):
            left = np.ascontiguousarray(rotated[:, group.start : group.stop])
            size, before = np.zeros(len(left)), np.zeros(len(left), np.float32)
            for plane in group.planes:
                codes, before, taken = take_plane(left, plane, before)
                packed.append(interleave(codes))
                scales.append(before)
                size += taken
            rotated[:, group.start : group.stop] = left
            # The product with the basis, and what is left being rounded wherever codes were taken from it.
            rounded = self.units[g] * length + UNDERFLOWN + 2.0**-21 * size
            to.lost[g, part], to.rounded[g, part] = native.round_up(left_of(left)), native.round_up(rounded)
            sizes.append(size)
        if len(to.grams):
            for group, gram in zip(self.groups.coarse, self.groups.grams(to.grams), strict=True):
                for start in range(0, len(rotated), AT_ONCE):
                    left = rotated[start : start + AT_ONCE, group.start : group.stop]
                    gram += left.T @ left
        if packed:
            to.codes[part.start // CLASS_BLOCK : -(-part.stop // CLASS_BLOCK)] = np.concatenate(packed, axis=1)
            to.scale[:, part] = scales
        return sizes

    def _fine(self, part: slice, rotated: Floats) -> list[Doubles]:
        """The same of the fine planes."""
        sizes, packed, scales = [], [], []
        for group in self.groups.fine:
            left = np.ascontiguousarray(rotated[:, group.start : group.stop])
            size, before = np.zeros(len(left)), np.zeros(len(left), np.float32)
            for plane in group.planes:
                codes, before, taken = take_plane(left, plane, before)
                packed.append(codes)
                scales.append(before)
                size += taken
            rotated[:, group.start : group.stop] = left
            sizes.append(size)
        if packed:
            self.to.rest[part], self.to.rest_scale[:, part] = np.concatenate(packed, axis=1), scales
        return sizes

    def _rotated(self, rows: Doubles) -> Floats:
        """``rows @ back`` in float32, of :data:`CHUNK` coordinates at a time."""
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = rows.astype(np.float32)
            rotated = narrow[:, :CHUNK] @ self.forth[:CHUNK]
            for start in range(CHUNK, rows.shape[1], CHUNK):
                rotated += narrow[:, start : start + CHUNK] @ self.forth[start : start + CHUNK]
        return rotated
