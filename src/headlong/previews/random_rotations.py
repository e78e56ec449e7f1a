"""Random rotations, and how far one coordinate of a random direction strays: the exact Beta tail.

    P uniform on the rotations, independent of w and h;   c any code of w' = P w,   kappa = cos(c, w')
    <w, h> - |w|^2 <c, P h> / <c, w'>  =  |w| |h_perp| sqrt(1 / kappa^2 - 1) u,    |h_perp| <= |h|
    u  one coordinate of a uniform point on the sphere in dim - 1 dimensions:   u^2 ~ Beta(1/2, (dim - 2) / 2)

(RaBitQ, Gao and Long 2024, for one bit; the identity holds for any code.) The probability is over P, drawn once: queries
chosen after P was seen void it, and failures of different queries are not independent.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from headlong.native import Doubles
from headlong.previews.whitening import Basis, basis_of

NODES = 64
SAFETY = 1e-6
"""Relative error of the integral, generously."""


def random_basis(dim: int, centre: Doubles, seed: int) -> Basis:
    """A rotation from the uniform law: the orthogonal factor of a Gaussian matrix, its signs fixed by the triangular one."""
    gaussian = np.random.default_rng(seed).standard_normal((dim, dim))
    orthogonal, triangle = np.linalg.qr(gaussian)
    signs = np.where(np.diag(triangle) < 0, -1.0, 1.0)
    return basis_of(np.zeros(dim), centre, np.ascontiguousarray(orthogonal * signs, np.float32), 1.0)


def tail(dim: int, reach: float) -> float:
    """``P(|u| > reach)`` for one coordinate u of a uniform point on the unit sphere in ``dim`` dimensions.

        2 c  integral of cos(a)^(dim - 2) from arcsin(reach) to pi / 2,     c = Gamma(dim / 2) / (sqrt(pi) Gamma((dim - 1) / 2))
    """
    if dim <= 1:
        return 0.0 if reach >= 1 else 1.0
    start, power = math.asin(min(reach, 1.0)), dim - 2
    # Beyond 50 decay lengths nothing is left.
    length = min(math.pi / 2 - start, 50 / (power * math.tan(start) + math.sqrt(power) + 1) if start < math.pi / 2 else 0.0)
    places, weights = _gauss()
    angles = start + length * (places + 1) / 2
    log_scale = math.lgamma(dim / 2) - math.lgamma((dim - 1) / 2) - 0.5 * math.log(math.pi)
    with np.errstate(divide="ignore"):
        logs = power * np.log(np.maximum(np.cos(angles), 0.0)) if power else np.zeros(NODES)
        values = np.exp(logs + log_scale)
    return min(1.0, float(2 * length / 2 * (weights @ values)))


@functools.cache
def _gauss() -> tuple[Doubles, Doubles]:
    """Gauss and Legendre's places and weights on [-1, 1]."""
    places, weights = np.polynomial.legendre.leggauss(NODES)
    return places, weights


@functools.cache
def quantile(dim: int, rate: float) -> float:
    """The reach that ``|u|`` exceeds with probability ``rate`` at most; u on the sphere in ``dim`` dimensions."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(dim, middle) * (1 + SAFETY) > rate else (low, middle)
    return high
