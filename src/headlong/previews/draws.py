"""How many rows a normaliser's sample takes, learned from queries: as few as keep the promise.

    n = spend * (r^2 + r) rows,   r = sum u / (eps * sum)    one number ``spend`` for all queries (csrc/normaliser/by_draws.cpp)
    L(q, spend, way) = the share of query q's samples with |estimate - lse| > eps, asked in one of the ways
    the least spend before the first of those tried, from the dearest on, whose L does not show a rate of at most delta in each
    way (calibrated_radii.controlled)

Other queries say which spends are tried and what is typical of a radius.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from headlong.native import Doubles
from headlong.previews.calibrated_radii import allowed, controlled, enough

AROUND = (2.6, 1.6, 1.25, 1.0, 0.94, 0.88, 0.83, 0.78, 0.73, 0.68, 0.63, 0.58, 0.54, 0.5)
"""What is tried, in units of the spend that errors normal for each query would take."""
AT_ONCE = 256
"""Queries that are asked before numbers are given up that have failed too often already."""
TRIES = 4
"""Samples of each query's rows, each way to ask: one in a thousand is made of the small chances of many, which few miss."""
PLENTY, LEAST = 4, 2000
"""Queries: so many times the fewest that a rate takes, and no fewer than these where they are there."""
LEAST_SPEND, MOST_SPEND = 0.05, 1000.0

Trial = Callable[[Doubles, list[float], int], Doubles]
"""``(hidden [n, dim], spends, tries) -> |estimate - lse| [n, spends, ways, tries]``, NaN where nothing is drawn."""


def first_spend(delta: float) -> float:
    """What an X with a variance of one takes, about."""
    return 1.5 * math.log(2 / delta)


def learned_spend(
    trial: Trial, chosen_by: Doubles, bounded_by: Doubles, eps: float, delta: float, otherwise: float = 0.0
) -> float | None:
    """The spend that keeps ``eps`` but for ``delta``; None where no spend that was tried does. ``otherwise``: how often a query
    fails for which nothing is drawn."""
    start = first_spend(delta)
    queries = bounded_by[-max(LEAST, PLENTY * enough(delta)) :]
    tried, rate = trial(chosen_by, [start], 4 * TRIES)[:, 0], allowed(len(queries), delta)
    ways = range(tried.shape[1])
    likely = max(_likely(tried[:, way], start, eps, rate) for way in ways)
    spends, losses = [likely * part for part in AROUND], np.zeros((len(queries), len(AROUND), len(ways)))
    for first in range(0, len(queries), AT_ONCE):
        some = slice(first, first + AT_ONCE)
        losses[some, : len(spends)] = missed(trial, queries[some], spends, eps, otherwise)
        # Queries that are not asked yet count as if none failed: what is lost now is lost for good, and cheaper ones with it.
        for way in ways:  # each way has to keep the rate, so what any of them refuses is refused, and none pays for the other
            found = controlled(losses[:, : len(spends), way], delta)
            if found is None:
                return None
            spends = spends[: found + 1]
    return spends[-1]


def _likely(errors: Doubles, start: float, eps: float, rate: float) -> float:
    """The spend with which about ``rate`` of errors are beyond ``eps``, if each query's are normal and as wide as ``errors``
    ``[n, tries]``, those of the spend ``start``."""
    with np.errstate(invalid="ignore"):
        squares = np.where(np.isnan(errors), 0.0, errors**2).mean(axis=1)
    low, high = math.log(LEAST_SPEND), math.log(MOST_SPEND)
    for _ in range(40):
        middle = 0.5 * (low + high)
        wide = np.sqrt(2 * squares * start / math.exp(middle))
        beyond = [math.erfc(eps / one) if one > 0 else 0.0 for one in wide]
        low, high = (middle, high) if np.mean(beyond) > rate else (low, middle)
    return math.exp(high)


def missed(trial: Trial, queries: Doubles, spends: list[float], eps: float, otherwise: float = 0.0) -> Doubles:
    """How often each query's tries failed ``[n, spends, ways]``; what was not drawn at the rate ``otherwise``."""
    errors = trial(queries, spends, TRIES)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(np.isnan(errors), otherwise, errors > eps).mean(axis=3))
