"""A tree over the classes of a layer of few coordinates, and what is known of each of its nodes: :mod:`headlong.node_sums`.

::

    order       a node is divided at the median of its widest coordinate, equal entries by id
    leaves      deviations from the leaf's first row, which are exact, their mean and covariances
    nodes       of two halves:  C = (n1 C1 + n2 C2) / n + n1 n2 / n^2 d d'      d: how far their means are apart
    level g     C_ww g = -C_wb, the least squares of the biases on the rows
    rest        of b_i + <w_i, g>, the ends; those of two halves are moved by what <w_i, g - g_half> is in the half's box

Covariances are sums of squares. What is lost is in the means: they are off by at most 2^-45 of a node's widest deviation W, of
which the standard deviation is at least W / sqrt(2n). So a covariance of two coordinates is off by no more than 2^-40 sqrt(n)
of the product of their deviations; searches allow for twice that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.layers.matrix import Layer
from headlong.native import Doubles, Floats
from headlong.node_sums import NodeSums, starts_of

LEAF = 64
"""Classes of a leaf at most."""
RIDGE = 2.0**-30
"""Of the covariances' trace: what a plane through the biases of rows on a line is held by."""
STEEP = 4.0
"""How many times the largest bias a level's products may be: bounds allow for the rounding of so much."""
LOST = 2.0**-44
"""Of the largest bias: more than the rounding of ``b_i + <w_i, g>`` at any level of the tree."""


def node_sums(layer: Layer, threads: int, most: float) -> NodeSums:
    """The tree of ``layer``; see :class:`NodeSums` for ``most``."""
    rows = rows_of(layer)
    levels = max(0, (-(-layer.vocab // LEAF) - 1).bit_length())
    order = native.median_order(rows[:, :-1], levels, threads)
    bound = np.abs(rows).max(axis=0).astype(np.float64)
    nodes = [_leaves(rows[order].astype(np.float64), starts_of(layer.vocab, levels), bound)]
    for level in range(levels, 0, -1):
        nodes.append(_joined(nodes[-1], np.diff(starts_of(layer.vocab, level)), bound))
    return NodeSums(order, np.concatenate([_packed(level) for level in reversed(nodes)]), most)


def rows_of(layer: Layer) -> Floats:
    """``[vocab, dim + 1]``: rows and bias, in float32, which holds them all exactly."""
    bias = np.zeros(layer.vocab, np.float32) if layer.bias is None else layer.bias
    return np.concatenate([layer.weight.astype(np.float32), bias[:, None].astype(np.float32)], axis=1)


class _Nodes(NamedTuple):
    """Those of one level: ``pivot + off`` is the mean, ``spread [nodes, dim + 1, dim + 1]`` the covariances; ``rest``
    ``[nodes, 2]``; the others ``[nodes, dim]``."""

    pivot: Doubles
    off: Doubles
    spread: Doubles
    level: Doubles
    low: Doubles
    high: Doubles
    rest: Doubles


def _leaves(rows: Doubles, starts: NDArray[np.int64], bound: Doubles) -> _Nodes:
    """Of ``rows [vocab, dim + 1]`` in order; leaf k has those from ``starts[k]`` to ``starts[k + 1]``."""
    first, count = starts[:-1], np.diff(starts)
    of_row = np.repeat(np.arange(len(count)), count)
    pivot = rows[first]
    columns = [np.ascontiguousarray(rows[:, j]) for j in range(rows.shape[1])]
    apart = [column - pivot[:, j][of_row] for j, column in enumerate(columns)]
    off = np.stack([np.add.reduceat(one, first) / count for one in apart], axis=1)
    apart = [one - off[:, j][of_row] for j, one in enumerate(apart)]
    spread = np.empty((len(count), len(columns), len(columns)))
    for j, one in enumerate(apart):
        for k in range(j + 1):
            spread[:, j, k] = spread[:, k, j] = np.add.reduceat(one * apart[k], first) / count
    low, high = (np.stack([ends.reduceat(one, first) for one in columns[:-1]], axis=1) for ends in (np.minimum, np.maximum))
    level = _level(spread, bound)
    rest = columns[-1].copy()
    for j, one in enumerate(columns[:-1]):
        rest += one * level[:, j][of_row]
    ends = np.stack([np.minimum.reduceat(rest, first), np.maximum.reduceat(rest, first)], axis=1)
    return _Nodes(pivot, off, spread, level, low, high, ends + LOST * bound[-1] * np.array([-1.0, 1.0]))


def _joined(halves: _Nodes, count: NDArray[np.int64], bound: Doubles) -> _Nodes:
    """The nodes above ``halves``, which have ``count`` classes each."""
    one, two = (_Nodes(*(part[half::2] for part in halves)) for half in (0, 1))
    share = (count[1::2] / (count[::2] + count[1::2]))[:, None]  # of the second half
    gap = (two.pivot - one.pivot) + (two.off - one.off)
    between = (share * (1 - share))[..., None] * gap[:, :, None] * gap[:, None, :]
    spread = (1 - share)[..., None] * one.spread + share[..., None] * two.spread + between
    low, high = np.minimum(one.low, two.low), np.maximum(one.high, two.high)
    level = _level(spread, bound)
    ends = []
    for half in (one, two):
        turned = level - half.level
        a, b = half.low * turned, half.high * turned
        ends.append(half.rest + np.stack([np.minimum(a, b).sum(axis=1), np.maximum(a, b).sum(axis=1)], axis=1))
    rest = np.stack([np.minimum(ends[0][:, 0], ends[1][:, 0]), np.maximum(ends[0][:, 1], ends[1][:, 1])], axis=1)
    rest += LOST * bound[-1] * np.array([-1.0, 1.0])
    return _Nodes(one.pivot, one.off + share * gap, spread, level, low, high, rest)


def _level(spread: Doubles, bound: Doubles) -> Doubles:
    """Where the classes of each node are as nearly tied as they can be; zeros where that is too far away."""
    rows, biases = spread[:, :-1, :-1], spread[:, :-1, -1:]
    held = RIDGE * np.trace(rows, axis1=1, axis2=2) + np.finfo(np.float64).tiny
    with np.errstate(over="ignore", invalid="ignore"):
        level: Any = np.linalg.solve(rows + held[:, None, None] * np.eye(rows.shape[1]), -biases)[:, :, 0]
        near = np.abs(level) @ bound[:-1] <= STEEP * bound[-1]
    return np.where(near[:, None], level, 0.0)


def _packed(nodes: _Nodes) -> Doubles:
    """``[nodes, fields]``."""
    below, across = np.tril_indices(nodes.spread.shape[1])
    triangle = nodes.spread[:, below, across] * np.where(below == across, 1.0, 2.0)
    return np.concatenate([nodes.pivot + nodes.off, triangle, nodes.level, nodes.low, nodes.high, nodes.rest], axis=1)
