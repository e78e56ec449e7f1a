"""What a number of failures says of the rate: Clopper and Pearson's bound, below which the rate is with probability ``level``.

With n = 200 and a wanted rate of 1 % two failures pass, while a true rate of 3 % passes as often as not.
"""

from __future__ import annotations

import math


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
