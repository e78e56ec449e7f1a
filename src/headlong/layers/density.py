"""Gaussian kernel density as an output layer: the points are the classes, the density is the normaliser.

::

    z_i = <p_i, x> / h^2 - |p_i|^2 / 2 h^2          weight = points / h^2,  bias = -|points|^2 / 2 h^2
    log density(x) = lse(z) - |x|^2 / 2 h^2 - ln n - (d / 2) ln(2 pi h^2)

so that an engine's interval for the normaliser is a proved interval for the density. The layer is stored in float32;
``storage_error`` is what that can change. Points far from the origin cost digits: subtract their mean from points and
queries first, which changes no density.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import hidden64
from headlong.errors import NonFiniteError, OptionError, ShapeError

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]
HALF_ULP = 2.0**-24


def gaussian_kernel(points: Any, bandwidth: float) -> tuple[Floats, Floats]:
    """``(weight [n, d], bias [n])`` of the layer whose normaliser is the density of ``points [n, d]``."""
    if isinstance(bandwidth, bool) or not isinstance(bandwidth, (int, float, np.number)) or not 0 < bandwidth < math.inf:
        raise OptionError(f"bandwidth is {bandwidth!r}; expected a number above 0, in the units of the points")
    if np.ndim(points) != 2 or not all(np.shape(points)):
        raise ShapeError(f"points has shape {np.shape(points)}; expected [n, d], at least one point of one coordinate")
    rows = hidden64(points, int(np.shape(points)[1]), "points")
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        weight = (rows / bandwidth**2).astype(np.float32)
        bias = (np.einsum("nd,nd->n", rows, rows) / (-2 * bandwidth**2)).astype(np.float32)
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise NonFiniteError(
            f"points over the squared bandwidth {bandwidth**2:g} leave float32's range; take a larger bandwidth, "
            "or subtract the points' mean from points and queries"
        )
    return weight, bias


def log_density(lse: Any, queries: Any, count: int, bandwidth: float) -> Doubles:
    """The log-density at ``queries [batch, d]`` of ``count`` points, from the normaliser ``lse [batch]``."""
    x = hidden64(queries, int(np.shape(queries)[1]), "queries")
    square = 2 * bandwidth**2
    volume = math.log(count) + x.shape[1] / 2 * math.log(math.pi * square)
    return np.asarray(np.asarray(lse) - (x * x).sum(axis=1) / square - volume)


def storage_error(weight: Floats, bias: Floats, queries: Any) -> Doubles:
    """How far float32 weights and biases can have moved the log-density of each query: it joins the engine's ``error``."""
    x = hidden64(queries, weight.shape[1], "queries")
    longest = float(np.sqrt(np.einsum("nd,nd->n", weight, weight, dtype=np.float64)).max())
    return np.asarray(HALF_ULP * (longest * np.linalg.norm(x, axis=1) + float(np.abs(bias).max())) * (1 + 2.0**-20))
