"""Outliers by a Gaussian kernel density, with an error in nats that holds: the points are the classes of a layer.

python examples/kernel_density.py
"""

import numpy as np
from scipy.special import logsumexp

import headlong as hl
from headlong.layers.density import log_density, storage_error


def main(points: int = 50_000, dim: int = 8, bandwidth: float = 0.5, asked: int = 200) -> float:
    """How many of the strangers among the queries have the lowest densities; every density is compared with the full sum."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.standard_normal((12, dim))
    known = centres[rng.integers(0, 12, points)] + rng.standard_normal((points, dim))
    usual = centres[rng.integers(0, 12, asked)] + rng.standard_normal((asked, dim))
    strangers = 4 * rng.standard_normal((asked // 10, dim))
    queries = np.concatenate([usual, strangers])
    layer = hl.Layer.gaussian_kernel(known, bandwidth)
    answer = hl.compile(layer, eps=0.05, delta=0.0).lse(queries)
    density = log_density(answer.lse, queries, points, bandwidth)
    error = answer.error + storage_error(layer.weight, layer.bias, queries)
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
