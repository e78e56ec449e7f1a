"""Outliers by a Gaussian kernel density, with an error in nats that holds: the points are the classes of a layer.

::

    z_i = <p_i, x> / h^2 - |p_i|^2 / 2 h^2          weight = points / h^2,  bias = -|points|^2 / 2 h^2
    log density(x) = lse(z) - |x|^2 / 2 h^2 - ln n - (d / 2) ln(2 pi h^2)

so that a bound on the normaliser's error is one on that of the log-density. The layer is stored in float32; ``storage_error``
is what that can change. Points far from the origin cost digits: subtract their mean from points and queries first.

python examples/kernel_density.py
"""

import math

import numpy as np
from scipy.special import logsumexp

import headlong as hl


def gaussian_kernel(points: np.ndarray, bandwidth: float) -> hl.Layer:
    """The layer whose normaliser is the density of ``points [n, d]``."""
    weight = (points / bandwidth**2).astype(np.float32)
    bias = (np.einsum("nd,nd->n", points, points) / (-2 * bandwidth**2)).astype(np.float32)
    return hl.Layer(weight, bias)


def log_density(lse: np.ndarray, queries: np.ndarray, count: int, bandwidth: float) -> np.ndarray:
    """The log-density at ``queries [batch, d]`` of ``count`` points, from the normaliser ``lse [batch]``."""
    square = 2 * bandwidth**2
    volume = math.log(count) + queries.shape[1] / 2 * math.log(math.pi * square)
    return lse - (queries**2).sum(axis=1) / square - volume


def storage_error(layer: hl.Layer, queries: np.ndarray) -> np.ndarray:
    """How far float32 weights and biases can have moved the log-density of each query: it joins the engine's ``error``."""
    longest = np.linalg.norm(layer.weight.astype(np.float64), axis=1).max()
    return 2.0**-24 * (longest * np.linalg.norm(queries, axis=1) + np.abs(layer.bias).max()) * (1 + 2.0**-20)


def main(points: int = 50_000, dim: int = 8, bandwidth: float = 0.5, asked: int = 200) -> float:
    """How many of the strangers among the queries have the lowest densities; every density is compared with the full sum."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.standard_normal((12, dim))
    known = centres[rng.integers(0, 12, points)] + rng.standard_normal((points, dim))
    usual = centres[rng.integers(0, 12, asked)] + rng.standard_normal((asked, dim))
    strangers = 4 * rng.standard_normal((asked // 10, dim))
    queries = np.concatenate([usual, strangers])
    layer = gaussian_kernel(known, bandwidth)
    answer = hl.compile(layer, eps=0.05, delta=0.0).lse(queries)
    density = log_density(answer.lse, queries, points, bandwidth)
    error = answer.error + storage_error(layer, queries)
    distance = (queries**2).sum(1)[:, None] - 2 * queries @ known.T + (known**2).sum(1)
    exact = logsumexp(-distance / (2 * bandwidth**2), axis=1) - np.log(points) - dim / 2 * np.log(2 * np.pi * bandwidth**2)
    assert (np.abs(density - exact) <= error + 1e-9).all()
    lowest = np.argsort(density)[: len(strangers)]
    found = float((lowest >= asked).mean())
    off = np.abs(density - exact).max()
    print(f"{points:,} points: log-densities within {error.max():.3f} nats of the full sum, {off:.1e} in fact")
    print(f"{found:.0%} of the {len(strangers)} lowest are the strangers")
    return found


if __name__ == "__main__":
    main()
