"""Numbers that callers pass: each check returns the number, or says what came, what was expected, what to do.

Not here: arrays (``arrays.py``), the arguments of a call (``engines/arguments.py``), NaN in weights (``engines/build.py``).
"""

from __future__ import annotations

import math
import numbers
from typing import Any

from headlong.errors import OptionError


def whole(value: Any, name: str, low: int, high: int, advice: str = "") -> int:
    """An integer in ``low..high``; NumPy integers too, bool not."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and low <= int(value) <= high:
        return int(value)
    raise OptionError(f"{name} is {value!r}; expected a whole number from {low} to {high}{advice and ': ' + advice}")


def real(value: Any, name: str, low: float, high: float, advice: str = "") -> float:
    """A number in ``low..high``, ends included (``high`` may be infinite); NaN never is."""
    if type(value) is float or (isinstance(value, numbers.Real) and not isinstance(value, bool)):
        try:
            number = float(value)
        except OverflowError:  # of a whole number
            number = math.nan
        if low <= number <= high:
            return number
    top = "up" if math.isinf(high) else f"to {high:g}"
    raise OptionError(f"{name} is {value!r}; expected a number from {low:g} {top}{advice and ': ' + advice}")


def flag(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return value
    raise OptionError(f"{name} is {value!r}; expected True or False")
