"""What an engine promises of its answers."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context
from typing import NamedTuple


class Promise(NamedTuple):
    """``ids exact and |log p^ - log p| <= eps`` for each query, except with probability ``delta``.

    ``delta`` 0 means proved and 1 means no promise; ``eps=inf`` says nothing of log-probabilities.
    """

    eps: float
    delta: float

    def __str__(self) -> str:
        if self.delta >= 1:
            return "nothing promised"
        if math.isinf(self.eps):
            return f"ids {_exact(self.delta)}, log-probabilities not promised"
        within = f"log-probabilities within {self.eps:g} nats"
        return f"ids and {within} proved" if self.delta == 0 else f"ids exact and {within}, {except_for(self.delta)}"


def _exact(rate: float) -> str:
    return "proved" if rate == 0 else f"exact {except_for(rate)}"


def except_for(rate: float) -> str:
    """``1e-6 -> "except with probability 1e-6"``, to three digits, rounded up."""
    shown = float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(float(rate))))
    return f"except with probability {shown:g}".replace("e-0", "e-")
