"""Parameters of which some are left out unless everything is asked for (HEADLONG_TEST_ALL=1; see conftest.py)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

from headlong import native

ALL = bool(os.environ.get("HEADLONG_TEST_ALL"))
NATIVE = pytest.mark.parametrize("level", native.levels()[1:], indirect=True)
"""Every instruction set but the reference in NumPy, where a test does not take all that conftest's ``level`` has."""
ENDS = pytest.mark.parametrize("level", [native.REFERENCE, native.levels()[-1]], indirect=True)
"""The reference and the best."""


def in_turn(step: int, number: int, values: Iterable[Any]) -> list[Any]:
    """All values where everything is asked for, else each ``step``-th: others for each ``number``."""
    found = list(values)
    return found if ALL else found[number % step :: step] or found[-1:]


def every(step: int, values: Iterable[Any]) -> list[Any]:
    """All values; but for each ``step``-th they are ``exhaustive``."""
    return [value if place % step == 0 else left_out(value) for place, value in enumerate(values)]


def left_out(value: Any) -> Any:
    """One value (a tuple: of several parameters) that others stand for."""
    return pytest.param(*value if isinstance(value, tuple) else (value,), marks=pytest.mark.exhaustive)
