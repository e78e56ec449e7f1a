"""When what was measured matches what was published: "matched" or "differs", here alone.

::

    Expected(low, high, tolerance).verdict(got)     matched where low - tolerance <= got <= high + tolerance
    verdict_on(top > 29)                            matched where what was stated holds of our run

What is expected, and with which tolerance, stands with each table: ``printed.py`` of a paper, or the file that runs it.
"""

from __future__ import annotations

from typing import NamedTuple


class Expected(NamedTuple):
    """The published range of one number, and by how much a run may leave it and still match."""

    low: float
    high: float
    tolerance: float = 0.0

    def verdict(self, got: float) -> str:
        return verdict_on(self.low - self.tolerance <= got <= self.high + self.tolerance)


def verdict_on(holds: bool) -> str:
    """Of a statement about our run, such as "more than 29 times"."""
    return "matched" if holds else "differs"
