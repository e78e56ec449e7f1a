"""A call, checked: what every engine does with its arguments before it reads anything.

What came in is brought into one form (float64 vectors, a class mask, sampling filters) or refused with an error that says
what came, what was expected, what to do. What is then read is the engine's business.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from headlong.arrays import Form, form_of, hidden64, hidden_rows
from headlong.dtypes import Doubles
from headlong.engines.class_masks import restricted
from headlong.engines.few_allowed_classes import few_enough
from headlong.errors import NonFiniteError, ShapeError
from headlong.native import Mask, widened
from headlong.number_checks import real, whole
from headlong.promise import Promise

FLOAT32_MAX = float(np.finfo(np.float32).max)
"""Hidden vectors beyond float32's range are refused: nothing computes them."""
FLOAT32_ROOM = 1 - 2.0**-10
"""A thousandth of ``eps`` is for rounding an answer to float32: enough for normalisers up to ``2^13 eps``."""
MOST_DRAWS = 2**24
"""Of one row in one call: they come as arrays."""
COLDEST = 1e-6
"""Lower temperatures are the argmax, which needs no noise."""
RANGES: dict[str, tuple[Any, Any]] = {
    "eps": (1e-300, math.inf),
    "n": (1, MOST_DRAWS),
    "temperature": (COLDEST, 1e6),
    "top_k": (1, 2**62),
    "top_p": (5e-324, 1.0),
    "min_p": (0.0, 1.0),
    "seed": (0, 2**64 - 1),
    "position": (0, 2**64 - 1),
    "class0": (0, 2**40),
}
"""What a number may be, both ends included."""


class Asked(NamedTuple):
    """One checked call: the form of what came, ``hidden [batch, dim]``, the mask, and whether few classes are left."""

    form: Form
    hidden: Doubles
    mask: Mask
    few_classes: bool


def checked_hidden(hidden: Any, dim: int, name: str = "hidden", vocab: int | None = None) -> Doubles:
    """``[batch, dim]`` in float64, finite and within float32's range."""
    rows, largest = widened(hidden_rows(hidden, dim, name, vocab))
    if largest <= FLOAT32_MAX:
        return rows
    hidden64(hidden, dim, name)  # says where a number is not finite
    raise NonFiniteError(f"{name} reaches {largest:.3g}, beyond float32's range; rescale the rows")


def asked(hidden: Any, allowed: Any, exclude: Any, dim: int, vocab: int) -> Asked:
    rows = checked_hidden(hidden, dim, vocab=vocab)
    mask, left = restricted(allowed, exclude, len(rows), vocab)
    return Asked(form_of(hidden), rows, mask, mask is not None and few_enough(left, vocab))


def checked_k(k: Any, vocab: int) -> int:
    if not isinstance(k, (int, np.integer)) or isinstance(k, bool) or not 1 <= k <= vocab:
        raise ShapeError(f"k is {k!r}; expected a whole number from 1 to the layer's {vocab} classes")
    return int(k)


def checked_eps(eps: Any) -> float:
    """``eps`` above 0, infinity included."""
    return real(eps, "eps", *RANGES["eps"], "log-probabilities are rounded to float64, so 0 cannot be kept")


def checked_n(n: Any) -> int:
    return whole(n, "n", *RANGES["n"], "ask again for more, at other positions or with another seed")


def aimed(eps: Any, promise: Promise, form: Form) -> float:
    """What a normaliser has to be within, so that it is within ``eps`` (None: what is promised) in the caller's precision."""
    wanted = promise.eps if eps is None else checked_eps(eps)
    return part_of(wanted, FLOAT32_ROOM) if form.single else wanted


def part_of(eps: float, share: float) -> float:
    """What of ``eps`` is asked in somebody's name: not less than callers themselves may ask, or a refusal would tell them of a
    number that they never gave."""
    return max(share * eps, float(RANGES["eps"][0]))
