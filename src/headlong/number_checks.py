"""Numbers, switches, texts and names of files that callers pass: each check returns what it read, or says what came, what was
expected, what to do.

Not here: arrays (``arrays.py``), the arguments of a call (``engines/arguments.py``), NaN in weights (``engines/build.py``).
"""

from __future__ import annotations

import errno
import math
import numbers
import os
from typing import Any

import numpy as np

from headlong.errors import DtypeError, OptionError, StoreError, named


def whole(value: Any, name: str, low: int, high: int, advice: str = "") -> int:
    """An integer in ``low..high``; NumPy integers too, bool not."""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool) and low <= int(value) <= high:
        return int(value)
    raise OptionError(f"{name} is {value!r}; expected a whole number from {low:,} to {high:,}{advice and ': ' + advice}")


def wholes(values: Any, name: str, low: int, high: int) -> list[int]:
    """Integers in ``low..high``, one after the other."""
    try:
        found = list(values.tolist() if hasattr(values, "tolist") else values)
    except (TypeError, RuntimeError) as error:  # nothing that can be gone through; a tensor without numbers
        raise DtypeError(f"{name} is {named(values)}; expected a list of whole numbers") from error
    return [whole(value, f"{name}[{place}]", low, high) for place, value in enumerate(found)]


def choice(value: Any, name: str, known: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in known:
        return value
    raise OptionError(f"{name} is {value!r}; expected one of {', '.join(known)}")


def real(value: Any, name: str, low: float, high: float, advice: str = "") -> float:
    """A number in ``low..high``, ends included (``high`` may be infinite); NaN never is."""
    if type(value) is float or (isinstance(value, numbers.Real) and not isinstance(value, bool)):
        try:
            number = float(value)
        except OverflowError:  # of a whole number
            number = math.nan
        if low <= number <= high:
            return number
    bottom = "above 0," if low == 5e-324 else f"from {low:g}"
    top = "up" if math.isinf(high) else f"up to {high:g}" if low == 5e-324 else f"to {high:g}"
    raise OptionError(f"{name} is {value!r}; expected a number {bottom} {top}{advice and ': ' + advice}")


def flag(value: Any, name: str) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise OptionError(f"{name} is {value!r}; expected True or False")


def text(value: Any, name: str, expected: str) -> str:
    if isinstance(value, str):
        return value
    raise OptionError(f"{name} is {value!r}; expected {expected}")


def file_name(value: Any, name: str = "path") -> str:
    """The name of a file or folder, which may not be there."""
    try:
        found = os.fsdecode(value)
    except TypeError as error:
        raise DtypeError(f"{name} is {named(value)}; expected the name of a file: text, or a pathlib.Path") from error
    if "\0" in found:
        raise StoreError(f"{name} is {found!r}; expected the name of a file, which holds no null byte")
    try:
        os.stat(found)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise StoreError(f"{name} has {len(found):,} characters; expected a name as long as the system takes") from error
    return found
