"""The whitened prefix: int8 codes of the coordinates that carry the logits, norms of all others, then the others.

    <w_i, hidden> + b_i = base_i + <centre, hidden> + <B_i, x'>                          (see whitening.py)
    level 0    estimate over x'[:width],   |z - estimate| <= sum_s ‖B_i[s]‖ ‖x'[s]‖ + what codes and rounding lose
    level 1    adds int8 codes of x'[width:], row by row, for the classes that level 0 leaves open

The tail's segments double in length, each with its own Cauchy-Schwarz: one norm over all of it would be several times
wider. What codes, float32 and float64 lose has one row of the slack for all: its parts, each over its median, by their
maximum. (16 bits for the first coordinates, a second code of what the first one left, narrow the radius by 1-5 % and
lengthen the level by 10 %: not here.)

No probability enters: the radius holds for every finite row and query.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array
from headlong.kernels import Codes, Doubles, Floats, encode_int8, round_up
from headlong.layers.matrix import Layer
from headlong.plan import CLASS_BLOCK, ESTIMATE_ROUNDING, Dense, Level, Plan, Term, deinterleave, padded
from headlong.previews.bits import LARGEST, LARGEST_BASE, UNDERFLOW
from headlong.previews.whitening import UNIT, Basis, parts

FIRST = 16
"""Coordinates of the first segment of level 0; each further one reaches four times as far."""
MOST_SEGMENTS = 4
"""Of level 0, and of the tail: the last takes what is left."""
ROUNDING = 2 * ESTIMATE_ROUNDING
"""Several segments are added up where the executor's promise speaks of one."""
CHUNK = 512
"""Coordinates that a product in float32 adds up in one go."""
UNDERFLOWN = 2.0**-120
"""More than what float32 flushes towards zero in a product of a row with the basis, as a length."""
Segments = tuple[tuple[int, int], ...]


def prefix_plan(
    layer: Layer,
    basis: Basis,
    width: int,
    dense: Dense,
    threads: int = 1,
    factor: float | None = None,
    deeper: bool = True,
    likely: float = 1.0,
) -> Plan:
    """Level 0 over ``width`` coordinates, level 1 over the others, and rows that cannot be coded always scored.

    ``factor``  of the tail's Cauchy-Schwarz, as learned (``learned.py``); None: sure, segment by segment
    ``deeper``  False: no level 1; exact rows follow the prefix
    ``likely``  what of the sure tail is left but for a rate, as learned: for the normaliser that is estimated
    """
    builder = _Builder(layer, basis, width, deeper)
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(builder.take, parts(layer.weight)):
            pass
    return builder.plan(dense, factor, likely)


def spread(start: int, first: int, factor: int, stop: int) -> Segments:
    """``[start, first), [first, factor * first), ...`` up to ``stop``, the last of :data:`MOST_SEGMENTS` taking the rest."""
    edges, edge = [start], first
    while edges[-1] < stop:
        edges.append(stop if len(edges) == MOST_SEGMENTS else min(edge, stop))
        edge *= factor
    return tuple(itertools.pairwise(edges))


def tail_of(width: int, dim: int) -> Segments:
    """The segments of the coordinates behind the prefix, each with its own Cauchy-Schwarz."""
    return spread(width, 2 * width, 2, dim)


class _Builder:
    """Collects the codes, and per class what they lose, from blocks of centred rows."""

    def __init__(self, layer: Layer, basis: Basis, width: int, deeper: bool) -> None:
        dim = layer.dim
        self.layer, self.basis, self.width, self.deeper = layer, basis, width, deeper
        self.head = spread(0, FIRST, 4, width)
        self.tail = tail_of(width, dim)
        count = padded(layer.vocab)
        self.quads = [-(-(stop - start) // 4) for start, stop in self.head]
        self.codes = np.full((count // CLASS_BLOCK, sum(self.quads), CLASS_BLOCK, 4), 128, np.uint8)
        self.scale = np.zeros((len(self.head), count), np.float32)
        self.rest = np.full((layer.vocab, dim - width if deeper else 0), 128, np.uint8)
        self.rest_scale = np.zeros((len(self.tail), count), np.float32)
        self.base = np.zeros(count, np.float32)
        self.uncoded = np.zeros(count, bool)
        # Norms per class: of each segment of the tail, of what the codes lose there and in the head, of the codes.
        self.norms, self.rest_lost = np.zeros((2, len(self.tail), count))
        self.head_lost = np.zeros((len(self.head), count))
        self.head_size, self.all_size, self.length = np.zeros((3, count))
        # The head in float64 and <row, mean> beside it; the tail in float32, with what that loses per segment.
        self.forth = np.column_stack([basis.back[:, :width], basis.mean])
        self.tail_forth = np.ascontiguousarray(basis.back[:, width:], np.float32)
        unit = (min(dim, CHUNK) + -(-dim // CHUNK) + 16) * 2.0**-24
        self.rounding = [unit * float(np.linalg.norm(basis.back[:, start:stop])) for start, stop in self.tail]

    def take(self, part: slice) -> None:
        """The classes ``part``, which no other thread takes."""
        rows = self.layer.weight[part] - self.basis.centre
        head = rows @ self.forth
        turned, base = head[:, :-1], head[:, -1]
        tail = self._turned_tail(rows)
        length = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        if self.layer.bias is not None:
            base += self.layer.bias[part]
        with np.errstate(invalid="ignore"):
            largest = np.maximum(largest_of(turned), largest_of(tail))
        uncoded = ~((largest <= LARGEST / len(rows[0])) & (length <= LARGEST) & (np.abs(base) <= LARGEST_BASE))
        turned[uncoded], tail[uncoded], base[uncoded], length[uncoded] = 0.0, 0.0, 0.0, 0.0
        self.uncoded[part], self.base[part], self.length[part] = uncoded, base, length
        for s, (start, stop) in enumerate(self.tail):
            size = norm_of(tail[:, start - self.width : stop - self.width])
            self.norms[s, part] = size * (1 + (stop - start + 8) * 2.0**-24) + self.rounding[s] * length + UNDERFLOWN
        self._code_head(part, turned)
        if self.deeper:
            self._code_rest(part, tail, length)

    def _turned_tail(self, rows: Doubles) -> Floats:
        """``rows @ back[:, width:]`` in float32, of :data:`CHUNK` coordinates at a time."""
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = rows.astype(np.float32)
            tail = narrow[:, :CHUNK] @ self.tail_forth[:CHUNK]
            for start in range(CHUNK, rows.shape[1], CHUNK):
                tail += narrow[:, start : start + CHUNK] @ self.tail_forth[start : start + CHUNK]
        return tail

    def _code_head(self, part: slice, turned: Doubles) -> None:
        blocks = slice(part.start // CLASS_BLOCK, -(-part.stop // CLASS_BLOCK))
        left, place, sizes = turned.copy(), 0, []
        for s, (start, stop) in enumerate(self.head):
            found = self._encode(left[:, start:stop])
            self.codes[blocks, place : place + self.quads[s]] = found.codes
            self.scale[s, part] = found.scale[: len(left)]
            whole = deinterleave(found.codes, len(left))[:, : stop - start].astype(np.float64) - 128
            left[:, start:stop] -= whole * found.scale[: len(left), None]
            place += self.quads[s]
            sizes.append(found.size[: len(left)].astype(np.float64))
        for s, (start, stop) in enumerate(self.head):
            self.head_lost[s, part] = norm_of(left[:, start:stop])
        self.head_size[part] = np.sqrt(sum(size**2 for size in sizes))

    def _code_rest(self, part: slice, tail: Floats, length: Doubles) -> None:
        square = self.head_size[part] ** 2
        for s, (start, stop) in enumerate(self.tail):
            columns = slice(start - self.width, stop - self.width)
            found = self._encode(tail[:, columns])
            self.rest[part, columns] = deinterleave(found.codes, len(tail))[:, : stop - start]
            self.rest_scale[s, part] = found.scale[: len(tail)]
            error, size = (side[: len(tail)].astype(np.float64) for side in (found.error, found.size))
            # The codes are of the rows as float32 has them.
            self.rest_lost[s, part] = error + self.rounding[s] * length + UNDERFLOWN
            square += size**2
        self.all_size[part] = np.sqrt(square)

    @staticmethod
    def _encode(values: Array) -> Codes:
        return encode_int8(np.ascontiguousarray(values, np.float32))

    def plan(self, dense: Dense, factor: float | None, likely: float) -> Plan:
        basis, dim = self.basis, self.layer.dim
        tail = tuple(Term("norm", start, stop, 1.0, row, likely) for row, (start, stop) in enumerate(self.tail))
        if factor is not None and self.tail:
            tail = (Term("norm", self.width, dim, factor, 0),)
            self.norms = np.sqrt((self.norms**2).sum(axis=0, keepdims=True))
        slack, terms = self._shared(self.head, self.head_lost, self.head_size, self.width, len(tail))
        norms = round_up(self.norms * (1 + 1e-9))
        norms[:, self.uncoded] = 0.0
        layout = tuple((start, stop, 8) for start, stop in self.head)
        levels = [Level(self.codes, layout, self.scale, np.concatenate([norms, slack]), (*tail, *terms))]
        if self.tail and self.deeper:
            everywhere = (*self.head, *self.tail)
            lost = np.concatenate([self.head_lost, self.rest_lost])
            slack, terms = self._shared(everywhere, lost, self.all_size, dim, 0)
            layout = tuple((start, stop, 8) for start, stop in self.tail)
            levels.append(Level(self.rest, layout, self.rest_scale, slack, terms, adds=True))
        return Plan(basis.mean, basis.rotation, self.base, basis.centre, tuple(levels), dense=dense)

    def _shared(self, segments: Segments, lost: Doubles, size: Doubles, stop: int, row: int) -> tuple[Floats, tuple[Term, ...]]:
        """One row of the slack for everything but the tail."""
        gaps = lost * (1 + 1e-9) + ROUNDING * size
        parts = [(Term("norm", *segment), gap) for segment, gap in zip(segments, gaps, strict=True)]
        return joined([*parts, (Term("quantised", 0, stop), size), *self._roundings()], self.layer.vocab, self.uncoded, row)

    def _roundings(self) -> list[tuple[Term, Doubles]]:
        """What the rotation, the base in float32 and products with the means lose."""
        basis, base = self.basis, np.abs(self.base.astype(np.float64))
        unit = (self.layer.dim + 8) * UNIT
        mean, centre = (float(np.linalg.norm(vector)) for vector in (basis.mean, basis.centre))
        fixed = (ROUNDING + 2.0**-24) * base + 2 * unit * mean * (self.length + centre) + UNDERFLOW
        return [(Term("one", 0, 0), fixed), (Term("hidden", 0, 0), basis.lost * self.length + unit * (self.length + centre))]


def joined(
    parts: list[tuple[Term, Doubles]], vocab: int, uncoded: NDArray[np.bool_], row: int
) -> tuple[Floats, tuple[Term, ...]]:
    """One row of the slack for many summands: ``max_p part_p / median_p``, and the terms times ``median_p``."""
    worst = np.zeros(len(uncoded))
    terms = []
    for term, part in parts:
        typical = _typical(part[:vocab])
        worst = np.maximum(worst, part / typical)
        terms.append(term._replace(factor=typical, row=row))
    worst[uncoded] = np.inf
    return round_up(worst[None] * (1 + 1e-9)), tuple(terms)


def norm_of(values: Array) -> Doubles:
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", values, values)), np.float64)


def largest_of(values: Array) -> Array:
    return np.asarray(np.maximum(values.max(axis=1, initial=0.0), -values.min(axis=1, initial=0.0)))


def _typical(part: NDArray[np.float64]) -> float:
    """A factor of the size of most entries, never 0."""
    some = part[part > 0]
    return max(float(np.median(some)), 1e-30) if len(some) else 1e-30
