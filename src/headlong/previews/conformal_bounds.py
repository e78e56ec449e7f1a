"""What can be said of the next query from queries that were asked: bounds that fail at a rate of ``delta`` at most.

    shown         sum + CHANCE * sqrt(sum of squares) + 1 <= delta (n + 1)      of n losses in 0..1
    controlled    the boldest of several ways whose losses show it, tried from the safest on
    conformal     the largest score but for as many as may be lost: the next one is larger at a rate of delta

Without the root this is conformal risk control (Angelopoulos and others, 2022): the rate holds on average over the queries
and the next one, for every n and every distribution, if it is exchangeable with them; with n < 1 / delta - 1 nothing shows it.
But a user has one set of queries, and half of all sets fail more often than their average. So the sum is taken with what it may
lack by chance. Of sets whose rate is ``delta`` itself it takes, by the binomial distribution, about one in twenty from
``6 / delta`` queries on, and never one in ten. Whole failures make steps of it: 6.2 % at ``6 / delta``, 9.0 % just before a
fourth failure is spared, 7.7 % at ``11 / delta``. With fewer queries it may be one in eight (at ``3.65 / delta``, where a first
failure is spared), with the fewest one in three.
"""

from __future__ import annotations

import math

import numpy as np

from headlong.arrays import Array

CHANCE = 1.645
"""Standard deviations that a sum is taken to lack: of many queries it lacks more one time in twenty."""


def enough(delta: float) -> int:
    """The fewest queries whose largest score is a bound that holds with probability ``1 - delta``."""
    return math.ceil(1 / delta) - 1 if delta < 1 else 1


def conformal(scores: Array, delta: float) -> float:
    """The largest score but for those that may be lost; inf: too few."""
    rank = len(scores) - spared(len(scores), delta)
    return math.inf if rank > len(scores) else float(np.partition(scores, rank - 1)[rank - 1])


def controlled(losses: Array, delta: float) -> int | None:
    """The last column whose losses show a rate of ``delta``, as do those of all columns before it; None: not one.

    ``losses [n, columns]`` in 0..1 of exchangeable rows, the safest column first. Columns are judged in this order until one
    fails (learn then test in a fixed sequence: Angelopoulos and others, 2021), so many tries are as safe as one, and none
    has to answer for the bad luck of a safer one.
    """
    lacking = CHANCE * np.sqrt((losses**2).sum(axis=0))
    failed = np.flatnonzero(~((losses.sum(axis=0) + lacking + 1) / (len(losses) + 1) <= delta * (1 + 1e-12)))
    kept = int(failed[0]) if len(failed) else losses.shape[1]
    return kept - 1 if kept else None


def least_margin(scores: Array, delta: float) -> float:
    """The least margin that :func:`controlled` takes, if rows are lost whose scores are no less; inf: too few rows for any."""
    lost = spared(len(scores), delta)
    if lost < 0:
        return math.inf
    return float(np.nextafter(np.sort(scores)[-lost - 1], np.inf)) if lost < len(scores) else 0.0


def spared(count: int, delta: float) -> int:
    """How many of ``count`` queries may be lost whole; -1: too few queries for any word."""
    return math.floor(_most(count, delta) * (1 + 1e-12)) if count >= enough(delta) else -1


def allowed(count: int, delta: float) -> float:
    """The rate among ``count`` losses up to which :func:`controlled` takes a column; a tenth of ``delta`` where none is."""
    return max(_most(count, delta) / max(1, count), 0.1 * delta)


def _most(count: int, delta: float) -> float:
    root = (math.sqrt(CHANCE**2 + 4 * max(0.0, delta * (count + 1) - 1)) - CHANCE) / 2  # r^2 + CHANCE r + 1 = delta (n + 1)
    return root * root
