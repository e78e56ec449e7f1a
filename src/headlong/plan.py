"""What an engine reads, in which order, and how wrong each estimate can be.

Rotated codes of all classes, bounds on blocks of classes, the preview of a published method, or none of these: then every
query reads all rows. A plan is arrays and numbers only, saved as it is. ``encode/`` and ``engines/methods/`` build plans; every
executor (NumPy, native) runs them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array
from headlong.dtypes import Floats, Halves

TILE = 64
"""Classes of a tile, and what every per-class array is padded to."""
NEIGHBOURS = 16
"""Classes that are bounded together, and nodes under one node above: ``kNeighbours`` of ``csrc/blocks/looks.h``."""
MOST_SCORED = 0.25
"""The share of classes left open beyond which a search is given up and a query reads all rows."""
SHORT = 64
"""The most classes that a search on trial is asked for."""


class Preview(NamedTuple):
    """SVD-softmax as published: ``columns`` of all classes are read, the ``rows`` best of them exactly.

    ``rotation``  ``[dim, width]`` float32: ``x = hidden @ rotation``
    ``columns``   ``[vocab, width]`` float32; ``base [padded]`` float32, the bias: ``estimate = base + columns @ x``
    """

    rotation: Floats
    columns: Floats
    base: Floats
    rows: int


class BoxLevel(NamedTuple):
    """Sixteen neighbours to a record, classes or boxes around sixteen nodes of the level below.

    ``records``  ``[groups, (codes + lengths + 12) * 16]`` uint8: int8 codes ``[codes][16]``, lengths ``[lengths][16]``, and
                 float32 scale, unit of the lengths, and base, 16 each; base -inf: there is no such node
    ``codes``    of a neighbour: those of its coordinates, or the upper and then the lower ends of a box
    ``lengths``  one for every segment, and one for all that is lost by rounding
    """

    records: NDArray[np.uint8]
    codes: int
    lengths: int


class Blocks(NamedTuple):
    """Classes in an order in which neighbours are alike, and bounds on sixteen of them at once; see ``encode/blocks``.

    ``mean, centre``  ``[dim]`` float64, those of the basis
    ``leading``       ``[width, dim]``: the first coordinates, ``x = leading @ (hidden - mean)``
    ``back``          ``[width, dim]`` or None where width is dim: ``x @ back`` is most of ``hidden - mean``, ``left`` the rest
    ``rest``          ``[dim, n]`` int8: the other coordinates are ``left @ rest * rest_scale``, for their lengths alone;
    ``rest_lost``     ``[segments behind width, 3]``: lengths are off by that times ``‖left‖, ‖hidden - mean‖, ‖x‖`` at most.
    ``boxed``         coordinates of x in a box; those up to ``width`` come with the closer look
    ``edges``         ``boxed = edges[0] < edges[1] < ... = dim``: the segments of x whose lengths every bound takes
    ``order``         ``[16 * groups]`` int32: the class at each place, -1 where there is none
    ``levels``        coarse to fine, the last one's nodes being classes: node n's children are record n of the next one
    ``closer``        ``[places, bytes]`` uint8 or None: int8 codes, lengths, scale and unit of single classes
    ``shared``        factors of ``‖x[:boxed]‖, ‖x[boxed:width]‖, 1, ‖hidden - mean‖`` in a record's last length;
    ``closer_shared`` the same of the closer look
    ``max_k``         the k of a search of ``max_batch`` queries at once, ``max_k_of_batches`` that of more queries
    ``samples``       whether samples without filters go by blocks
    ``trial``         bytes, without the answers' rows, beyond which a search did not pay: where most did not, few are made
    """

    mean: Array
    centre: Array
    leading: Halves | Floats
    back: Halves | Floats | None
    rest: NDArray[np.int8] | None
    rest_scale: Floats | None
    rest_lost: Array | None
    boxed: int
    edges: tuple[int, ...]
    order: NDArray[np.int32]
    levels: tuple[BoxLevel, ...]
    closer: NDArray[np.uint8] | None
    shared: tuple[float, ...]
    closer_shared: tuple[float, ...]
    max_batch: int = 2
    max_k: int = 64
    samples: bool = False
    max_k_of_batches: int = 0
    trial: float = math.inf


CODE_BITS = (1, 2, 3, 4, 5, 6, 8)
"""Bits that a rotated code may have."""


GROUP = 32
"""Coordinates of a group of codes: ``csrc/scan/tiles.h`` has the layout of a tile."""
LINE = 64
"""Bytes of a line of the caches."""
LEAST_SHARE = np.float32(0.25)
"""The least share of its tile's radius that a class has: ``csrc/scan/tiles.h`` relies on it."""
LARGEST = 1e12
"""A bound of every number that codes are made of."""
LIMIT = np.float32(1e18)
"""A bound of a length that a tile has: a root of the sum of squares of many of them."""
TILES_AT_ONCE = 1 << 12
"""Tiles whose numbers are checked in one go."""


class Segment(NamedTuple):
    """Coordinates ``start`` to ``stop - 1`` in ``bits`` each, multiplied with ``planes`` int8 planes of the query."""

    start: int
    stop: int
    bits: int
    planes: int = 1


class Codes(NamedTuple):
    """Rotated codes of all classes; ``csrc/codes/rotated.h`` says what each number bounds, ``encode/tiles.py`` makes them.

    ``tiles``     ``[ceil(vocab / 64), bytes]`` uint8: codes, scales, error norms and bases of 64 classes
    ``mean``, ``centre``  ``[dim]`` float64
    ``rotation``  ``[panels, dim, 32]`` float32: 32 columns in a panel; every segment's are made up to whole panels by zeros
    ``segments``  the rotated coordinates
    ``bounds``    ``[segments, 4]`` float64: the largest |q|, the largest |scale q|, what rounding does to x and to rows
    ``lost``, ``most_base``  what products in float64 lose, and the largest |base|
    """

    tiles: NDArray[np.uint8]
    mean: NDArray[np.float64]
    centre: NDArray[np.float64]
    rotation: Floats
    segments: tuple[Segment, ...]
    bounds: NDArray[np.float64]
    lost: float
    most_base: float


class TileLayout(NamedTuple):
    """Where the parts of a tile begin, in bytes, as ``TileLayout`` of ``csrc/scan/tiles.h`` has it, which describes the codes.

    ``codes``    of every segment, as many bytes each as lie before the next part
    ``scales, bases, shares, largest``  float32: ``[segments, 64]``, ``[64]``, ``[64]``, and the tile's own ``[segments, 2]``
    ``bytes``    of a whole tile, filled up to whole lines
    """

    codes: tuple[int, ...]
    scales: int
    bases: int
    shares: int
    largest: int
    bytes: int

    @classmethod
    def of(cls, segments: tuple[Segment, ...]) -> TileLayout:
        count, number = len(segments), TILE * 4
        ends = [0, *accumulate(-(-(stop - start) // GROUP) * bits * number for start, stop, bits, _ in segments)]
        bases = ends[-1] + count * number
        largest = bases + 2 * number
        return cls(tuple(ends[:-1]), ends[-1], bases, bases + number, largest, largest + -(-count * 8 // LINE) * LINE)

    def numbers(self, tiles: NDArray[np.uint8]) -> tuple[Floats, Floats, Floats, Floats]:
        """``scales [tiles, segments, 64]``, ``bases`` and ``shares [tiles, 64]``, ``largest [tiles, segments, 2]``."""
        found = np.ascontiguousarray(tiles[:, self.scales :]).view(np.float32)
        count, segments = len(tiles), len(self.codes)
        own, largest = found[:, : (segments + 2) * TILE], found[:, (segments + 2) * TILE :][:, : 2 * segments]
        lines = own.reshape(count, segments + 2, TILE)
        return lines[:, :segments], lines[:, segments], lines[:, segments + 1], largest.reshape(count, segments, 2)


def out_of_range(codes: Codes) -> str:
    """Which numbers of all classes together are none that the scan may meet; "" where all are within :data:`LARGEST`."""
    numbers = {name: getattr(codes, name) for name in ("mean", "centre", "bounds", "lost", "most_base")}
    for name, array in numbers.items():
        if not np.all(np.abs(array) < LARGEST) or (name in ("bounds", "lost", "most_base") and np.min(array) < 0):
            return f"{name} holds NaN, a number from {LARGEST:g}, or a negative bound"
    return "" if np.isfinite(codes.rotation).all() else "rotation holds infinity or NaN"


def tiles_out_of_range(codes: Codes, vocab: int) -> str:
    """Which number in ``tiles`` is out of its range; those of classes that only pad the last tile are fixed."""
    layout = TileLayout.of(codes.segments)
    for start in range(0, len(codes.tiles), TILES_AT_ONCE):
        scale, base, share, largest = layout.numbers(codes.tiles[start : start + TILES_AT_ONCE])
        is_class = np.arange(start * TILE, (start + len(scale)) * TILE).reshape(-1, TILE) < vocab
        checks = {
            "scale": (scale >= 0) & (scale < LARGEST),
            "base": np.where(is_class, np.abs(base) <= np.nextafter(np.float32(codes.most_base), LIMIT), base == -np.inf),
            "share": np.where(is_class, (share >= LEAST_SHARE) & (share < 2), share == 0),
            "error of a tile": (largest >= 0) & (largest < LIMIT),
        }
        for name, good in checks.items():
            if not good.all():
                tile = start + int(np.argmin(good.reshape(len(scale), -1).all(axis=1)))
                return f"{name} of tile {tile:,} is out of its range"
    return ""


class Plan(NamedTuple):
    """How to read one matrix; nothing: every query reads all rows.

    ``codes``    rotated codes, which answer what blocks do not
    ``blocks``   bounds on sixteen classes at once, where ids alone are asked for
    ``preview``  a published method's, which proves nothing
    ``arrays``   what a method with a reader of its own keeps beside (the bandit's columns), by name
    """

    codes: Codes | None = None
    blocks: Blocks | None = None
    preview: Preview | None = None
    arrays: Mapping[str, Array] | None = None

    @property
    def looks(self) -> bool:
        """Whether classes are looked at before rows are read."""
        return self.codes is not None or self.preview is not None


def padded(vocab: int) -> int:
    """``ceil(vocab / 64) * 64``: the length of every per-class array."""
    return -(-vocab // TILE) * TILE
