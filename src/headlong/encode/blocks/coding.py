"""From rows of a layer to int8 codes in another basis, and what these lose.

    B_i = (w_i - centre) back         in float64, off by unit_g ‖w_i - centre‖ at most
    B_i[g] = scale code + what is lost                   of a group of coordinates; scale = max|B_i[g]| / 127, as everywhere
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import UNIT, Doubles, Floats
from headlong.encode.whitening import Basis
from headlong.layers.matrix import Layer
from headlong.native import round_up

MOST_NORM = 2.0**60
"""Largest row that is coded: with queries up to the same norm, float32 estimates stay far from overflow."""
LARGEST_BASE = 2.0**100
UNDERFLOWN = 2.0**-120
"""More than float32 flushes towards zero of a code times its scale, as a length."""


class Group(NamedTuple):
    """The coordinates ``[start, stop)`` of the basis; not ``coded``: a norm alone is kept."""

    start: int
    stop: int
    coded: bool


Groups = tuple[Group, ...]


class Encoded(NamedTuple):
    """Codes, and per class what they are and lose, rounded up.

    ``codes, scale``   of the coded groups: int8 ``[vocab, coordinates]`` each, ``[coded groups, vocab]``
    ``lost``           ``[groups, vocab]``: ‖what codes leave‖, roundings included
    ``size``           ``[vocab]``: ‖scale * code‖
    ``base, length``   ``[vocab]``: bias + <w - centre, mean>, to the nearest; ‖w - centre‖
    ``uncoded``        rows out of float32's reach, taken for zero here: they are to be scored whatever comes
    """

    codes: list[NDArray[np.int8]]
    scale: Floats
    lost: Floats
    size: Floats
    base: Floats
    length: Floats
    uncoded: NDArray[np.bool_]


def encode(layer: Layer, basis: Basis, groups: Groups) -> Encoded:
    """The codes of all rows. Only the coordinates that there are groups of are rotated."""
    rows = layer.weight.astype(np.float64) - basis.centre
    rotated = rows @ basis.back[:, : max(group.stop for group in groups)]
    base, length = rows @ basis.mean, np.linalg.norm(rows, axis=1) * (1 + 1e-12)
    if layer.bias is not None:
        base += layer.bias
    within = np.abs(rotated).max(axis=1) <= MOST_NORM / layer.dim
    uncoded = ~(within & (length <= MOST_NORM) & (np.abs(base) <= LARGEST_BASE))
    rotated[uncoded], base[uncoded], length[uncoded] = 0.0, 0.0, 0.0
    codes, scales, lost, square = [], [], [], np.zeros(layer.vocab)
    for group in groups:
        part = slice(group.start, group.stop)
        left = rotated[:, part]
        if group.coded:
            own, scale = coded(left)
            left = left - own * scale
            square += (scale[:, 0] * _norms(own.astype(np.float64))) ** 2
            codes.append(own)
            scales.append(scale[:, 0])
        unit = (layer.dim + 8) * UNIT * float(np.linalg.norm(basis.back[:, part]))
        lost.append(_norms(left) * (1 + 1e-9) + unit * length + UNDERFLOWN)
    narrow = (np.array(scales, np.float32), round_up(np.array(lost)), round_up(np.sqrt(square) * (1 + 1e-12)))
    return Encoded(codes, *narrow, base.astype(np.float32), round_up(length), uncoded)


def coded(values: Doubles) -> tuple[NDArray[np.int8], Doubles]:
    """``codes [n, m]`` and their ``scale [n, 1]``, a float32: max / 127, rounded up so that no code is beyond 127; 0 where that
    is subnormal."""
    most = np.maximum(values.max(axis=1, initial=0.0), -values.min(axis=1, initial=0.0))
    scale = round_up(most / 127).astype(np.float64)[:, None]
    scale[scale < np.finfo(np.float32).tiny] = 0
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    return np.rint(values * inverse).astype(np.int8), scale


def _norms(rows: Doubles) -> Doubles:
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", rows, rows)))
