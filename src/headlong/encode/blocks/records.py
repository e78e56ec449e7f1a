"""The records of blocks: sixteen classes side by side, boxes around sixteen nodes, and single classes for a closer look.

A piece of the classes is encoded, turned into records and forgotten, so that of a large layer only what an engine keeps is ever
held. The factors of the rounding are the same for all pieces: a :class:`Gauge` that some evenly spread classes set.
"""

from __future__ import annotations

import copy
import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array, large_empty
from headlong.dtypes import Doubles, Floats
from headlong.encode.blocks.coding import Group, encode
from headlong.encode.blocks.radii import ROUNDING, Summands, Term, joined, roundings, typical_of
from headlong.encode.whitening import Basis
from headlong.layers.matrix import Layer
from headlong.native import round_up
from headlong.plan import NEIGHBOURS, BoxLevel

LONGEST = 1e30
"""A class whose rounding is a longer length is as good as not coded."""
PER_CLASS = {"codes": 0, "more": 0, "scale": 1, "lengths": 1, "last": 0, "closer_last": 0, "base": 0, "uncoded": 0}
"""The arrays of :class:`Classes`, and which of their axes counts the classes."""

Bytes = NDArray[np.uint8]


class BlockShape(NamedTuple):
    """``boxed`` coordinates of a box, up to ``width`` with a closer look, and the ``edges`` of segments from ``boxed`` on."""

    boxed: int
    width: int
    edges: tuple[int, ...]

    @property
    def behind(self) -> tuple[tuple[int, int], ...]:
        """Segments of which only lengths are kept."""
        return tuple((a, b) for a, b in itertools.pairwise(self.edges) if a >= self.width)

    def groups(self) -> tuple[Group, ...]:
        """Codes of the first coordinates, those of the closer look, and lengths of what is behind."""
        closer = [Group(self.boxed, self.width, True)] if self.width > self.boxed else []
        return Group(0, self.boxed, True), *closer, *(Group(a, b, False) for a, b in self.behind)


class Gauge(NamedTuple):
    """What rounding loses in units of a length: the sizes of its summands, and how many units their largest is."""

    typical: tuple[float, ...]
    scale: float


class Gauges(NamedTuple):
    """Those of the look at a block, and of the closer look."""

    first: Gauge
    both: Gauge


class ArrayInPieces:
    """An array of so many rows, which come in pieces."""

    def __init__(self, rows: int) -> None:
        self.rows, self.at = rows, 0
        self.array: Bytes | None = None

    def take(self, piece: Bytes | None) -> None:
        """The next rows; None: there are none."""
        if piece is None:
            return
        if self.array is None:
            self.array = large_empty((self.rows, *piece.shape[1:]), piece.dtype)
        self.array[self.at : self.at + len(piece)] = piece
        self.at += len(piece)

    def whole(self) -> Bytes:
        assert self.array is not None
        assert self.at == self.rows
        return self.array


class Tops(NamedTuple):
    """What boxes are made of, for nodes in their order: ends ``[nodes, boxed]``, lengths ``[segments, nodes]``, the rest."""

    low: Doubles
    high: Doubles
    lengths: Floats
    shared: Floats
    base: Floats


class Classes:
    """Some classes as the encoder left them, in float32 that is not below what it bounds.

    ``shared``  factors of ``‖x[:boxed]‖, ‖x[boxed:width]‖, 1, ‖hidden - mean‖`` in a record's last length
    ``own``     what float32 loses of a box, in units of that length, over the size of its codes
    """

    def __init__(
        self,
        layer: Layer,
        basis: Basis,
        shape: BlockShape,
        gauges: Gauges | None = None,
    ) -> None:
        found = encode(layer, basis, shape.groups())
        self.layer, self.basis, self.found, self.shape, self.vocab = layer, basis, found, shape, layer.vocab
        self.uncoded = found.uncoded
        self.codes, *more = found.codes
        self.more = more[0] if more else np.empty((self.vocab, 0), np.int8)
        self.lengths = self._lengths()
        closer = shape.width > shape.boxed
        self.gauges = gauges or Gauges(self._gauge(1), self._gauge(2) if closer else self._gauge(1))
        self.last, self.shared = self._last(1, self.gauges.first)
        self.own = ROUNDING / self.shared[0]
        self.closer_last, self.closer_shared = self._last(2, self.gauges.both) if closer else (self.last, self.shared)
        self.base = np.where(self.uncoded, np.float32(np.inf), found.base)
        self.scale = found.scale
        del self.layer, self.basis, self.found  # several times as long as what records take

    @staticmethod
    def joined(pieces: list[Classes]) -> Classes:
        """All classes of ``pieces``, which have the same gauges, as one. They are emptied array by array."""
        whole = copy.copy(pieces[0])
        for name, axis in PER_CLASS.items():
            setattr(whole, name, np.concatenate([vars(piece).pop(name) for piece in pieces], axis=axis))
        whole.vocab = len(whole.base)
        return whole

    def _summands(self, count: int) -> Summands:
        """What the codes of the first ``count`` groups lose, and roundings."""
        edges, rounding = (0, self.shape.boxed, self.shape.width), roundings(self.layer, self.basis, self.found)

        def summands(some: slice) -> list[tuple[Term, Doubles]]:
            sizes = [self.found.lost[part, some].astype(np.float64) + ROUNDING * self.found.size[some] for part in range(count)]
            norms = [Term("norm", edges[part], edges[part + 1]) for part in range(count)]
            return [*zip(norms, sizes, strict=True), *rounding(some)]

        return summands

    def _gauge(self, count: int) -> Gauge:
        """Units in which the rounding is about as long as the other lengths."""
        summands, unit = self._summands(count), 0.0
        typical = tuple(typical_of(part) for _, part in summands(slice(0, len(self.found.uncoded))))
        if len(self.lengths) and self.vocab:
            unit = float(np.median(self.lengths.max(axis=0, initial=0.0)))
        slack = joined(summands, self.found.uncoded, typical)[0]
        usual = float(np.median(np.where(self.uncoded, np.float32(0), slack))) if self.vocab else 1.0
        return Gauge(typical, unit / usual if unit > 0 and usual > 0 else 1.0)

    def _last(self, count: int, gauge: Gauge) -> tuple[Floats, tuple[float, ...]]:
        """One length for all of the rounding, and its factors."""
        slack, terms = joined(self._summands(count), self.found.uncoded, gauge.typical)
        values = slack.astype(np.float64) * gauge.scale * (1 + 1e-9)
        self.uncoded |= values > LONGEST
        values[self.uncoded] = 0.0
        factors = {"norm0": 0.0, f"norm{self.shape.boxed}": 0.0, "one": 0.0, "hidden": 0.0}
        for term in terms:
            factors[f"norm{term.start}" if term.kind == "norm" else term.kind] += term.factor / gauge.scale * (1 + 1e-9)
        return round_up(values), tuple(factors.values())

    def _lengths(self) -> Floats:
        """``[segments, vocab]``: ‖B_i[s]‖ rounded up; of coded coordinates by their codes and what those lose."""
        sizes = []
        boxed, behind = self.shape.boxed, iter(self.found.lost[len(self.found.scale) :])
        for start, stop in itertools.pairwise(self.shape.edges):
            if start >= self.shape.width:
                sizes.append(next(behind))
                continue
            part = self.more[:, start - boxed : stop - boxed].astype(np.int32)
            size = np.sqrt(np.einsum("ij,ij->i", part, part).astype(np.float64)) * self.found.scale[1]
            sizes.append(round_up((size + self.found.lost[1]) * (1 + 1e-9)))
        lengths = np.array(sizes, np.float32).reshape(len(sizes), self.vocab)
        lengths[:, self.uncoded] = 0.0
        return lengths

    def features(self) -> Floats:
        """What neighbours have to share: the coordinates, the base, and lengths as much as they can weigh."""
        values = self.codes * self.scale[0, :, None]
        counts = np.sqrt(np.diff(np.array(self.shape.edges, np.float64))).astype(np.float32)
        base = np.where(self.uncoded, np.float32(0), self.base)[:, None]
        return np.ascontiguousarray(np.concatenate([values, base, (self.lengths * counts[:, None]).T], axis=1))

    def records(self, order: NDArray[np.int32]) -> tuple[BoxLevel, Tops]:
        """The records of all blocks, and their classes as the boxes above want them."""
        there, ids = order >= 0, np.maximum(order, 0)
        scale = np.where(there & ~self.uncoded[ids], self.scale[0, ids], np.float32(0))
        codes = self.codes[ids]
        codes[scale == 0] = 0
        lengths = np.concatenate([self.lengths[:, ids], self.last[None, ids]]) * there
        base = np.where(there, self.base[ids], np.float32(-np.inf))
        level = BoxLevel(pack_records(codes, lengths, scale, base), self.shape.boxed, len(lengths))
        values = codes * scale[:, None].astype(np.float64)  # exact: 24 bits times 8
        ends = [np.where(there[:, None], values, side) for side in (np.inf, -np.inf)]
        return level, Tops(ends[0], ends[1], lengths[:-1], lengths[-1], base)

    def closer(self, order: NDArray[np.int32]) -> Bytes | None:
        """``[places, bytes]``: codes of the coordinates behind those of a block, lengths of what is behind them."""
        if self.shape.width == self.shape.boxed:
            return None
        ids = np.maximum(order, 0)
        dead = (order < 0) | self.uncoded[ids]
        scale = np.where(dead, np.float32(0), self.scale[1, ids])
        codes = self.more[ids]
        codes[dead] = 0
        first = len(self.lengths) - len(self.shape.behind)
        lengths = np.concatenate([self.lengths[first:, ids], self.closer_last[None, ids]]) * ~dead
        coded, unit = lengths_up(lengths)
        numbers = np.stack([scale, unit], axis=1).view(np.uint8)
        return np.ascontiguousarray(np.concatenate([codes.view(np.uint8), coded.T, numbers], axis=1))


def boxes(below: Tops, own: float) -> tuple[BoxLevel, Tops]:
    """Boxes around sixteen nodes each, and these as the nodes of the next level."""

    def gather(values: Array, fill: float, smallest: bool = False) -> Array:
        pad = -values.shape[-1] % NEIGHBOURS
        wide = np.concatenate([values, np.full((*values.shape[:-1], pad), fill, values.dtype)], axis=-1)
        wide = wide.reshape(*values.shape[:-1], wide.shape[-1] // NEIGHBOURS, NEIGHBOURS)
        return np.asarray(wide.min(axis=-1) if smallest else wide.max(axis=-1))

    low, high = gather(below.low.T, np.inf, smallest=True).T, gather(below.high.T, -np.inf).T
    base, lengths, shared = gather(below.base, -np.inf), gather(below.lengths, 0.0), gather(below.shared, 0.0)
    some = np.asarray(np.isfinite(low).all(axis=1))  # blocks of classes that are not there have no ends
    low, high = np.where(some[:, None], low, 0.0), np.where(some[:, None], high, 0.0)
    scale = round_up(np.maximum(np.abs(low), np.abs(high)).max(axis=1) / 127)
    scale = np.where(scale >= np.finfo(np.float32).tiny, scale, np.float32(1e-37))
    wide = scale.astype(np.float64)[:, None]
    ends = np.concatenate([np.ceil(high / wide), np.floor(low / wide)], axis=1)
    codes = np.clip(ends, -127, 127).astype(np.int8)
    assert (codes == ends).all()
    size = np.sqrt((codes.astype(np.float64) ** 2).sum(axis=1)) * scale
    total = round_up((shared.astype(np.float64) + own * size) * (1 + 1e-9))
    every = padded_rows(np.concatenate([lengths, total[None]]).T, 0).T
    rows = padded_rows(codes, 0), every, padded_rows(scale, 0), padded_rows(base, -np.inf)
    level = BoxLevel(pack_records(*rows), codes.shape[1], len(lengths) + 1)
    boxed = low.shape[1]
    tops = Tops(codes[:, boxed:] * wide, codes[:, :boxed] * wide, lengths, total, base)
    tops.low[~some], tops.high[~some] = np.inf, -np.inf
    return level, tops


def joined_tops(pieces: list[Tops]) -> Tops:
    """One after the other."""
    low, high, lengths, shared, base = zip(*pieces, strict=True)
    flat = (np.concatenate(column) for column in (shared, base))
    return Tops(np.concatenate(low), np.concatenate(high), np.concatenate(lengths, axis=1), *flat)


def padded_rows(rows: Array, fill: float) -> Array:
    """To whole sixteens."""
    return np.concatenate([rows, np.full((-len(rows) % NEIGHBOURS, *rows.shape[1:]), fill, rows.dtype)])


def lengths_up(lengths: Floats) -> tuple[Bytes, Floats]:
    """``coded [rows, n]`` uint8 and ``unit [n]`` with ``coded * unit >= lengths``, all finite."""
    unit = round_up(lengths.max(axis=0, initial=0.0).astype(np.float64) / 255 * (1 + 1e-7))
    unit = np.maximum(unit, np.float32(2.0**-120))
    return np.minimum(np.ceil(lengths / unit.astype(np.float64)), 255).astype(np.uint8), unit


def pack_records(codes: NDArray[np.int8], lengths: Floats, scale: Floats, base: Floats) -> Bytes:
    """``[groups, bytes]``: for sixteen neighbours each, codes ``[count][16]``, lengths ``[tails][16]``, scale, unit, base."""
    groups = len(codes) // NEIGHBOURS
    coded, unit = lengths_up(lengths)
    parts = [
        codes.view(np.uint8).reshape(groups, NEIGHBOURS, -1).transpose(0, 2, 1).reshape(groups, -1),
        coded.reshape(len(coded), groups, NEIGHBOURS).transpose(1, 0, 2).reshape(groups, -1),
        *(np.ascontiguousarray(row, np.float32).reshape(groups, NEIGHBOURS).view(np.uint8) for row in (scale, unit, base)),
    ]
    return np.ascontiguousarray(np.concatenate(parts, axis=1))
