"""Multipliers as the paper fits them, and what a number of failures really says.

    f = the smallest of 10^-6 .. 1 with   #failures(f) <= floor(delta n)           bisection in log10 f, to 0.01

The published guarantee is for f = 1; the published gains are for fitted multipliers, which is calibration without its
correction: with n = 200 and delta = 0.01 two failures pass, while a true rate of 3 % passes as often as not. What n
queries with x failures do say is Clopper and Pearson's bound: the rate is below it with probability ``level``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

LOWEST, STEP = -6.0, 0.01


def fitted(failures: Callable[[float], int], allowed: int) -> float:
    """The smallest multiplier with at most ``allowed`` failures; 1 where even that has more."""
    low, high = LOWEST, 0.0
    if failures(10.0**low) <= allowed:
        return float(10.0**low)
    if failures(1.0) > allowed:
        return 1.0
    while high - low > STEP:
        middle = (low + high) / 2
        if failures(10.0**middle) <= allowed:
            high = middle
        else:
            low = middle
    return float(10.0**high)


def clopper_pearson(failures: int, trials: int, level: float = 0.95) -> float:
    """The largest rate under which so few failures have probability 1 - level: P(X <= failures) = 1 - level."""
    if trials < 1:
        return 1.0
    if failures >= trials:
        return 1.0
    low, high = failures / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(failures, trials, middle) > 1 - level:
            low = middle
        else:
            high = middle
    return high


def _at_most(failures: int, trials: int, rate: float) -> float:
    """P(Binomial(trials, rate) <= failures), summed in logarithms."""
    if rate >= 1:
        return 0.0
    logs = [
        math.lgamma(trials + 1) - math.lgamma(x + 1) - math.lgamma(trials - x + 1)
        + (x * math.log(rate) if x else 0.0) + (trials - x) * math.log1p(-rate)
        for x in range(failures + 1)
    ]  # fmt: skip
    return sum(math.exp(value) for value in logs)
