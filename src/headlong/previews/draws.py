"""How many rows a normaliser's sample takes, learned from queries: as few as keep the promise.

    n = spend * (r^2 + r) rows,   r = sum u / (eps * sum)    one number ``spend`` for all queries (csrc/normaliser/by_draws.cpp)
    L(q, spend) = how often |estimate - lse| > eps for query q, at this spend or at any larger one that is tried
    the least spend of those tried whose L shows a rate of at most delta                     (calibrated_radii.controlled)

Other queries say which spends are tried and what is typical of a radius.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from headlong.native import Doubles
from headlong.previews.calibrated_radii import controlled, enough

AROUND = (1.6, 1.2, 0.97, 0.84, 0.74, 0.65)
"""What is tried, in units of the spend that a normal error would take."""
TRIES = 2
"""Samples of each query's rows."""
PLENTY, LEAST = 4, 2000
"""Queries: so many times the fewest that a rate takes, and no fewer than these where they are there."""

Trial = Callable[[Doubles, list[float], int], Doubles]
"""``(hidden [n, dim], spends, tries) -> |estimate - lse| [n, spends, tries]``, NaN where nothing is drawn."""


def first_spend(delta: float) -> float:
    """What an X with a variance of one takes, about."""
    return 1.5 * math.log(2 / delta)


def learned_spend(trial: Trial, chosen_by: Doubles, bounded_by: Doubles, eps: float, delta: float) -> float | None:
    """The spend that keeps ``eps`` but for ``delta``; None where no spend that was tried does."""
    start = first_spend(delta)
    errors = trial(chosen_by, [start], 8 * TRIES)
    spread = math.sqrt(float(np.nanmean(errors**2))) if not np.isnan(errors).all() else 0.0
    normal = start * (NormalDist().inv_cdf(1 - delta / 2) * spread / eps) ** 2
    spends = [max(0.05, normal) * part for part in AROUND]
    queries = bounded_by[-max(LEAST, PLENTY * enough(delta)) :]
    found = controlled(np.maximum.accumulate(missed(trial, queries, spends, eps), axis=1).mean(axis=2), delta)
    return None if found is None else spends[found]


def missed(trial: Trial, queries: Doubles, spends: list[float], eps: float) -> NDArray[np.bool_]:
    """Whether each of the tries failed ``[n, spends, tries]``; what was not drawn is exact or proved."""
    with np.errstate(invalid="ignore"):
        return np.asarray(trial(queries, spends, TRIES) > eps)
