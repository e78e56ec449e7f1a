"""Bounds on classes that point the same way: multiples of a shared direction, and what is left of each beside it.

    z_i  =  base_i + a_i <t, x> + <left_i, x>  <=  base_i + a_i <t, x> + sum_s ‖left_i[s]‖ ‖x[s]‖ + rounding          a class
    max of z_i  <=  max base_i + max(max a_i <t, x>, min a_i <t, x>) + sum_s max ‖left_i[s]‖ ‖x[s]‖ + rounding   of a ray

One product with t is for all of its classes, and a class is a byte for its scale, one for its base and one for each length,
where a box has to hold all coordinates of all of them. Rays bound layers whose rows differ from each other in every direction
but lie around a few hundred, as items lie around tastes; on others boxes read less. Classes of a ray are cut into sixteens by
what they may reach: those come in whole pieces, and what pads the last one is no class.

Everything is rounded outwards, as for boxes (``blocks.py``): directions, scales and what is left are taken as they are stored,
bases and lengths are rounded up, and float32's own rounding is in the bases and in the lengths.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import evenly
from headlong.dtypes import Doubles, Floats, Ids
from headlong.layers.matrix import Layer
from headlong.native import round_up
from headlong.plan import NEIGHBOURS, Blocks, BoxLevel, Rays
from headlong.previews.blocks.records import BlockShape, Bytes, Classes, lengths_up, padded_rows
from headlong.previews.radii import ROUNDING
from headlong.previews.whitening import Basis
from headlong.randomness import stream

MOST_CLASSES, MOST_DIM = 1 << 15, 128
"""Every query reads all directions and every coordinate of the rotation: beyond, that is too much."""
A_RAY = 24
"""Classes to a direction, on average: more of them make fewer directions to read, and wider bounds."""
ROUNDS, TAUGHT_BY, SEED = 6, 16, 0
"""Of k-means on the sphere, and how many rows a direction is learned from, on average."""
FIRST_SEGMENT = 8
"""Coordinates of the first segment; each further one doubles, the last takes what is left of :data:`SEGMENTS`."""
SEGMENTS = 5
FAR = 2.5
"""Standard deviations of a product with a direction for which its classes are put in order."""
WIDEST = 1e6
"""Rows and bases within which no product leaves float32."""
LEAST = np.float32(1e-30)
AT_ONCE, FEW = 4096, 1024
"""Classes that are looked at together, and those that all directions are compared with."""


def rays_of(layer: Layer, basis: Basis) -> Blocks | None:
    """Blocks whose bounds go by rays, one for :data:`A_RAY` classes; None where a row is out of reach."""
    shape = shape_of(layer.dim)
    classes = Classes(layer, basis, shape)
    rows = _decoded(classes)
    if classes.uncoded.any() or np.abs(rows).max(initial=0.0) > WIDEST or np.abs(classes.base).max(initial=0.0) > WIDEST:
        return None
    directions, scale, near = _coded(*_directions(rows, -(-layer.vocab // A_RAY)), rows)
    along = _along(rows, directions, near)
    order, owner = _pieces(near, classes.base + FAR * basis.scale * np.linalg.norm(directions, axis=1)[near] * along)
    levels, closer, last = _records(classes, shape, rows, directions, near, along, order)
    rotation: Any = np.ascontiguousarray(basis.rotation.T)
    shared = tuple(factor / last for factor in classes.closer_shared)
    owned = np.concatenate([owner, np.zeros(-len(owner) % NEIGHBOURS, np.int64)]).astype(np.uint16)
    codes = np.rint(directions / scale.astype(np.float64)[:, None]).astype(np.int8)
    width = -(-len(scale) // NEIGHBOURS) * NEIGHBOURS
    rays = Rays(
        np.ascontiguousarray(np.pad(codes.T, ((0, 0), (0, width - len(scale))))),
        np.pad(scale, (0, width - len(scale))), owned,
    )  # fmt: skip
    return Blocks(
        basis.mean, basis.centre, rotation, None, None, None, None, shape.look, shape.edges, order, levels, closer,
        shared, shared, rays=rays,
    )  # fmt: skip


def shape_of(dim: int) -> BlockShape:
    """All coordinates with the first code, and where segments end."""
    edges = [min(FIRST_SEGMENT, dim)]
    while edges[-1] < dim:
        edges.append(dim if len(edges) == SEGMENTS - 1 else min(2 * edges[-1], dim))
    return BlockShape(edges[0], dim, tuple(edges))


def _decoded(classes: Classes) -> Doubles:
    """The rows as their codes say, exactly: what those lose is in the last length."""
    scale = classes.scale.astype(np.float64)
    first: Doubles = classes.codes * scale[0][:, None]
    if classes.more.shape[1] == 0:
        return first
    return np.concatenate([first, classes.more * scale[1][:, None]], axis=1)


def _directions(rows: Doubles, count: int) -> tuple[Floats, Ids]:
    """Directions of length one, and the nearest of each row: k-means on the sphere, longer rows weighing more."""
    lengths = np.maximum(np.linalg.norm(rows, axis=1), float(LEAST))[:, None]
    units = (rows / lengths).astype(np.float32)
    found = units[np.sort(stream("rays", SEED).choice(len(rows), count, replace=False))]
    taught_by = evenly(np.arange(len(rows)), TAUGHT_BY * count)
    for _ in range(ROUNDS):
        near = _nearest(units[taught_by], found)
        order = np.argsort(near, kind="stable")
        some, starts = np.unique(near[order], return_index=True)
        sums = np.add.reduceat(rows[taught_by[order]].astype(np.float32), starts, axis=0)
        sizes = np.linalg.norm(sums, axis=1)
        found[some[sizes > 0]] = sums[sizes > 0] / sizes[sizes > 0, None]
    return found, _nearest(units, found)


def _nearest(units: Floats, directions: Floats) -> Ids:
    parts = (units[start : start + FEW] @ directions.T for start in range(0, len(units), FEW))
    return np.concatenate([part.argmax(axis=1) for part in parts])


def _coded(found: Floats, near: Ids, rows: Doubles) -> tuple[Doubles, Floats, Ids]:
    """Directions that have classes, as int8 codes times a scale say them."""
    some, near = np.unique(near, return_inverse=True)
    found = found[some]
    scale = np.maximum(round_up(np.abs(found.astype(np.float64)).max(axis=1) / 127), LEAST)
    codes = np.clip(np.rint(found / scale[:, None]), -127, 127)
    return codes.astype(np.float64) * scale.astype(np.float64)[:, None], scale, near


def _along(rows: Doubles, directions: Doubles, near: Ids) -> Doubles:
    """How many times its direction each row is."""
    square = np.einsum("ij,ij->i", directions, directions)
    square[square == 0] = 1.0
    return np.asarray(np.einsum("ij,ij->i", rows, directions[near]) / square[near])


def _pieces(near: Ids, reach: Doubles) -> tuple[NDArray[np.int32], Ids]:
    """The class at each place, and the direction of every sixteen of them; -1 where a direction has no more classes."""
    by_ray = np.lexsort((-reach, near))
    sizes = np.bincount(near)
    pieces = -(-sizes // NEIGHBOURS)
    first, before = np.cumsum(pieces) - pieces, np.cumsum(sizes) - sizes
    sorted_near = near[by_ray]
    order = np.full(int(pieces.sum()) * NEIGHBOURS, -1, np.int32)
    order[first[sorted_near] * NEIGHBOURS + np.arange(len(near)) - before[sorted_near]] = by_ray
    return order, np.repeat(np.arange(len(sizes)), pieces)


def _records(
    classes: Classes, shape: BlockShape, rows: Doubles, directions: Doubles, near: Ids, along: Doubles, order: NDArray[np.int32]
) -> tuple[tuple[BoxLevel, BoxLevel], Bytes, float]:
    """Nodes, classes, the closer looks, and in which unit their last length is."""
    ids, there = np.maximum(order, 0), order >= 0
    pieces = there.reshape(-1, NEIGHBOURS)

    def by_piece(values: Doubles) -> Doubles:
        return np.where(there, values[ids], 0.0).reshape(-1, NEIGHBOURS)

    unit = np.maximum(round_up(np.abs(by_piece(along)).max(axis=1) / 127), LEAST)
    codes = np.clip(np.rint(by_piece(along) / unit.astype(np.float64)[:, None]), -127, 127)
    times = np.zeros(len(rows))
    times[order[there]] = (codes * unit.astype(np.float64)[:, None]).ravel()[there]
    left = rows - times[:, None] * directions[near]
    unit32 = (shape.width + 16) * 2.0**-24
    float32 = unit32 * (np.abs(times) * np.linalg.norm(directions, axis=1)[near] + np.linalg.norm(left, axis=1))
    spans = itertools.pairwise((0, *shape.edges))
    beside = np.array([np.linalg.norm(left[:, a:b], axis=1) * (1 + 1e-9) + float32 for a, b in spans])
    last = _unit(classes.closer_last, beside.max(axis=0))
    lengths = np.concatenate([beside, classes.closer_last[None].astype(np.float64) * last * (1 + 1e-9)])
    reach = np.where(pieces, lengths[:, ids].reshape(len(lengths), -1, NEIGHBOURS), 0.0)
    bases = by_piece(classes.base.astype(np.float64))
    bases = np.where(pieces, bases + ROUNDING * np.abs(bases).max(axis=1)[:, None], np.nan)
    leaves = _leaves(codes, unit, bases, round_up(reach))
    nodes = _nodes(np.where(pieces, codes * unit.astype(np.float64)[:, None], np.nan), bases, round_up(reach.max(axis=2)))
    places = (slice(start, start + AT_ONCE) for start in range(0, len(ids), AT_ONCE))
    closer = np.concatenate([_closer(left[ids[p]], lengths[-1][ids[p]], float32[ids[p]], there[p]) for p in places])
    return (BoxLevel(nodes, 0, len(lengths)), BoxLevel(leaves, 2, len(lengths))), closer, last


def _unit(last: Floats, beside: Doubles) -> float:
    """A factor that makes the lengths of rounding typically about half of the others."""
    usual, other = float(np.median(last)), float(np.median(beside))
    return other / (2 * usual) if usual > 0 and other > 0 else 1.0


def _leaves(codes: Doubles, unit: Floats, bases: Doubles, lengths: Floats) -> Bytes:
    """Scales, bases, lengths of sixteen classes, then their four numbers."""
    smallest = -round_up(-np.nanmin(bases, axis=1))
    step = np.maximum(round_up((np.nanmax(bases, axis=1) - smallest) / 255 * (1 + 1e-6)), LEAST)
    coded = np.ceil((np.nan_to_num(bases, nan=-np.inf) - smallest[:, None]) / step.astype(np.float64)[:, None])
    coded = np.clip(coded, 0, 255)
    groups, tails = len(codes), len(lengths)
    sizes, own = lengths_up(lengths.transpose(0, 2, 1).reshape(tails * NEIGHBOURS, groups))
    numbers = np.stack([unit, step, smallest, own], axis=1).astype(np.float32)
    parts = [codes.astype(np.int8).view(np.uint8), coded.astype(np.uint8), sizes.T, numbers.view(np.uint8)]
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


def _nodes(times: Doubles, bases: Doubles, lengths: Floats) -> Bytes:
    """Lengths of sixteen nodes, then the ends of their scales, their bases and units."""
    high, low = round_up(np.nanmax(times, axis=1)), -round_up(-np.nanmin(times, axis=1))
    sizes, unit = lengths_up(lengths)
    base = round_up(np.nanmax(bases, axis=1))
    numbers = [padded_rows(row, fill) for row, fill in ((high, 0.0), (low, 0.0), (base, -np.inf), (unit, 0.0))]
    groups = len(numbers[0]) // NEIGHBOURS
    coded = padded_rows(sizes.T, 0).reshape(groups, NEIGHBOURS, -1).transpose(0, 2, 1).reshape(groups, -1)
    floats = [np.ascontiguousarray(row, np.float32).reshape(groups, NEIGHBOURS).view(np.uint8) for row in numbers]
    return np.ascontiguousarray(np.concatenate([coded, *floats], axis=1))


def _closer(left: Doubles, last: Doubles, float32: Doubles, there: NDArray[np.bool_]) -> Bytes:
    """What is left of single classes, coordinate by coordinate; lengths of what its codes lose, and of rounding."""
    scale = np.maximum(round_up(np.abs(left).max(axis=1) / 127), LEAST)
    wide = scale.astype(np.float64)[:, None]
    codes = np.clip(np.rint(left / wide), -127, 127)
    lost = np.linalg.norm(left - codes * wide, axis=1) * (1 + 1e-9) + 2 * float32
    coded, unit = lengths_up(round_up(np.stack([lost, last])) * there)
    numbers = np.stack([scale * there, unit], axis=1).view(np.uint8)
    return np.ascontiguousarray(np.concatenate([codes.astype(np.int8).view(np.uint8), coded.T, numbers], axis=1))
