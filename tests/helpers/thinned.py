"""Parameters of which some are left out unless everything is asked for (HEADLONG_TEST_ALL=1; see conftest.py)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def every(step: int, values: Iterable[Any]) -> list[Any]:
    """All values; but for each ``step``-th they are ``exhaustive``."""
    return [value if place % step == 0 else left_out(value) for place, value in enumerate(values)]


def left_out(value: Any) -> Any:
    """One value (a tuple: of several parameters) that others stand for."""
    return pytest.param(*value if isinstance(value, tuple) else (value,), marks=pytest.mark.exhaustive)
