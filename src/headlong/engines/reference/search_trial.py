"""Whether searches over blocks are still worth trying, where no vectors showed what they read: the twin of ``Trial`` in
``csrc/blocks/search.h``.
"""

from __future__ import annotations

import math

TRIED, REMEMBERED = 8, 128
"""Searches after which a trial may be over, and the most that are counted; the same in ``csrc/blocks/search.h``."""


class Trial:
    """Searches so far; one that reads more than ``most`` bytes was in vain."""

    def __init__(self, most: float) -> None:
        self.most, self.tried, self.in_vain = most, 0, 0

    def over(self) -> bool:
        """Whether most searches were in vain."""
        return self.tried >= TRIED and 2 * self.in_vain > self.tried

    def count(self, read: float, done: bool) -> None:
        """One more search; what was long ago counts half."""
        if math.isinf(self.most):
            return
        self.in_vain += not done or read > self.most
        self.tried += 1
        if self.tried >= REMEMBERED:
            self.tried, self.in_vain = REMEMBERED // 2, self.in_vain // 2
