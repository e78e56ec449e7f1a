"""What an engine promises of its answers, and how parts of an answer that may fail share the rate that is allowed."""

from __future__ import annotations

import math
from typing import NamedTuple


class Promise(NamedTuple):
    """``|log p^ - log p| <= eps`` except with probability ``delta``; ids exact except with probability ``delta_ids``.

    Per row; 0 means proved, ``eps=inf`` and ``delta_ids=1`` mean no promise. ``over`` names the randomness the
    probabilities are taken over: "query" (fresh per query), "rotation", "calibration".
    """

    eps: float
    delta: float
    delta_ids: float
    over: frozenset[str] = frozenset()

    def __str__(self) -> str:
        ids = {0.0: "ids proved", 1.0: "ids not promised"}.get(self.delta_ids, f"ids but for {self.delta_ids:g}")
        if math.isinf(self.eps):
            return f"{ids}, log-probabilities not promised"
        rate = "proved" if self.delta == 0 else f"but for {self.delta:g}"
        over = f" over {' and '.join(sorted(self.over))}" if self.over else ""
        return f"{ids}, log-probabilities within {self.eps:g} nats {rate}{over}"

    @property
    def ids_rate(self) -> float:
        """How often radii that ids rest on may fail: as ids may, and half as often as the normaliser, whose sample has the
        rest."""
        return self.delta_ids if math.isinf(self.eps) else min(self.delta_ids, self.delta / 2)

    @property
    def radii_rate(self) -> float:
        """How often learned radii may fail; where ids are proved, those of the normaliser alone."""
        return self.ids_rate if self.delta_ids > 0 else self.delta / 2

    @property
    def radii(self) -> str:
        """Which radii keep it: "sure", "likely", "calibrated" or "rotation"."""
        if self.delta_ids > 0:
            return "rotation" if "rotation" in self.over else "calibrated"
        return "likely" if "calibration" in self.over else "sure"

    @property
    def sample_rate(self) -> float:
        """How often a sampled normaliser may be off: radii that may fail take their half of ``delta``."""
        return self.delta / 2 if self.over & {"calibration", "rotation"} else self.delta
