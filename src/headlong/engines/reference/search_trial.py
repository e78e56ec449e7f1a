"""Whether searches over blocks are still worth trying, where no vectors showed what they read: the twin of ``Trial`` in
``csrc/blocks/search.h``.
"""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

TRIED, REMEMBERED = 8, 128
"""Searches after which a trial may be over, and the most that are counted; the same in ``csrc/blocks/search.h``."""


def finish(answer: tuple[NDArray[Any], ...], left: NDArray[Any], more: tuple[NDArray[Any], ...], rows: int) -> None:
    """Fills in the queries ``left`` that a search gave up with what others answered. Columns ``rows`` and ``rows + 1``, which
    count rows and bytes, are added up: what was read in vain was read."""
    spent = answer[rows][left], answer[rows + 1][left]
    for whole, part in zip(answer, more, strict=True):
        whole[left] = part
    answer[rows][left] += spent[0]
    answer[rows + 1][left] += spent[1]


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
