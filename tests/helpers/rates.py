"""Counted failures held against a promised rate."""

from __future__ import annotations

import math


def tail(failures: int, trials: int, rate: float) -> float:
    """``P(Binomial(trials, rate) >= failures)``: what Clopper and Pearson compare with the level."""
    logs = [
        math.lgamma(trials + 1)
        - math.lgamma(i + 1)
        - math.lgamma(trials - i + 1)
        + i * math.log(rate)
        + (trials - i) * math.log1p(-rate)
        for i in range(failures)
    ]
    return 1.0 - sum(map(math.exp, logs))


def check_rate(failures: int, trials: int, rate: float) -> None:
    """The failures do not prove, at 99.9 %, that they come more often than ``rate``."""
    assert tail(failures, trials, rate) > 1e-3, f"{failures} of {trials} failed, promised were {rate:g}"
