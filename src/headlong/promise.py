"""What an engine promises of its answers."""

from __future__ import annotations

import math
from typing import NamedTuple


class Promise(NamedTuple):
    """``ids exact and |log p^ - log p| <= eps`` for each query, except with probability ``delta``.

    ``delta`` 0 means proved and 1 means no promise; ``eps=inf`` says nothing of log-probabilities. ``delta_ids`` is a fact of
    the engine: 0 where its ids are proved whatever ``delta`` is, else ``delta``.
    """

    eps: float
    delta: float
    delta_ids: float

    def __str__(self) -> str:
        if self.delta >= 1:
            return "nothing promised"
        if math.isinf(self.eps):
            return f"ids {_exact(self.delta_ids)}, log-probabilities not promised"
        within = f"log-probabilities within {self.eps:g} nats"
        if self.delta_ids == 0 < self.delta:
            return f"ids proved, {within} {but_for(self.delta)}"
        return f"ids and {within} proved" if self.delta == 0 else f"ids exact and {within}, {but_for(self.delta)}"

    @property
    def ids_rate(self) -> float:
        """How often radii that ids rest on may fail; a sampled normaliser has the other half."""
        return self.delta_ids / 2

    @property
    def sample_rate(self) -> float:
        """How often a sampled normaliser may be off."""
        return self.delta / 2 if self.delta_ids > 0 else self.delta


def _exact(rate: float) -> str:
    return "proved" if rate == 0 else f"exact {but_for(rate)}"


def but_for(rate: float) -> str:
    """``1e-6 -> "but for one in 1,000,000"``, rounded so that it never says less than the rate."""
    return f"but for one in {math.floor(1 / rate * (1 + 1e-12)):,}" if rate <= 0.1 else f"but for {rate:.3g} of all queries"
