"""Which classes the sampling filters keep, decided without sorting the vocabulary.

    top_p    class i stays while   sum over better j of exp(link(z_j) / T)  <  top_p * sum over all j
    min_p    class i stays while   link(z_i) / T  >=  max link(z) / T + log(min_p)

"Better" is a larger logit, or an equal one with a smaller id. Both filters keep a prefix of that order, so one refusal
refuses all that follow. The comparison is settled on intervals; rows are read further only while it is open. ``top_k``
comes before both, as in Hugging Face's samplers: it narrows the live classes, and is no business of this file.
"""

from __future__ import annotations

import math

import numpy as np

from headlong.engines.reference.query import Doubles, Flags, Ids, Query

FIRST_ROWS = 16
"""Rows read further in the first round of a comparison that is open; each round doubles it."""


def nucleus_size(mass: Doubles, top_p: float, total: float | None = None) -> int:
    """How many classes, in falling order of ``mass``, have less than ``top_p * total`` before them (None: of all of it)."""
    before = np.concatenate([[0.0], np.cumsum(mass)])
    return int((before[:-1] < top_p * (before[-1] if total is None else total)).sum())


class Nucleus:
    """The classes of one query that survive ``top_p`` and ``min_p`` at a temperature, as far as they were asked for."""

    def __init__(self, query: Query, temperature: float, top_p: float, min_p: float, best: float) -> None:
        """``best`` is the largest live logit; it is read only where ``min_p`` is on."""
        self.query, self.temperature, self.top_p = query, temperature, top_p
        self.floor = self._tempered(np.array([best]))[0] + math.log(min_p) if min_p > 0 else -math.inf
        self.refused: Flags = np.zeros(len(query.estimate), bool)
        self.last_held = (math.inf, 1)
        """The worst class known to be kept, as ``(logit, -id)``."""

    def holds(self, winner: int) -> bool:
        """Whether the scored class ``winner`` is kept. A refusal is remembered for every class that is surely worse."""
        value = float(self.query.estimate[winner])
        if (value, -winner) >= self.last_held:
            return True
        if self._tempered(np.array([value]))[0] >= self.floor and self._in_nucleus(winner, value):
            self.last_held = (value, -winner)
            return True
        self.refused |= self._surely_worse(winner, value)
        self.refused[winner] = True
        return False

    def _in_nucleus(self, winner: int, value: float) -> bool:
        """``(1 - top_p) * better - top_p * the rest < 0``, read further until the interval of the left side has a sign."""
        if self.top_p >= 1:
            return True
        query, live, count = self.query, self.query.live, FIRST_ROWS
        while True:
            most, least = self._balance(winner, value)
            if float(most[live].sum()) < 0:
                return True
            open_ids = np.flatnonzero(live & ~query.scored)
            if float(least[live].sum()) >= 0 or not len(open_ids):
                return False
            self._look_at_widest(open_ids, (most - least)[open_ids], count)
            count *= 2

    def _look_at_widest(self, ids: Ids, width: Doubles, count: int) -> None:
        if count > self.query.matrix.plan.dense.share * len(self.refused):
            self.query.score_all()
        else:
            self.query.look(ids[np.argsort(-width, kind="stable")[:count]])

    def _balance(self, winner: int, value: float) -> tuple[Doubles, Doubles]:
        """The most and the least that each class can add to the left side above."""
        query = self.query
        everything = np.arange(len(query.estimate))
        better = (query.reach()[0] > value) | (query.scored & (query.estimate == value) & (everything < winner))
        low, high = query.exponents(everything, self.temperature)
        own = self._tempered(np.array([value]))[0]
        shift = max(float(low[query.live].max()), own)
        with np.errstate(over="ignore"):
            low_mass, high_mass, worse_mass = (np.exp(end - shift) for end in (low, high, np.minimum(high, own)))
        most = np.where(self._surely_worse(winner, value), -self.top_p * low_mass, (1 - self.top_p) * high_mass)
        least = np.where(better, (1 - self.top_p) * low_mass, -self.top_p * worse_mass)
        return most, least

    def _surely_worse(self, winner: int, value: float) -> Flags:
        """Classes that cannot be better than ``winner``: itself, lower logits, equal ones with larger ids."""
        query = self.query
        behind = np.arange(len(query.estimate)) >= winner
        return np.asarray((query.reach()[1] < value) | (query.scored & (query.estimate == value) & behind))

    def _tempered(self, values: Doubles) -> Doubles:
        return self.query.matrix.link(values) / self.temperature
