"""When a number that was measured matches one that was published.

::

    verdict = "matched" if low - tolerance <= got <= high + tolerance else "differs"
"""

from __future__ import annotations

from typing import NamedTuple


class Expected(NamedTuple):
    """The published range of one number, and by how much a run may leave it and still match."""

    low: float
    high: float
    tolerance: float = 0.0

    def verdict(self, got: float) -> str:
        return "matched" if self.low - self.tolerance <= got <= self.high + self.tolerance else "differs"
