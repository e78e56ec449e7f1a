"""Whether draws have a law, by chi-square."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats


def chance(drawn: Any, expected: Any) -> float:
    """Of such counts or less likely ones beside the probabilities ``expected``; the rare ones are counted together."""
    count = drawn.sum()
    assert not drawn[expected == 0].any(), "a class that the filters rule out"
    often = np.argsort(-expected)
    often = often[expected[often] * count >= 5]
    seen, wanted = np.append(drawn[often], count - drawn[often].sum()), np.append(expected[often], 1 - expected[often].sum())
    if len(often) < 2:
        return 1.0
    if wanted[-1] * count < 5:
        seen, wanted = np.append(seen[:-2], seen[-2:].sum()), np.append(wanted[:-2], wanted[-2:].sum())
    return float(stats.chisquare(seen, wanted / wanted.sum() * seen.sum()).pvalue) if len(seen) > 1 else 1.0


def check_law(pick: Callable[[Any], int], expected: Any, count: int) -> None:
    """``count`` draws of ``pick(rng)`` beside the probabilities ``expected``."""
    rng = np.random.default_rng(2)
    assert chance(np.bincount([pick(rng) for _ in range(count)], minlength=len(expected)), expected) > 1e-4
