"""Whether searches over blocks are still worth trying, where no vectors showed what they read: the twin of ``Trial`` in
``csrc/blocks/search.h``.
"""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from headlong.native import FoundTopK

TRIED, REMEMBERED, SELDOM = 8, 128, 512
"""Searches after which a trial may be over, the most that are counted, and calls of which one still makes them in the end; the
same in ``csrc/blocks/search.h``. Searches for more than ``SHORT`` classes are not counted: they take longer either way."""


def finish(answer: FoundTopK, left: NDArray[Any], more: FoundTopK) -> None:
    """Fills in the queries ``left`` that a search gave up with what others answered. Rows and bytes are added up: what was read
    in vain was read."""
    spent = answer.rows[left], answer.bytes[left]
    for whole, part in zip(answer, more, strict=True):
        whole[left] = part
    answer.rows[left] += spent[0]
    answer.bytes[left] += spent[1]


class Trial:
    """Searches so far; one that reads more than ``most`` bytes was in vain. (A native one may read as much more as passes do of
    late, beyond the codes of all classes.)"""

    def __init__(self, most: float) -> None:
        self.most = most
        self.tried, self.in_vain, self.passed_by, self.wait = 0, 0, 0, TRIED

    def over(self) -> bool:
        """Whether most searches were in vain."""
        return self.tried >= TRIED and 2 * self.in_vain > self.tried

    def goes_on(self) -> bool:
        """Whether a call that is counted makes searches: queries may change."""
        if not self.over():
            return True
        self.passed_by += 1
        if self.passed_by < self.wait:
            return False
        self.passed_by = 0
        return True

    def count(self, read: float, done: bool) -> None:
        """One more search; what was long ago counts half. Where searches are no longer made, a few that are not in vain bring
        them back."""
        if math.isinf(self.most):
            return
        vain, was_over = not done or read > self.most, self.over()
        if was_over:
            self.tried, self.in_vain = TRIED, min(max(self.in_vain + (1 if vain else -1), 0), TRIED)
            self.wait = min(2 * self.wait, SELDOM) if vain else TRIED
            return
        self.in_vain, self.wait = self.in_vain + vain, TRIED
        self.tried += 1
        if self.tried >= REMEMBERED:
            self.tried, self.in_vain = REMEMBERED // 2, self.in_vain // 2
