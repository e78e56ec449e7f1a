"""Codes of 1, 2, 3, 4 or 8 bits in a turned basis, plane after plane: each plane codes what the ones before left.

    <w_i, hidden> + b_i = base_i + <centre, hidden> + <B_i, x>           x = (hidden - mean) R, see whitening.py and sphere.py
    level 0    estimate = sum_s scale_is <code_is, x_s>     |z - estimate| <= sum_s ‖B_is - scale_is code_is‖ ‖x_s‖   (sure)
               or, with unbiased scales on a random rotation, <= ‖B_i - scale_i code_i‖ t ‖x‖ but for the rate of t
    level 1    adds codes of what level 0 left, row by row, for the classes that stay open; its radius is sure

Coordinates come in groups of as many bits as they deserve (``filled``: reverse water-filling; 0 bits keep a norm only), or all
with the same number on a random rotation, where every row looks Gaussian and one step per row is nearly optimal. Three bits
are a plane of two and one of what it left. Nothing is stored twice: a level adds to the one before.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.kernels import Doubles, Floats, encode_int8, round_up
from headlong.layers.matrix import Layer
from headlong.plan import Dense, Level, Plan, Term, deinterleave, interleave, pack, padded, row_bytes
from headlong.previews.bits import LARGEST, LARGEST_BASE, UNDERFLOW
from headlong.previews.prefix import CHUNK, ROUNDING, UNDERFLOWN, Segments, joined, largest_of, norm_of, spread
from headlong.previews.sphere import quantile
from headlong.previews.whitening import UNIT, Basis, basis_of, parts, stored

STEPS = {1: 2.0, 2: 0.9957, 4: 0.3352}
"""The best uniform step for a Gaussian, in standard deviations (Max 1960); a row's scale is fitted afterwards."""
WIDEST = 32
"""Groups begin at multiples of this, so that a word of 1-bit codes is full."""


Groups = tuple[tuple[int, int, tuple[int, ...]], ...]


class Planes(NamedTuple):
    """What is coded: ``groups`` ((start, stop, planes), ...) of level 0, planes () keeping a norm; ``deeper`` bits of level 1
    (0: none); ``rate`` of the rotation at which a radius may fail, or None: sure."""

    groups: Groups
    deeper: int = 4
    rate: float | None = None


def planes_of(bits: int) -> tuple[int, ...]:
    """``3 -> (2, 1)``: the planes that make up ``bits``."""
    return {0: (), 3: (2, 1)}.get(bits, (bits,))


def energy_of(basis: Basis, layer: Layer) -> Doubles:
    """The mean square of every coordinate over a sample of the rows, made to descend."""
    rows = layer.weight[:: -(-layer.vocab // 2048)] - basis.centre
    return np.maximum.accumulate((((rows @ basis.back) ** 2).mean(axis=0))[::-1])[::-1]


def filled(energy: Doubles, mean_bits: float) -> Groups:
    """Reverse water-filling: ``max(0, log2(energy / level) / 2)`` bits, ``mean_bits`` on average, rounded to 8, 4, 2, 1, 0."""
    logs = 0.5 * np.log2(np.maximum(energy, energy[0] * 1e-30 + 1e-300))
    low, high = logs.min() - mean_bits - 1, logs.max()
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(logs - middle, 0, 8).mean() > mean_bits else (low, middle)
    edges, found = [0], []
    for least, bits in ((6.0, 8), (3.0, 4), (1.5, 2), (0.5, 1), (-math.inf, 0)):
        stop = int((logs - high >= least).sum()) if bits else len(energy)
        stop = max(stop, 1) if bits == 8 else stop  # something is always looked at
        stop = max(edges[-1], min(len(energy), -(-stop // WIDEST) * WIDEST))
        if stop > edges[-1]:
            found.append((edges[-1], stop, planes_of(bits)))
            edges.append(stop)
    return tuple(found)


def balanced(basis: Basis, layer: Layer) -> Basis:
    """Rows and queries as large as each other in every coordinate: a group has one step and one Cauchy-Schwarz, which lose
    least where its coordinates are alike on both sides. (Whitening leaves all the energy to the rows.)"""
    rows = layer.weight[:: -(-layer.vocab // 2048)] - basis.centre
    size = balance_of(((rows @ basis.back) ** 2).sum(axis=0))
    return basis_of(basis.mean, basis.centre, stored(basis.rotation.astype(np.float64) * size), basis.scale)


def balance_of(energy: Doubles) -> Doubles:
    """What every coordinate is multiplied by: the fourth root of its energy, the largest being 1."""
    share = energy / max(float(energy.max(initial=0.0)), 1e-300)
    return np.asarray(np.maximum(share, 1e-12) ** 0.25)


def lost_by(values: Floats, planes: tuple[int, ...]) -> Doubles:
    """What codes of these planes lose of each row."""
    left = values.copy()
    for bits in planes:
        codes, scale = eight_bits(left) if bits == 8 else few_bits(left, bits)
        left -= scale[:, None] * (codes.astype(np.float32) - 128 if bits == 8 else 2 * codes.astype(np.float32) - (2**bits - 1))
    return norm_of(left)


def plane_bytes(groups: Groups) -> int:
    """Of a class at level 0: codes, a scale per plane, a slack per group of fewer than 8 bits and one for all, the base."""
    codes = sum(-(-row_bytes(stop, bits, start) // 4) * 4 for start, stop, planes in groups for bits in planes)
    return codes + 4 * (sum(len(planes) + (8 not in planes) for _, _, planes in groups) + 2)


def planes_plan(layer: Layer, basis: Basis, planes: Planes, dense: Dense, threads: int = 1) -> Plan:
    """Level 0 by groups, level 1 over what it left of coordinates below 8 bits; rows that cannot be coded always scored."""
    builder = _Builder(layer, basis, planes)
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(builder.take, parts(layer.weight)):
            pass
    return builder.plan(dense)


class _Coded:
    """One plane of one group: where its codes are, and its scale per class."""

    def __init__(self, start: int, stop: int, bits: int, vocab: int, interleaved: bool) -> None:
        self.start, self.stop, self.bits = start, stop, bits
        size = row_bytes(stop, bits, start)
        size = -(-size // 4) * 4 if interleaved else size
        self.rows: NDArray[np.uint8] = np.full((vocab, size), 128 if bits == 8 else 0, np.uint8)
        self.scale = np.zeros(padded(vocab), np.float32)

    def take(self, part: slice, left: Floats) -> Doubles:
        """Codes ``left [n, stop - start]``, takes them from it, returns ``‖scale * code‖``."""
        codes, scale = eight_bits(left) if self.bits == 8 else few_bits(left, self.bits)
        packed = pack(codes, self.bits)
        self.rows[part, : packed.shape[1]] = packed
        self.scale[part] = scale
        whole = codes.astype(np.float32) - 128 if self.bits == 8 else 2 * codes.astype(np.float32) - (2**self.bits - 1)
        whole *= scale[:, None]
        left -= whole
        return norm_of(whole)

    @property
    def layout(self) -> tuple[int, int, int]:
        return self.start, self.stop, self.bits


def eight_bits(values: Floats) -> tuple[NDArray[np.uint8], Floats]:
    """Symmetric absmax, as everywhere."""
    found = encode_int8(np.ascontiguousarray(values))
    return deinterleave(found.codes, len(values))[:, : values.shape[1]], found.scale[: len(values)]


def few_bits(values: Floats, bits: int) -> tuple[NDArray[np.uint8], Floats]:
    """``u`` of ``scale * (2 u - 2^bits + 1)``: the best uniform step for a Gaussian of the row's size, then the best scale."""
    half = 2 ** (bits - 1)
    size = np.sqrt(np.einsum("ij,ij->i", values, values) / values.shape[1])
    usable = (size > 1e-30) & (size < 1e30)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        wide = values * np.where(usable, 1 / (STEPS[bits] * size), 0).astype(np.float32)[:, None]
    codes = np.clip(np.floor(wide, out=wide) + half, 0, 2 * half - 1).astype(np.uint8)
    whole = 2 * codes.astype(np.float32) - (2 * half - 1)
    fit = np.einsum("ij,ij->i", values, whole) / np.einsum("ij,ij->i", whole, whole)
    return codes, np.where(usable & (fit > 1e-35), fit, 0).astype(np.float32)


class _Builder:
    """Collects the planes, and per class what they lose, from blocks of rows."""

    def __init__(self, layer: Layer, basis: Basis, planes: Planes) -> None:
        self.layer, self.basis, self.planes = layer, basis, planes
        count = padded(layer.vocab)
        self.groups: Segments = ()
        self.coarse: list[list[_Coded]] = []
        self.fine: list[_Coded | None] = []
        for start, stop, bits in planes.groups:
            for a, b in ((start, stop),) if bits else spread(start, 2 * max(start, WIDEST), 2, stop):
                self.groups += ((a, b),)
                self.coarse.append([_Coded(a, b, plane, layer.vocab, True) for plane in bits])
                whole = planes.deeper == 0 or 8 in bits
                self.fine.append(None if whole else _Coded(a, b, planes.deeper, layer.vocab, False))
        self.lost, self.fine_lost = np.zeros((2, len(self.groups), count))
        self.rounded = np.zeros((len(self.groups), count))
        self.size, self.fine_size, self.length = np.zeros((3, count))
        self.base = np.zeros(count, np.float32)
        self.uncoded = np.zeros(count, bool)
        self.forth = np.ascontiguousarray(basis.back, np.float32)
        unit = (min(layer.dim, CHUNK) + -(-layer.dim // CHUNK) + 16) * 2.0**-24
        self.unit = [unit * float(np.linalg.norm(basis.back[:, start:stop])) for start, stop in self.groups]

    def take(self, part: slice) -> None:
        """The classes ``part``, which no other thread takes."""
        rows = self.layer.weight[part] - self.basis.centre
        left = self._turned(rows)
        base = rows @ self.basis.mean
        if self.layer.bias is not None:
            base += self.layer.bias[part]
        length = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        with np.errstate(invalid="ignore"):
            uncoded = ~((largest_of(left) <= LARGEST / len(rows[0])) & (length <= LARGEST) & (np.abs(base) <= LARGEST_BASE))
        left[uncoded], base[uncoded], length[uncoded] = 0.0, 0.0, 0.0
        self.uncoded[part], self.base[part], self.length[part] = uncoded, base, length
        for g, (start, stop) in enumerate(self.groups):
            self._take_group(g, part, np.ascontiguousarray(left[:, start:stop]), length)

    def _take_group(self, g: int, part: slice, left: Floats, length: Doubles) -> None:
        whole, size = left.copy(), np.zeros(len(left))
        for coded in self.coarse[g]:
            size += coded.take(part, left)
        if self.planes.rate is not None:
            size *= self._unbiased(g, part, whole, left)
        slop = 1 + (left.shape[1] + 8) * 2.0**-24
        self.lost[g, part] = norm_of(left) * slop
        # The product with the basis, and what is left being rounded wherever codes were taken from it. An unbiased scale
        # moves by as much relatively, of a code up to 2.8 times as long as the row is (one bit).
        self.rounded[g, part] = (self.unit[g] * length + UNDERFLOWN) * (1 if self.planes.rate is None else 4) + 2.0**-21 * size
        self.size[part] += size
        fine = self.fine[g]
        self.fine_lost[g, part] = self.lost[g, part] + self.rounded[g, part]
        if fine is not None:
            more = fine.take(part, left)
            self.fine_size[part] += more
            self.fine_lost[g, part] = norm_of(left) * slop + self.rounded[g, part] + 2.0**-22 * more

    def _unbiased(self, g: int, part: slice, whole: Floats, left: Floats) -> Doubles:
        """Scales the codes c by ``‖w‖^2 / <c, w>``: what is left is then orthogonal to the row. Returns that factor."""
        codes = whole - left
        inner = np.einsum("ij,ij->i", codes, whole, dtype=np.float64)
        square = np.einsum("ij,ij->i", whole, whole, dtype=np.float64)
        factor = np.divide(square, inner, out=np.ones_like(inner), where=inner > 0.2 * square).astype(np.float32)
        for coded in self.coarse[g]:
            coded.scale[part] *= factor
        np.subtract(whole, codes * factor[:, None], out=left)
        return np.asarray(factor, np.float64)

    def _turned(self, rows: Doubles) -> Floats:
        """``rows @ back`` in float32, of :data:`CHUNK` coordinates at a time."""
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = rows.astype(np.float32)
            turned = narrow[:, :CHUNK] @ self.forth[:CHUNK]
            for start in range(CHUNK, rows.shape[1], CHUNK):
                turned += narrow[:, start : start + CHUNK] @ self.forth[start : start + CHUNK]
        return turned

    def plan(self, dense: Dense) -> Plan:
        basis = self.basis
        coded = [plane for planes in self.coarse for plane in planes]
        alone, shared, terms = self._first_radius()
        slack, more = joined([*shared, *self._roundings(self.size)], self.layer.vocab, self.uncoded, len(alone))
        own = round_up(alone * (1 + 1e-9))
        own[:, self.uncoded] = 0.0
        codes = np.concatenate([interleave(plane.rows) for plane in coded], axis=1)
        layout = tuple(plane.layout for plane in coded)
        scale = np.stack([plane.scale for plane in coded])
        levels = [Level(codes, layout, scale, np.concatenate([own, slack]), (*terms, *more))]
        fine = [plane for plane in self.fine if plane is not None]
        if fine:
            parts_ = [(Term("norm", *group), lost) for group, lost in zip(self.groups, self.fine_lost, strict=True)]
            slack, more = joined([*parts_, *self._roundings(self.size + self.fine_size)], self.layer.vocab, self.uncoded, 0)
            codes = np.concatenate([plane.rows for plane in fine], axis=1)
            scale = np.stack([plane.scale for plane in fine])
            levels.append(Level(codes, tuple(plane.layout for plane in fine), scale, slack, more, adds=True))
        return Plan(basis.mean, basis.rotation, self.base, basis.centre, tuple(levels), dense=dense)

    def _first_radius(self) -> tuple[Doubles, list[tuple[Term, Doubles]], list[Term]]:
        """Rows of the slack of their own, what may share one with roundings, and the terms of the former."""
        dim, rate = self.layer.dim, self.planes.rate
        if rate is not None:
            reach = quantile(dim - 1, rate / self.layer.vocab)
            return self.lost, [(Term("norm", 0, dim), self.rounded[0])], [Term("norm", 0, dim, reach, 0)]
        eight = [any(plane.bits == 8 for plane in planes) for planes in self.coarse]
        alone = [g for g, wide in enumerate(eight) if not wide]
        lost = self.lost + self.rounded
        shared = [(Term("norm", *self.groups[g]), lost[g]) for g, wide in enumerate(eight) if wide]
        return lost[alone], shared, [Term("norm", *self.groups[g], 1.0, row) for row, g in enumerate(alone)]

    def _roundings(self, size: Doubles) -> list[tuple[Term, Doubles]]:
        """What the query's two planes, the executor, the base, products with the means and the rotation lose."""
        basis, dim = self.basis, self.layer.dim
        unit = (dim + 8) * UNIT
        mean, centre = (float(np.linalg.norm(vector)) for vector in (basis.mean, basis.centre))
        offset = np.abs(self.base.astype(np.float64))
        fixed = (ROUNDING + 2.0**-24) * offset + 2 * unit * mean * (self.length + centre) + UNDERFLOW
        return [
            (Term("quantised", 0, dim), size),
            (Term("norm", 0, dim), 2 * ROUNDING * size),
            (Term("one", 0, 0), fixed),
            (Term("hidden", 0, 0), basis.lost * self.length + unit * (self.length + centre)),
        ]

