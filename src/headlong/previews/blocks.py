"""Bounds on sixteen neighbouring classes at once, from a box around them in the whitened basis.

    z_i  <=  base_i + <B_i[:w], x[:w]> + sum_s ‖B_i[s]‖ ‖x[s]‖ + rounding                    a class          (w = LOOK)
    max over a block of z_i  <=  max base_i + <[hi, lo], [x+, x-]> + sum_s max ‖B_i[s]‖ ‖x[s]‖ + rounding

with ``hi_j, lo_j`` the largest and smallest ``B_ij`` there, ``x+ = max(x, 0)``, ``x- = min(x, 0)``. Boxes hold classes, or
boxes. Codes are rounded outwards, lengths up, so that every bound holds for every finite query, in the arithmetic of
the executor: its rounding is in the last length of each record.

Neighbours are found by cutting the classes in two across the direction in which they spread most, again and again, down to
sixteen (``csrc/blocks/order.cpp``): balanced by construction, and tighter than k-means cut into sixteens afterwards.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.arrays import Array
from headlong.layers.matrix import Layer
from headlong.native import Doubles, Floats, round_up
from headlong.plan import Blocks, BoxLevel, Term, deinterleave
from headlong.previews.encode import Encoded, Group, Groups, encode, sum_up
from headlong.previews.prefix import EIGHT, ROUNDING, Summands, joined, roundings
from headlong.previews.whitening import Basis

LOOK = 16
"""Coordinates of a box, and of a class of an open block."""
CLOSER = 64
"""Up to this coordinate goes the closer look at single classes: its record is one line of the cache."""
SEGMENTS = 5
"""Lengths of what is behind LOOK, at most; their segments double, the last takes the rest."""
ROOT = 8192
"""Nodes that are looked at for every query, at most: with more of them there is one more level of boxes."""
SIDE = 16
"""Neighbours in a record."""
HALF = 60000.0
"""What float16 holds."""

Bytes = NDArray[np.uint8]


def blocks_of(layer: Layer, basis: Basis, threads: int = 1, factor: float = 1.0) -> Blocks:
    """The order of the classes and all levels. ``factor``: what of the segments' Cauchy-Schwarz is left, as learned."""
    look, width, edges = shape_of(layer.dim)
    found = encode(layer, basis, _groups(look, width, edges), threads)
    some = _Classes(layer, basis, found, look, width, edges)
    order = _places(_neighbours(some.features(), threads))
    leaves, tops = some.records(order)
    levels = [leaves]
    while levels[0].records.shape[0] > 1:
        box, tops = _boxes(tops, some.own)
        levels.insert(0, box)
        if box.records.shape[0] * SIDE <= ROOT:
            break
    return Blocks(
        basis.mean, basis.centre, **_turns(basis, width, edges), look=look, edges=edges, order=order, levels=tuple(levels),
        closer=some.closer(order), shared=some.shared, closer_shared=some.closer_shared, factor=factor,
    )  # fmt: skip


def _turns(basis: Basis, width: int, edges: tuple[int, ...]) -> dict[str, Any]:
    """``head, back, rest, rest_scale, rest_lost``.

    With ``v = hidden - mean``, ``T'`` for ``back`` and ``left = v - x T'``, a segment of the other coordinates is

        x_s = left R_s + x T' R_s,     ‖x_s‖ <= ‖left R^_s‖ + ‖R_s - R^_s‖ ‖left‖ + ‖T' R_s‖ ‖x‖ + rounding

    where ``R^`` has 8 bits. T is the inverse's transpose, so T R_s is 0 but for the rounding of T'; and left is short: the
    first coordinates are those that vary most.
    """
    turn, dim = basis.rotation, len(basis.mean)
    head = np.ascontiguousarray(turn[:, :width].T)
    if width == dim:
        return {"head": head, "back": None, "rest": None, "rest_scale": None, "rest_lost": None}
    forth = basis.back[:, :width].T
    if head.dtype == np.float16 and np.abs(forth).max() > HALF:
        head = head.astype(np.float32)
    back = np.ascontiguousarray(forth, head.dtype)
    other = turn[:, width:].astype(np.float64)
    scale = np.maximum(round_up(np.abs(other).max(axis=0) / 127), np.float32(1e-37))
    coded = np.clip(np.rint(other / scale), -127, 127)
    wide, lost = back.astype(np.float64), []
    for start, stop in ((a - width, b - width) for a, b in itertools.pairwise(edges) if a >= width):
        part, seen = other[:, start:stop], coded[:, start:stop] * scale[start:stop]
        size, unit = float(np.linalg.norm(part)), (dim + 8) * 2.0**-24
        float32 = 2.0**-22 * size
        lost.append([
            spectral(part - seen) + unit * float(np.linalg.norm(seen)), float32,
            spectral(wide @ part) + float32 * float(np.linalg.norm(wide)),
        ])  # fmt: skip
    pad = -coded.shape[1] % SIDE
    rest = np.pad(coded.astype(np.int8), ((0, 0), (0, pad)))
    wide_scale, losses = np.pad(scale, (0, pad)), np.array(lost) * (1 + 1e-6)
    return {"head": head, "back": back, "rest": rest, "rest_scale": wide_scale, "rest_lost": losses}


def spectral(matrix: Doubles) -> float:
    """No less than the largest singular value, and hardly more: ``tr((M^T M)^8) ** (1 / 16)``."""
    small = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
    size = float(np.linalg.norm(small))
    if size == 0.0:
        return 0.0
    power = small / size
    for _ in range(2):
        power = power @ power
    return float((size**0.5) * np.linalg.norm(power) ** 0.125 * (1 + 1e-9))


def shape_of(dim: int) -> tuple[int, int, tuple[int, ...]]:
    """``look, width, edges``: coordinates of a box, up to where a closer look goes, and where segments end from ``look`` on."""
    look, width = min(LOOK, dim), min(CLOSER, dim)
    edges, step = [look], 2 * look
    while edges[-1] < dim:
        edges.append(dim if len(edges) == SEGMENTS else min(step, dim))
        step *= 2
    return look, width, tuple(edges)


def _groups(look: int, width: int, edges: tuple[int, ...]) -> Groups:
    """Codes of the first coordinates, those of the closer look, and lengths of what is behind."""
    behind = [Group(a, b, ()) for a, b in itertools.pairwise(edges) if a >= width]
    closer = [Group(look, width, EIGHT)] if width > look else []
    return Groups((Group(0, look, EIGHT), *closer, *behind), ())


def _neighbours(features: Floats, threads: int) -> NDArray[np.int32]:
    """An order in which neighbours are alike: natively, or as NumPy says it."""
    if native.isa() != native.REFERENCE:
        return native.neighbours(features, threads)
    order = np.arange(len(features), dtype=np.int32)
    pieces = [(0, len(features))]
    while pieces:
        start, stop = pieces.pop()
        if stop - start <= SIDE:
            continue
        rows = features[order[start:stop]].astype(np.float64)
        rows -= rows.mean(axis=0)
        along = rows @ np.linalg.eigh(rows.T @ rows)[1][:, -1]
        unit = SIDE
        while unit * SIDE < stop - start:
            unit *= SIDE
        half = max(unit, ((stop - start) // unit + 1) // 2 * unit)
        order[start:stop] = order[start:stop][np.argsort(along, kind="stable")]
        pieces += [(start, start + half), (start + half, stop)]
    return order


def _places(order: NDArray[np.int32]) -> NDArray[np.int32]:
    """``order``, padded with -1 to whole blocks."""
    return np.concatenate([order, np.full(-len(order) % SIDE, -1, np.int32)])


class _Tops(NamedTuple):
    """What boxes are made of, for nodes in their order: ends ``[nodes, look]``, lengths ``[segments, nodes]``, the rest."""

    low: Doubles
    high: Doubles
    lengths: Floats
    shared: Floats
    base: Floats


class _Classes:
    """The classes as the encoder left them, in float32 that is not below what it bounds.

    ``shared``  factors of ``‖x[:look]‖, ‖x[look:width]‖, 1, ‖hidden - mean‖`` in a record's last length
    ``own``     what float32 loses of a box, in units of that length, over the size of its codes
    """

    def __init__(
        self, layer: Layer, basis: Basis, found: Encoded, look: int, width: int, edges: tuple[int, ...]
    ) -> None:
        vocab = layer.vocab
        self.found, self.look, self.width, self.edges, self.vocab = found, look, width, edges, vocab
        self.uncoded = found.uncoded[:vocab]
        self.base = np.where(self.uncoded, np.float32(np.inf), found.base[:vocab])
        lost = sum_up(found.lost, found.rounded)
        self.lost, self.behind = lost, [(a, b) for a, b in itertools.pairwise(edges) if a >= width]
        codes = deinterleave(found.codes, vocab)
        self.codes = codes[:, :look]
        start = -(-look // 4) * 4
        self.more = codes[:, start : start + width - look]
        rounding = roundings(layer, basis, found)
        lengths = self._lengths()
        self.lengths = lengths
        unit = float(np.median(lengths.max(axis=0, initial=0.0))) if len(lengths) else 0.0

        def first(some: slice) -> list[tuple[Term, Doubles]]:
            size = lost[0, some].astype(np.float64) + ROUNDING * found.size[some]
            return [(Term("norm", 0, look), size), *rounding(some)]

        def both(some: slice) -> list[tuple[Term, Doubles]]:
            size = [lost[part, some].astype(np.float64) + ROUNDING * found.size[some] for part in range(2)]
            return [(Term("norm", 0, look), size[0]), (Term("norm", look, width), size[1]), *rounding(some)]

        self.last, self.shared = self._shared(first, unit)
        self.own = ROUNDING / self.shared[0]
        self.closer_last, self.closer_shared = self._shared(both, unit) if width > look else (self.last, self.shared)

    def _shared(self, summands: Summands, unit: float) -> tuple[Floats, tuple[float, ...]]:
        """One length for all of the rounding, of the size of the others, and its factors."""
        slack, terms = joined(summands, self.found.uncoded, 0)
        values = np.where(self.uncoded, np.float32(0), slack[0, : self.vocab])
        typical = float(np.median(values)) if len(values) else 1.0
        scale = unit / typical if unit > 0 and typical > 0 else 1.0
        factors = {"norm0": 0.0, f"norm{self.look}": 0.0, "one": 0.0, "hidden": 0.0}
        for term in terms:
            factors[f"norm{term.start}" if term.kind == "norm" else term.kind] += term.factor / scale * (1 + 1e-9)
        return round_up(values.astype(np.float64) * scale * (1 + 1e-9)), tuple(factors.values())

    def _lengths(self) -> Floats:
        """``[segments, vocab]``: ‖B_i[s]‖ rounded up; of coded coordinates by their codes and what those lose."""
        sizes = []
        for start, stop in zip(self.edges, self.edges[1:], strict=False):
            if start >= self.width:
                row = self.found.lost[len(self.found.scale) + self.behind.index((start, stop))]
                row = sum_up(row, self.found.rounded[len(self.found.scale) + self.behind.index((start, stop))])
                sizes.append(row[: self.vocab])
                continue
            part = self.more[:, start - self.look : stop - self.look].astype(np.int32) - 128
            size = np.sqrt(np.einsum("ij,ij->i", part, part).astype(np.float64)) * self.found.scale[1, : self.vocab]
            sizes.append(round_up((size + self.lost[1, : self.vocab]) * (1 + 1e-9)))
        lengths = np.array(sizes, np.float32).reshape(len(sizes), self.vocab)
        lengths[:, self.uncoded] = 0.0
        return lengths

    def features(self) -> Floats:
        """What neighbours have to share: the coordinates, the base, and lengths as much as they can weigh."""
        values = (self.codes.astype(np.float32) - 128) * self.found.scale[0, : self.vocab, None]
        counts = np.sqrt(np.diff(np.array(self.edges, np.float64))).astype(np.float32)
        base = np.where(self.uncoded, np.float32(0), self.base)[:, None]
        return np.ascontiguousarray(np.concatenate([values, base, (self.lengths * counts[:, None]).T], axis=1))

    def records(self, order: NDArray[np.int32]) -> tuple[BoxLevel, _Tops]:
        """The records of all blocks, and their classes as the boxes above want them."""
        there, ids = order >= 0, np.maximum(order, 0)
        scale = np.where(there & ~self.uncoded[ids], self.found.scale[0, ids], np.float32(0))
        codes = (self.codes[ids].astype(np.int16) - 128).astype(np.int8)
        codes[scale == 0] = 0
        lengths = np.concatenate([self.lengths, self.last[None]])[:, ids] * there
        base = np.where(there, self.base[ids], np.float32(-np.inf))
        level = BoxLevel(pack_records(codes, lengths, scale, base), self.look, len(lengths))
        values = codes * scale[:, None].astype(np.float64)  # exact: 24 bits times 8
        ends = [np.where(there[:, None], values, side) for side in (np.inf, -np.inf)]
        return level, _Tops(ends[0], ends[1], lengths[:-1], lengths[-1], base)

    def closer(self, order: NDArray[np.int32]) -> Bytes | None:
        """``[places, bytes]``: codes of the coordinates behind those of a block, lengths of what is behind them."""
        if self.width == self.look:
            return None
        ids = np.maximum(order, 0)
        dead = (order < 0) | self.uncoded[ids]
        scale = np.where(dead, np.float32(0), self.found.scale[1, ids])
        codes = (self.more[ids].astype(np.int16) - 128).astype(np.int8)
        first = len(self.lengths) - len(self.behind)
        lengths = np.concatenate([self.lengths[first:], self.closer_last[None]])[:, ids] * ~dead
        coded, unit = lengths_up(lengths)
        numbers = np.stack([scale, unit], axis=1).view(np.uint8)
        return np.ascontiguousarray(np.concatenate([codes.view(np.uint8), coded.T, numbers], axis=1))


def _boxes(below: _Tops, own: float) -> tuple[BoxLevel, _Tops]:
    """Boxes around sixteen nodes each, and these as the nodes of the next level."""

    def gather(values: Array, fill: float, least: bool = False) -> Array:
        pad = -values.shape[-1] % SIDE
        wide = np.concatenate([values, np.full((*values.shape[:-1], pad), fill, values.dtype)], axis=-1)
        wide = wide.reshape(*values.shape[:-1], wide.shape[-1] // SIDE, SIDE)
        return np.asarray(wide.min(axis=-1) if least else wide.max(axis=-1))

    low, high = gather(below.low.T, np.inf, least=True).T, gather(below.high.T, -np.inf).T
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
    rows = _padded(codes, 0), _padded(np.concatenate([lengths, total[None]]).T, 0).T, _padded(scale, 0), _padded(base, -np.inf)
    level = BoxLevel(pack_records(*rows), codes.shape[1], len(lengths) + 1)
    look = low.shape[1]
    tops = _Tops(codes[:, look:] * wide, codes[:, :look] * wide, lengths, total, base)
    tops.low[~some], tops.high[~some] = np.inf, -np.inf
    return level, tops


def _padded(rows: Array, fill: float) -> Array:
    return np.concatenate([rows, np.full((-len(rows) % SIDE, *rows.shape[1:]), fill, rows.dtype)])


def lengths_up(lengths: Floats) -> tuple[Bytes, Floats]:
    """``coded [rows, n]`` uint8 and ``unit [n]`` with ``coded * unit >= lengths``, all finite."""
    unit = round_up(lengths.max(axis=0, initial=0.0).astype(np.float64) / 255 * (1 + 1e-7))
    unit = np.maximum(unit, np.float32(2.0**-120))
    return np.minimum(np.ceil(lengths / unit.astype(np.float64)), 255).astype(np.uint8), unit


def pack_records(codes: NDArray[np.int8], lengths: Floats, scale: Floats, base: Floats) -> Bytes:
    """``[groups, bytes]``: for sixteen neighbours each, codes ``[count][16]``, lengths ``[tails][16]``, scale, unit, base."""
    groups = len(codes) // SIDE
    coded, unit = lengths_up(lengths)
    parts = [
        codes.view(np.uint8).reshape(groups, SIDE, -1).transpose(0, 2, 1).reshape(groups, -1),
        coded.reshape(len(coded), groups, SIDE).transpose(1, 0, 2).reshape(groups, -1),
        *(np.ascontiguousarray(row, np.float32).reshape(groups, SIDE).view(np.uint8) for row in (scale, unit, base)),
    ]
    return np.ascontiguousarray(np.concatenate(parts, axis=1))
