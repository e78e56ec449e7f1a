"""Codes of 1, 2, 3, 4 or 8 bits in a rotated basis, plane after plane: each plane codes what the ones before left.

    <w_i, hidden> + b_i = base_i + <centre, hidden> + <B_i, x>           x = (hidden - mean) R, see whitening.py
    level 0    estimate = sum_s scale_is <code_is, x_s>     |z - estimate| <= sum_s ‖B_is - scale_is code_is‖ ‖x_s‖
    level 1    adds codes of what level 0 left, row by row, for the classes that stay open

Coordinates come in groups of as many bits as they deserve (``filled``: reverse water-filling; 0 bits keep a norm only). Nothing
is stored twice: a level adds to the one before.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from headlong.layers.matrix import Layer
from headlong.native import Doubles, Floats
from headlong.native.planes import Plane, norm_of, take_plane
from headlong.plan import Dense, Level, Plan, Term, row_bytes
from headlong.previews.encode import Encoded, Group, Groups, encode, sum_up
from headlong.previews.prefix import spread
from headlong.previews.radii import ROUNDING, Summands, joined, roundings
from headlong.previews.whitening import Basis, Directions

WIDEST = 32
"""Groups begin at multiples of this, so that a word of 1-bit codes is full."""

SAMPLE = 1024
"""Rows, at most, that tell the energy of every coordinate and what a look leaves open."""

DEEPER: dict[int, tuple[Plane, ...]] = {0: (), 6: ((4, "upper"), (2, "lower"))}
"""The planes of level 1. What 4 bits with a Gaussian's step leave, 6 bits of it leave less than 8 bits of the whole would."""

Spent = tuple[tuple[int, int, tuple[int, ...]], ...]


class Planes(NamedTuple):
    """What is coded: ``groups`` ((start, stop, planes), ...) of level 0, planes () keeping a norm; ``deeper`` bits of level 1,
    one of :data:`DEEPER`."""

    groups: Spent
    deeper: int = 6


def sampled(layer: Layer, basis: Basis | Directions) -> Doubles:
    """Some rows, evenly spread, in the basis: in float32, in a unit of their size. They only decide what a plan is."""
    rows = layer.weight[:: -(-layer.vocab // SAMPLE)] - basis.centre
    unit = max(float(np.abs(rows).max(initial=0.0)), 1e-300)
    return ((rows / unit).astype(np.float32) @ basis.back.astype(np.float32, copy=False)).astype(np.float64) * unit


def energy_of(rows: Doubles) -> Doubles:
    """The mean square of every coordinate over a sample of the rows."""
    return np.asarray(np.einsum("ij,ij->j", rows, rows) / len(rows))


def filled(energy: Doubles, mean_bits: float) -> Spent:
    """Reverse water-filling: ``max(0, log2(energy / level) / 2)`` bits, ``mean_bits`` on average, rounded to 8, 4, 2, 1, 0.
    The ``energy`` of every coordinate is made to descend."""
    energy = np.maximum.accumulate(energy[::-1])[::-1]
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
            found.append((edges[-1], stop, (bits,) if bits else ()))
            edges.append(stop)
    return tuple(found)


def balanced(basis: Directions, energy: Doubles) -> Basis:
    """Rows and queries as large as each other in every coordinate: a group has one step and one Cauchy-Schwarz, which lose
    least where its coordinates are alike on both sides. (Whitening leaves all the energy to the rows.)"""
    return basis.basis(balance_of(energy))


def balance_of(energy: Doubles) -> Doubles:
    """What every coordinate is multiplied by: the fourth root of its energy, the largest being 1."""
    share = energy / max(float(energy.max(initial=0.0)), 1e-300)
    return np.asarray(np.maximum(share, 1e-12) ** 0.25)


def groups_of(planes: Planes) -> Groups:
    """The groups of both levels: coordinates that keep a norm in segments of doubling length; behind those of eight bits all
    together in level 1, since what was spent by energy leaves as much of each."""
    coarse: list[Group] = []
    for start, stop, bits in planes.groups:
        kinds = tuple((one, "absmax" if one == 8 else "gaussian") for one in bits)
        segments = ((start, stop),) if bits else spread(start, 2 * max(start, WIDEST), 2, stop)
        coarse.extend(Group(*segment, kinds) for segment in segments)
    behind = [group for group in coarse if not _eight(group)]
    fine = (Group(behind[0].start, behind[-1].stop, DEEPER[planes.deeper]),) if behind and planes.deeper else ()
    return Groups(tuple(coarse), fine)


def lost_by(values: Floats, planes: tuple[Plane, ...]) -> Doubles:
    """What codes of these planes lose of each row."""
    left, before = values.copy(), np.zeros(len(values), np.float32)
    for one in planes:
        _, before, _ = take_plane(left, one, before)
    return norm_of(left)


def read_first(groups: Groups) -> tuple[int, int]:
    """Of a class at level 0: bytes (codes, a scale per plane, a slack per group below 8 bits and one for all, the base);
    how many codes have fewer than 8 bits."""
    total, few = 8, 0
    for group in groups.coarse:
        total += sum(-(-row_bytes(stop, bits, start) // 4) * 4 + 4 for start, stop, bits in group.layout)
        total += 0 if _eight(group) else 4
        few += sum(stop - start for start, stop, bits in group.layout if bits < 8)
    return total, few


def _eight(group: Group) -> bool:
    return any(bits == 8 for bits, _ in group.planes)


def planes_plan(layer: Layer, basis: Basis, planes: Planes, dense: Dense, threads: int = 1) -> Plan:
    """Level 0 by groups, level 1 over what it left of coordinates below 8 bits; rows that cannot be coded always scored."""
    groups = groups_of(planes)
    found = encode(layer, basis, groups, threads)
    own, terms, shared = _first_radius(groups.coarse, found)
    own[:, found.uncoded] = 0.0
    rounding = roundings(layer, basis, found)
    slack, more = joined(_summands(layer.dim, shared, found.size, rounding), found.uncoded, len(own))
    layout = tuple(place for group in groups.coarse for place in group.layout)
    levels = [Level(found.codes, layout, found.scale, np.concatenate([own, slack]), (*terms, *more), planes=1)]
    layout = tuple(place for group in groups.fine for place in group.layout)
    if layout:
        lost = [(_norm(group), side) for group, side in zip(groups.coarse, found.rest_lost, strict=True)]
        slack, more = joined(_summands(layer.dim, lost, found.rest_size, rounding), found.uncoded, 0)
        levels.append(Level(found.rest, layout, found.rest_scale, slack, more, adds=True))
    return Plan(basis.mean, basis.rotation, found.base, basis.centre, tuple(levels), dense=dense)


def _norm(group: Group, factor: float = 1.0, row: int = -1) -> Term:
    return Term("norm", group.start, group.stop, factor, row)


def _first_radius(
    groups: tuple[Group, ...], found: Encoded
) -> tuple[Floats, list[Term], list[tuple[Term, Floats]]]:
    """Rows of the slack of their own and their terms, and what may share one with roundings."""
    lost = sum_up(found.lost, found.rounded)
    alone = [g for g, group in enumerate(groups) if not _eight(group)]
    shared = [(_norm(group), lost[g]) for g, group in enumerate(groups) if _eight(group)]
    return lost[alone], [_norm(groups[g], 1.0, row) for row, g in enumerate(alone)], shared


def _summands(dim: int, lost: list[tuple[Term, Floats]], size: Floats, rounding: Summands) -> Summands:
    """Those of a row that several share: what codes lose, what the query's two planes do, and roundings."""

    def summands(some: slice) -> list[tuple[Term, Doubles]]:
        sizes = size[some].astype(np.float64)
        gaps = [(term, side[some].astype(np.float64)) for term, side in lost]
        executor = (Term("norm", 0, dim), 2 * ROUNDING * sizes)
        return [*gaps, (Term("quantised", 0, dim), sizes), executor, *rounding(some)]

    return summands
