"""What can be said of the next query from queries that were asked: bounds that fail at a rate of ``delta`` at most.

    conformal     q = the ceil((n + 1) (1 - delta))-th smallest of n scores: the next one is larger with probability delta
    controlled    the boldest of several ways of which (failures + 1) / (n + 1) <= delta, tried from the safest on

Both hold for every n and every distribution, if the next query is exchangeable with those that were asked.
"""

from __future__ import annotations

import math

import numpy as np

from headlong.arrays import Array

CHANCE = 0.5
"""Standard deviations that a count is taken to lack."""


def enough(delta: float) -> int:
    """The fewest queries whose largest score is a bound that holds with probability ``1 - delta``."""
    return math.ceil(1 / delta) - 1 if delta < 1 else 1


def conformal(scores: Array, delta: float) -> float:
    """The ``ceil((n + 1) (1 - delta))``-th smallest score: the next one is larger with probability delta at most."""
    # The division by 1e9 keeps a rank that is whole, as of n = 99 and delta = 0.01, from being rounded up.
    rank = math.ceil((len(scores) + 1) * (1 - delta) - 1e-9)
    return math.inf if rank > len(scores) else float(np.partition(scores, rank - 1)[rank - 1])


def controlled(losses: Array, delta: float) -> int | None:
    """The last column whose loss is ``delta`` at most for the next row, as is that of all columns before it; None: not one.

    ``losses [n, columns]`` in 0..1 of exchangeable rows, the safest column first. Columns are judged in this order until one
    fails (learn then test in a fixed sequence: Angelopoulos and others, 2021), so many tries are as safe as one, and none
    has to answer for the bad luck of a safer one. ``(sum + 1) / (n + 1) <= delta`` is what conformal risk control asks for
    (Angelopoulos and others, 2022); the sum is taken with what it may lack by chance, so that most draws of the rows keep the
    rate, not only their mean.
    """
    sums = losses.sum(axis=0)
    failed = np.flatnonzero(~((sums + CHANCE * np.sqrt(sums) + 1) / (len(losses) + 1) <= delta * (1 + 1e-12)))
    kept = int(failed[0]) if len(failed) else losses.shape[1]
    return kept - 1 if kept else None


def least_margin(scores: Array, delta: float) -> float:
    """The least margin that :func:`controlled` takes, if rows are lost whose scores are no less; inf: too few rows for any."""
    if len(scores) < enough(delta):
        return math.inf
    lost = math.floor(allowed(len(scores), delta) * len(scores) * (1 + 1e-12))
    return float(np.nextafter(np.sort(scores)[-lost - 1], np.inf)) if lost < len(scores) else 0.0


def allowed(count: int, delta: float) -> float:
    """The rate among ``count`` losses up to which :func:`controlled` takes a column; a tenth of ``delta`` where none is."""
    root = (math.sqrt(CHANCE**2 + 4 * max(0.0, delta * (count + 1) - 1)) - CHANCE) / 2  # r^2 + CHANCE r + 1 = delta (n + 1)
    return max(root * root / max(1, count), 0.1 * delta)
