"""Whether draws have a law, by chi-square."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats


def check_law(pick: Callable[[Any], int], expected: Any, count: int) -> None:
    """``count`` draws of ``pick(rng)`` beside the probabilities ``expected``; the rare ones are counted together."""
    rng = np.random.default_rng(2)
    drawn = np.bincount([pick(rng) for _ in range(count)], minlength=len(expected))
    assert not drawn[expected == 0].any(), "a token that the filters rule out"
    often = np.argsort(-expected)
    often = often[expected[often] * count >= 5]
    seen, wanted = np.append(drawn[often], count - drawn[often].sum()), np.append(expected[often], 1 - expected[often].sum())
    if len(often) > 1:
        if wanted[-1] * count < 5:
            seen, wanted = np.append(seen[:-2], seen[-2:].sum()), np.append(wanted[:-2], wanted[-2:].sum())
        assert stats.chisquare(seen, wanted / wanted.sum() * seen.sum()).pvalue > 1e-4
