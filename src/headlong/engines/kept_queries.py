"""The queries that an engine learns from: copies of the first ones, and how many of them each plan is made of.

::

    counts = ..., last / GROWTH^2, last / GROWTH, last         last = PER_COLUMN times the layer's columns
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headlong.arrays import as_numpy
from headlong.dtypes import Doubles, Floats

FIRST = 512
"""The fewest queries that a first plan is made of, or the layer's columns."""
KEPT = 1024
"""The fewest queries that the last plan is made of."""
MOST_NUMBERS = 1 << 22
"""Numbers of float32 that their copies take at most."""
PER_COLUMN = 3.5
"""Queries of the last plan. With eight of them a column a plan reads two hundredths less, and every query that is kept costs a
cold call a tenth."""
GROWTH = 2.25
"""Times as many queries make the next plan: their second moments are off by two thirds of what those of the last were."""
SINGLE = np.dtype(np.float32)


def counts(dim: int) -> tuple[int, ...]:
    """How many queries each plan is made of, of a layer of ``dim`` columns."""
    found = [max(1, min(max(KEPT, round(PER_COLUMN * dim)), MOST_NUMBERS // dim))]
    while (fewer := round(found[0] / GROWTH)) >= max(FIRST, dim):
        found.insert(0, fewer)
    return tuple(found)


class Queries:
    """Copies of the hidden vectors that were asked since learning began, as many as the last plan is made of.

    With cold caches every operation of NumPy costs a call some ten microseconds, and so does a lock: there is one copy of what
    came, as it came. Threads that count at once may count one call for two, and keep a few more.
    """

    def __init__(self, dim: int) -> None:
        self._counts, self._plans = counts(dim), 0
        self._kept: list[Floats] = []
        self.count = 0

    @property
    def wanted(self) -> int:
        """How many the next plan is made of; 0: all plans are made."""
        return (*self._counts, 0)[self._plans]

    @property
    def enough(self) -> bool:
        """Whether there are as many as the next plan is made of."""
        return 0 < self.wanted <= self.count

    def take(self, hidden: Any) -> None:
        """Copies the rows that there is room for."""
        room = self._counts[-1] - self.count
        if room > 0:  # none: a call while the last plan is being compiled
            plain = type(hidden) is np.ndarray and hidden.dtype is SINGLE
            rows = hidden if plain else _single(hidden)
            some = rows.copy() if len(rows) <= room else rows[:room].copy()
            self._kept.append(some)
            self.count += len(some)

    def vectors(self) -> Doubles:
        """Those that float32 could hold."""
        rows = np.concatenate(tuple(self._kept))
        return rows[np.isfinite(rows).all(axis=1)].astype(np.float64)

    def planned(self, count: int) -> None:
        """A plan was made of the first ``count``."""
        self._plans = sum(each <= count for each in self._counts)


def _single(hidden: Any) -> Floats:
    with np.errstate(over="ignore"):
        return np.asarray(as_numpy(hidden, "hidden"), np.float32)
