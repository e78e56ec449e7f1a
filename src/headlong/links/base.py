"""What every link is: an increasing map on logits, data only."""

from __future__ import annotations

import math
import numbers
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headlong.errors import OptionError

Floats = NDArray[np.float64]
Lowered = tuple[str, float, float] | tuple[str, float, float, Floats, float, float, float]

FORMS = ("affine", "softcap", "table")
"""What a link is lowered to; native code and kernels number the forms in this order (``csrc/kernels/kernels.h``)."""
ROUNDING = 2.0**-50
"""f computed in float64 is within this, relative to its largest term, of f: a few roundings, and libm's tanh."""
TINY = float(np.finfo(np.float64).tiny)


@runtime_checkable
class Link(Protocol):
    """An increasing map on logits; hashable, comparable, and data only."""

    def __call__(self, logits: ArrayLike) -> Floats:
        """f(z), elementwise in float64."""

    def lowered(self) -> Lowered:
        """What the executors evaluate: ``("affine", scale, shift)``, ``("softcap", cap, 0.0)`` or
        ``("table", start, step, values, left, right, error)``."""

    @property
    def steepest(self) -> float:
        """The largest slope of f anywhere."""

    @property
    def offset(self) -> float:
        """``|f(0)|``: f(z) is within ``offset + steepest * |z|``."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data to save; :func:`link_from_dict` is the inverse."""


def checked_number(owner: str, name: str, value: object, *, positive: bool) -> float:
    want = "a finite number above 0" if positive else "a finite number"
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        # below the smallest normal number, 1 / cap and products with it lose their digits
        if math.isfinite(number) and (number >= TINY or not positive):
            return number
    reason = ": a link has to increase, or it would change the ranking" if positive else ""
    raise OptionError(f"{owner}({name}={value!r}); expected {want}{reason}")


def lowering_error(link: Link) -> float:
    """By how much what ``link.lowered()`` gives may be off the link: 0 but for tables that stand for a curve."""
    lowered = link.lowered()
    return lowered[6] if len(lowered) == 7 else 0.0
