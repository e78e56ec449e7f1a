"""What queries of a layer may be like, where nobody brought vectors: between points of a Gaussian kernel, if it is one.

::

    b_i = c + <s, w_i> - a |w_i|^2 / 2         but for little of their variance: logits are -|x - (a w_i - s)|^2 / 2a, but for
                                              what is the same for all classes
    x   = halfway from such a point to the nearest one of some others

A point itself would be a class with all the mass. Between two of a few points, a query is about as far from the nearest of all
as most are.
"""

from __future__ import annotations

import numpy as np

from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.previews.blocks.choice import stand_ins

SAMPLE, QUERIES = 2048, 32
"""Rows that speak for all, and queries."""
UNEXPLAINED = 1e-3
"""Of the variance of biases: what may be left by the squares of rows."""
FREE = 2
"""Times as many rows as coefficients: of fewer, any biases are some fit."""


def likely_queries(layer: Layer) -> Doubles:
    """``[n, dim]``, float64; directions of rows where the layer is no kernel."""
    points = kernel_points(layer)
    if points is None:
        found = stand_ins(layer)
        return np.ascontiguousarray(found[:: -(-len(found) // QUERIES)])
    some = points[:: -(-len(points) // QUERIES)]
    apart = np.stack([((points - one) ** 2).sum(axis=1) for one in some])
    apart[apart == 0] = np.inf
    return np.asarray((some + points[apart.argmin(axis=1)]) / 2)


def kernel_points(layer: Layer) -> Doubles | None:
    """The points ``a w_i - s`` of some rows; None where biases are not as those of a Gaussian kernel."""
    if layer.bias is None:
        return None
    step = -(-layer.vocab // SAMPLE)
    rows, bias = layer.weight[::step].astype(np.float64), layer.bias[::step].astype(np.float64)
    square = (rows * rows).sum(axis=1)
    columns = np.concatenate([np.ones((len(rows), 1)), rows, square[:, None]], axis=1)
    if len(rows) < FREE * columns.shape[1]:
        return None
    scale = np.abs(columns).max(axis=0) + np.finfo(np.float64).tiny
    fit = np.linalg.lstsq(columns / scale, bias, rcond=None)[0]
    left = bias - columns / scale @ fit
    if not (fit[-1] < 0 and left.var() <= UNEXPLAINED * bias.var()):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        fit /= scale
        points = np.asarray(-2 * fit[-1] * rows - fit[1:-1])
    return points if np.abs(points).max() <= np.finfo(np.float32).max else None  # none else can be asked for
