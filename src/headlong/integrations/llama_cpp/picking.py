"""The next token of one sequence, exactly, from candidates.

::

    drawn from  softmax(x / temperature)  over  {tokens that pass grammar, top_k, top_p, min_p}

Tokens whose ``x`` was moved (penalties, biases) are few and scored exactly; the engine answers for all others, and the two
are merged. The filters keep a prefix of the tokens in the order of ``x``. A token is drawn from all, and kept if it passes. It
nearly always does, and a list of the best says so: what they weigh together is no more than what all do. Only for a token near
the border of the nucleus is the mass of all needed, and only after some draws that did not pass the whole of what is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from headlong.dtypes import Doubles, Ids
from headlong.errors import InputError
from headlong.integrations.llama_cpp.chain import penalised
from headlong.integrations.llama_cpp.grammar import Grammar
from headlong.integrations.llama_cpp.head import Head, Limits
from headlong.integrations.llama_cpp.settings import Settings, edited, moved

FIRST, GROWTH = 64, 8
"""How long the first list is, and how much longer each next one."""
DRAWS = 8
"""Draws from all tokens before the list is made as long as it has to be."""
NEAR = 0.01
"""Width of a normaliser that settles most tokens."""
NONE: Ids = np.empty(0, np.int64)
NOTHING = -1
"""No token."""
SURE = 1e-9
"""Width of a normaliser that settles whether a token on the border of the nucleus is in it."""


class Listed(NamedTuple):
    """The best tokens, likeliest first, the smaller id of two; no other token's exponent is above ``floor``.

    ``low, high``: between them lies the log of the sum of exp(x) of all tokens.
    """

    ids: Ids
    exponents: Doubles
    floor: float = -math.inf
    low: float = -math.inf
    high: float = math.inf


class Kept(NamedTuple):
    """The first ``sure`` tokens of a list pass, those from ``possible`` on do not; ``covered``: nor do those not in it."""

    sure: int
    possible: int
    covered: bool


class Row:
    """One hidden vector ``[1, dim]``, and what has been moved or ruled out for it."""

    def __init__(
        self, head: Head, hidden: Any, settings: Settings, generated: list[int], grammar: Grammar | None = None,
        repeats: Mapping[int, float] | None = None,
    ) -> None:  # fmt: skip
        self._head, self._hidden, self._settings, self._grammar = head, hidden, settings, grammar
        self._ids, self._exponents = NONE, np.empty(0)
        if settings.moving:
            penalties = repeats or {}
            self._ids = np.union1d(edited(settings, generated, head.vocab), np.array([*penalties], np.int64))
            self._exponents = moved(settings, generated, self._ids, head.of(hidden, self._ids))
            self._exponents = penalised(self._ids, self._exponents, penalties)
        self._others = head.vocab - len(self._ids)
        self._limits: Limits = {"exclude": self._ids} if len(self._ids) else {}

    def pick(self, rng: np.random.Generator) -> int:
        settings = self._settings
        if settings.greedy:
            return int(self._first(1).ids[0])
        if settings.top_k > 0:
            return draw_listed(top(self._first(settings.top_k), settings.top_k), settings, rng)
        if self._grammar is not None:
            self._rule_out(self._grammar)
        if settings.top_p >= 1 and settings.min_p <= 0:
            return self._draw(rng)
        found = self._listed(FIRST)
        return self.kept_draw(rng, found, NOTHING if kept(found, settings).covered else self._draw(rng))

    def _first(self, count: int) -> Listed:
        """At least ``count`` tokens that the grammar accepts, or all."""
        length = count if self._grammar is None else max(count, FIRST)
        while True:
            found = self._best(length)
            if self._grammar is not None:
                accepted = self._grammar.accepts(found.ids)
                found = found._replace(ids=found.ids[accepted], exponents=found.exponents[accepted])
            if len(found.ids) >= count or found.floor == -math.inf:
                return self._some(found)
            length *= GROWTH

    def _rule_out(self, grammar: Grammar) -> None:
        """Asks the grammar about every token; what it accepts is the whole distribution."""
        allowed = np.flatnonzero(grammar.accepts(np.arange(self._head.vocab)))
        here = np.isin(self._ids, allowed)
        others = np.setdiff1d(allowed, self._ids, assume_unique=True)
        self._ids, self._exponents = self._ids[here], self._exponents[here]
        self._others, self._limits = len(others), {"allowed": others}

    def _best(self, count: int) -> Listed:
        """The moved tokens and the ``count`` best of the others."""
        ids, exponents, floor = self._ids, self._exponents, -math.inf
        if self._others:
            best, values = self._head.best(self._hidden, count, **self._limits)
            there = best[0] >= 0
            floor = float(values[0, -1]) if count < self._others else -math.inf
            above = exponents > floor  # of the moved ones, too, a list has none below what it leaves out
            ids, exponents = np.append(ids[above], best[0][there]), np.append(exponents[above], values[0][there])
        if len(self._ids):
            order = np.lexsort((ids, -exponents))
            order = order[exponents[order] > -np.inf]
            ids, exponents = ids[order], exponents[order]
        return Listed(ids, exponents, floor)

    def _listed(self, count: int) -> Listed:
        return weighing(self._some(self._best(count)))

    def _draw(self, rng: np.random.Generator) -> int:
        """From all tokens."""
        temperature = self._settings.temperature
        ids, keys = self._ids, self._exponents / temperature + rng.gumbel(size=len(self._ids))
        if self._others:
            drawn, score = self._head.draw(self._hidden, int(rng.integers(1 << 63)), 0, temperature=temperature, **self._limits)
            ids, keys = np.append(ids, drawn), np.append(keys, score)
        return int(self._some(Listed(ids, keys)).ids[np.argmax(keys)])

    def kept_draw(self, rng: np.random.Generator, found: Listed, token: int) -> int:
        """From the tokens that pass top_p and min_p, the first of which are ``found``; ``token`` was drawn from all, or nothing
        was because the list covers what is kept."""
        settings = self._settings
        for _ in range(DRAWS):
            while token not in found.ids and not kept(found, settings).covered:
                found = self._longer(found)
            found = self._settled(found, found.ids == token)
            if (np.flatnonzero(found.ids == token) < kept(found, settings).sure).any():
                return token
            if kept(found, settings).covered:
                break
            token = self._draw(rng)
        while not kept(found, settings).covered:
            found = self._longer(found)
        keys = found.exponents / settings.temperature + rng.gumbel(size=len(found.ids))
        keys[kept(found, settings).possible :] = -np.inf
        found = self._settled(found, np.arange(len(keys)) == np.argmax(keys))
        return int(found.ids[np.argmax(keys[: kept(found, settings).sure])])

    def _longer(self, found: Listed) -> Listed:
        if found.high == math.inf and self._settings.top_p < 1:  # perhaps it is long enough
            return self._weighed(found, NEAR)
        longer = self._listed(len(found.ids) * GROWTH)
        return longer._replace(low=max(longer.low, found.low), high=found.high)

    def _settled(self, found: Listed, at: Doubles) -> Listed:
        """The list with a normaliser that says whether the token ``at`` some place passes."""
        place = np.flatnonzero(at)
        for eps in (NEAR, SURE):
            bounds = kept(found, self._settings)
            if not len(place) or not bounds.sure <= place[0] < bounds.possible:
                break
            found = self._weighed(found, eps)
        return found

    def _weighed(self, found: Listed, eps: float) -> Listed:
        """The list with a normaliser within ``eps``; what rounding leaves of the narrowest is no longer told apart."""
        low = high = -math.inf
        if self._others:
            lse, error = self._head.mass(self._hidden, eps, **self._limits)
            low, high = (lse, lse) if eps == SURE else (lse - error, lse + error)
        if len(self._ids):
            mine = float(np.logaddexp.reduce(self._exponents, initial=-math.inf))
            low, high = float(np.logaddexp(mine, low)), float(np.logaddexp(mine, high))
        return found._replace(low=low, high=high)

    def _some(self, found: Listed) -> Listed:
        if not len(found.ids) or not np.isfinite(found.exponents).any():
            raise InputError("no token is left to come next: the grammar and logit_bias rule out every one")
        return found


def weighing(found: Listed) -> Listed:
    """The list, whose tokens weigh no more than all do."""
    return found._replace(low=float(found.exponents[0] + math.log(np.exp(found.exponents - found.exponents[0]).sum())))


def kept(found: Listed, settings: Settings) -> Kept:
    """What top_p and min_p keep of a list whose first token is the likeliest of all."""
    exponents = found.exponents
    least = exponents[0] + math.log(settings.min_p) if settings.min_p > 0 else -math.inf
    sure = possible = int(np.count_nonzero(exponents >= least))
    if settings.top_p < 1:
        parts = np.exp(exponents - exponents[0])
        before = np.cumsum(parts) - parts
        low, high = (settings.top_p * math.exp(bound - exponents[0]) for bound in (found.low, found.high))
        sure = min(sure, max(1, int(np.count_nonzero(before < low))))
        possible = min(possible, max(1, int(np.count_nonzero(before < high))))
    covered = possible < len(exponents) or found.floor == -math.inf or found.floor < least
    return Kept(sure, possible, covered)


def whole(found: Listed, places: Any) -> Listed:
    """Some of a list alone: a distribution of their own."""
    exponents = found.exponents[places]
    mass = float(np.logaddexp.reduce(exponents))
    return Listed(found.ids[places], exponents, -math.inf, mass, mass)


def top(found: Listed, count: int) -> Listed:
    """The best ``count`` alone."""
    return whole(found, slice(count))


def draw_listed(found: Listed, settings: Settings, rng: np.random.Generator) -> int:
    """From a list that has every token that may pass, and its exact normaliser."""
    count = kept(found, settings).sure
    keys = found.exponents[:count] / settings.temperature + rng.gumbel(size=count)
    return int(found.ids[np.argmax(keys)])
