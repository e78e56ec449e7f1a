"""Bounds on sixteen neighbouring classes at once, from a box around them in the whitened basis.

    z_i  <=  base_i + <B_i[:w], x[:w]> + sum_s ‖B_i[s]‖ ‖x[s]‖ + rounding                    a class          (w = BOXED)
    max over a block of z_i  <=  max base_i + <[hi, lo], [x+, x-]> + sum_s max ‖B_i[s]‖ ‖x[s]‖ + rounding

with ``hi_j, lo_j`` the largest and smallest ``B_ij`` there, ``x+ = max(x, 0)``, ``x- = min(x, 0)``. Boxes hold classes, or
boxes. Codes are rounded outwards, lengths up, so that every bound holds for every finite query, in the arithmetic of
the reader: its rounding is in the last length of each record.

Neighbours are found by cutting the classes in two across the direction in which they spread most, again and again, down to
sixteen (``csrc/blocks/class_order.cpp``): balanced by construction, and tighter than k-means cut into sixteens afterwards.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.arrays import evenly
from headlong.dtypes import Doubles, Floats
from headlong.encode.blocks.records import ArrayInPieces, BlockShape, Bytes, Classes, Gauges, boxes, joined_tops
from headlong.encode.whitening import Basis, basis_of
from headlong.layers.matrix import Layer
from headlong.native import round_up
from headlong.plan import NEIGHBOURS, TILE, Blocks, BoxLevel, Plan

BOXED = 16
"""Coordinates of a box, and of a class of an open block."""
CLOSER = 64
"""Up to this coordinate goes the closer look at single classes: its record is one line of the cache."""
SEGMENTS = 5
"""Lengths of what is behind BOXED, at most; their segments double, the last takes the rest."""
ROOT = 2560
"""Nodes that are looked at for every query, at most: with more of them there is one more level of boxes."""
AT_ONCE = NEIGHBOURS**3
"""Classes that are coded and packed at once."""
GAUGED = 2048
"""Classes whose medians set the units of the rounding."""
KEPT = 1 << 18
"""Up to so many classes the codes are kept until the order is known: 28 MB at most. Beyond, rows are coded a second time."""
Coder = Callable[[Layer], Classes]
HALF = 60000.0
"""What float16 holds."""


def blocks_of(layer: Layer, basis: Basis, threads: int = 1) -> Blocks:
    """The order of the classes and all levels.

    Some classes at a time are coded, for the order; beyond :data:`KEPT` classes they are coded again, in that order, so that
    nothing but what is kept grows with them, and the features that tell neighbours.
    """
    shape = shape_of(layer.dim)
    gauges = _gauged(layer, basis, shape)

    def coded(rows: Layer) -> Classes:
        return Classes(rows, basis, shape, gauges)

    features, whole = _features(layer, coded, shape)
    order = _places(native.neighbours(features, threads))
    del features  # as long as what records take
    levels, closer, shared = _levels(layer, coded, whole, order)
    return Blocks(
        basis.mean, basis.centre, **_rotations(basis, shape.width, shape.edges), boxed=shape.boxed, edges=shape.edges,
        order=order, levels=levels, closer=closer, shared=shared[0], closer_shared=shared[1],
    )  # fmt: skip


def blocks_in(plan: Plan, rows: Layer, threads: int) -> Blocks | None:
    """A tree of more classes that bounds the same coordinates as the plan's; None where their basis was not kept, or is
    damaged, or where a file's tree has others than are made here."""
    blocks = plan.blocks
    if blocks is None or len(blocks.leading) < rows.dim:
        return None
    if shape_of(rows.dim) != (blocks.boxed, len(blocks.leading), blocks.edges):
        return None
    rotation: Any = np.ascontiguousarray(blocks.leading.T)
    try:
        basis = basis_of(blocks.mean, blocks.centre, rotation, 1.0)
    except np.linalg.LinAlgError:  # of a file: what has no inverse bounds no class
        return None
    return blocks_of(rows, basis, threads)


def _gauged(layer: Layer, basis: Basis, shape: BlockShape) -> Gauges:
    """The units of the rounding, by some blocks of classes, evenly spread."""
    blocks = evenly(np.arange(max(1, layer.vocab // TILE)), GAUGED // TILE)
    ids = (blocks[:, None] * TILE + np.arange(TILE)).ravel()
    return Classes(_rows(layer, ids[ids < layer.vocab]), basis, shape).gauges


def _rows(layer: Layer, ids: Any) -> Layer:
    """Some classes as a layer."""
    return Layer(layer.weight[ids], None if layer.bias is None else layer.bias[ids])


def _features(layer: Layer, coded: Coder, shape: BlockShape) -> tuple[Floats, Classes | None]:
    """What neighbours have to share, class by class, and the coded classes, where they are few enough to be kept."""
    found, pieces = np.empty((layer.vocab, shape.boxed + len(shape.edges)), np.float32), []
    for start in range(0, layer.vocab, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        some = coded(_rows(layer, part))
        found[part] = some.features()
        if layer.vocab <= KEPT:
            pieces.append(some)
    return found, Classes.joined(pieces) if pieces else None


def _levels(
    layer: Layer, coded: Coder, whole: Classes | None, order: NDArray[np.int32]
) -> tuple[tuple[BoxLevel, ...], Bytes | None, tuple[tuple[float, ...], tuple[float, ...]]]:
    """Records of classes and of the boxes above them, the closer look, and the factors that all of them share."""
    leaves, closer = ArrayInPieces(len(order) // NEIGHBOURS), ArrayInPieces(len(order))
    boxed, tops = [ArrayInPieces(-(-len(order) // NEIGHBOURS**2)), ArrayInPieces(-(-len(order) // NEIGHBOURS**3))], []
    for start in range(0, len(order), AT_ONCE):
        here = order[start : start + AT_ONCE]
        if whole is None:
            some = coded(_rows(layer, np.maximum(here, 0)))
            places = np.where(here >= 0, np.arange(len(here), dtype=np.int32), np.int32(-1))
        else:
            some, places = whole, here
        level, nodes = some.records(places)
        leaves.take(level.records)
        closer.take(some.closer(places))
        for kept in boxed:
            box, nodes = boxes(nodes, some.own)
            kept.take(box.records)
        tops.append(nodes)
    levels, nodes = [BoxLevel(leaves.whole(), level.codes, level.lengths)], joined_tops(tops)
    while len(levels[0].records) > 1 and (len(levels) == 1 or len(levels[0].records) * NEIGHBOURS > ROOT):
        if boxed:
            box = BoxLevel(boxed.pop(0).whole(), box.codes, box.lengths)
        else:
            box, nodes = boxes(nodes, some.own)
        levels.insert(0, box)
    return tuple(levels), closer.array, (some.shared, some.closer_shared)


def _rotations(basis: Basis, width: int, edges: tuple[int, ...]) -> dict[str, Any]:
    """``leading, back, rest, rest_scale, rest_lost``.

    With ``v = hidden - mean``, ``T'`` for ``back`` and ``left = v - x T'``, a segment of the other coordinates is

        x_s = left R_s + x T' R_s,     ‖x_s‖ <= ‖left R^_s‖ + ‖R_s - R^_s‖ ‖left‖ + ‖T' R_s‖ ‖x‖ + rounding

    where ``R^`` has 8 bits. T is the inverse's transpose, so T R_s is 0 but for the rounding of T'; and left is short: the
    first coordinates are those that vary most.
    """
    rotation, dim = basis.rotation, len(basis.mean)
    leading = np.ascontiguousarray(rotation[:, :width].T)
    if width == dim:
        return {"leading": leading, "back": None, "rest": None, "rest_scale": None, "rest_lost": None}
    forth = basis.back[:, :width].T
    if leading.dtype == np.float16 and np.abs(forth).max() > HALF:
        leading = leading.astype(np.float32)
    back = np.ascontiguousarray(forth, leading.dtype)
    other = rotation[:, width:].astype(np.float64)
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
    pad = -coded.shape[1] % NEIGHBOURS
    rest = np.pad(coded.astype(np.int8), ((0, 0), (0, pad)))
    wide_scale, losses = np.pad(scale, (0, pad)), np.array(lost) * (1 + 1e-6)
    return {"leading": leading, "back": back, "rest": rest, "rest_scale": wide_scale, "rest_lost": losses}


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


def shape_of(dim: int) -> BlockShape:
    """Coordinates of a box, up to where a closer look goes, and where segments end from ``boxed`` on."""
    boxed, width = min(BOXED, dim), min(CLOSER, dim)
    edges, step = [boxed], 2 * boxed
    while edges[-1] < dim:
        edges.append(dim if len(edges) == SEGMENTS else min(step, dim))
        step *= 2
    return BlockShape(boxed, width, tuple(edges))


def _places(order: NDArray[np.int32]) -> NDArray[np.int32]:
    """``order``, padded with -1 to whole blocks."""
    return np.concatenate([order, np.full(-len(order) % NEIGHBOURS, -1, np.int32)])
