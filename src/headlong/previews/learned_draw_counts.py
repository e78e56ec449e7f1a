"""How many rows a normaliser's sample takes, learned from queries: as few as keep the promise.

    n = spend * (r^2 + r) rows,   r = sum u / (eps * sum)    one number ``spend`` for all queries that are asked in one way
    L(q, spend, way) = the share of query q's samples with |estimate - lse| > eps, asked in this way
    the least spend before the first of those tried, from the dearest on, whose L does not show a rate of at most delta
    (conformal_bounds.controlled), for each way by itself

``csrc/normaliser/by_learned_draws.cpp`` draws them. Other queries say which spends are tried and what is typical of a radius.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from headlong.native import Doubles
from headlong.previews.conformal_bounds import allowed, controlled, enough

AROUND = (2.2, 1.5, 1.3, 1.2, 1.12, 1.06, 1.0, 0.94, 0.88, 0.82, 0.76, 0.7, 0.64, 0.58)
"""What is tried, in units of the spend that errors normal for each query would take."""
AT_ONCE = 128
"""Queries that are asked before numbers are given up that have failed too often already."""
TRIES = 4
"""Samples of each query's rows, each way to ask: one in a thousand is made of the small chances of many, which few miss."""
PLENTY, LEAST = 4, 3000
"""Queries: so many times the fewest that a rate takes, and no fewer than these where they are there."""
LEAST_SPEND, MOST_SPEND = 0.05, 1000.0

Trial = Callable[[Doubles, list[list[float]], int], list[Doubles]]
"""``(hidden [n, dim], spends of each way, tries) -> |estimate - lse| [n, spends, tries]`` of each; NaN: nothing is drawn."""


def first_spend(delta: float) -> float:
    """What an X with a variance of one takes, about."""
    return 1.5 * math.log(2 / delta)


def learned_spends(
    trial: Trial, ways: int, chosen_by: Doubles, bounded_by: Doubles, eps: float, delta: float, otherwise: float = 0.0
) -> list[float] | None:
    """The spend of each way that keeps ``eps`` but for ``delta``; None where none that was tried does for one of them.

    ``otherwise``: how often a query fails for which nothing is drawn.
    """
    start = first_spend(delta)
    queries = bounded_by[-max(LEAST, PLENTY * enough(delta)) :]
    rate = allowed(len(queries), delta)
    tried = trial(chosen_by, [[start]] * ways, 4 * TRIES)
    likely = [_likely(errors[:, 0], start, eps, rate) for errors in tried]
    spends = [[one * part for part in AROUND] for one in likely]
    losses = [np.zeros((len(queries), len(AROUND))) for _ in range(ways)]
    for first in range(0, len(queries), AT_ONCE):
        some = slice(first, first + AT_ONCE)
        for way, lost in enumerate(missed(trial, queries[some], spends, eps, otherwise)):
            losses[way][some, : len(spends[way])] = lost
            # Queries that are not asked yet count as if none failed: what is lost now is lost for good, as are cheaper ones.
            found = controlled(losses[way][:, : len(spends[way])], delta)
            if found is None:
                return None
            spends[way] = spends[way][: found + 1]
    return [each[-1] for each in spends]


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


def missed(trial: Trial, queries: Doubles, spends: list[list[float]], eps: float, otherwise: float = 0.0) -> list[Doubles]:
    """How often each query's tries failed ``[n, spends]`` in each way; what was not drawn at the rate ``otherwise``."""
    with np.errstate(invalid="ignore"):
        tried = trial(queries, spends, TRIES)
        return [np.asarray(np.where(np.isnan(errors), otherwise, errors > eps).mean(axis=2)) for errors in tried]
