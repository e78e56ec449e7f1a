"""How well a few coordinates say what a dot product is: the estimators that AdaptiveSoftmax compares, and their variances.

    z = sum_j w_j x_j      from m of its D summands t_j = w_j x_j

One function each, vectorised over rows ``terms [rows, m]`` (the summands that were drawn): ``(estimate, variance)``, both
``[rows]``. Uniform draws scale by D / m; importance-sampled ones divide by the probability of being drawn.

    uniform, replaced     D mean(t)                 D^2 s^2 / m
    uniform, kept         D mean(t)                 D^2 s^2 / m * (1 - m / D)          finite population
    uniform, naive        D mean(t)                 D^2 s^2 / m                        the same draws, the correction left out
    importance, replaced  mean(t / p)               var(t / p) / m
    importance, kept      sum(t / q)                sum(t^2 (1 - q) / q^2)             Horvitz-Thompson; the paper's own

``p`` is a summand's share of the weights, ``q`` the chance that it is among the first m of the shared order, given the
(m + 1)-th key: ``q = 1 - exp(-exp(log p - kappa))`` (priority sampling by Gumbel keys). Only the last variance falls to 0
as m goes to D with unequal weights (Baharav et al., 2024, the variance figure).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def uniform(terms: Doubles, dim: int, corrected: bool = False) -> tuple[Doubles, Doubles]:
    """``D mean(t)`` of ``terms`` drawn evenly; ``corrected``: without replacement, and the variance knows it."""
    m = terms.shape[1]
    spread = terms.var(axis=1, ddof=1) if m > 1 else np.full(len(terms), np.inf)
    share = 1 - m / dim if corrected else 1.0
    return dim * terms.mean(axis=1), np.asarray(dim * dim * spread / m * share)


def importance(terms: Doubles, shares: Doubles) -> tuple[Doubles, Doubles]:
    """``mean(t / p)`` of ``terms`` drawn with replacement in proportion to ``shares [m]`` (their p)."""
    scaled = terms / shares
    m = scaled.shape[1]
    spread = scaled.var(axis=1, ddof=1) if m > 1 else np.full(len(scaled), np.inf)
    return scaled.mean(axis=1), np.asarray(spread / m)


def chances(log_shares: Doubles, kappa: float) -> Doubles:
    """``q``, for the prefix that ends before the key ``kappa`` (-inf: the prefix is everything)."""
    if kappa == -math.inf:
        return np.ones_like(log_shares)
    return np.asarray(-np.expm1(-np.exp(np.minimum(log_shares - kappa, 700.0))))


def horvitz_thompson(terms: Doubles, q: Doubles) -> tuple[Doubles, Doubles]:
    """``sum(t / q)`` of the first m summands of the shared order, and its unbiased variance estimate."""
    scaled = terms / q
    return scaled.sum(axis=1), np.asarray((scaled * scaled) @ (1 - q))
