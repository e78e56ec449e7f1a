"""The next token of one sequence by llama.cpp's whole chain of samplers, from as many of the best as decide it.

Filters that go by a threshold (top_n_sigma, mirostat, xtc) need the best down to it; those that go by the entropy of what is
left (typical_p, dynatemp) every token of that. Where nothing has been left out before them that is every logit, which is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from headlong.dtypes import Ids
from headlong.integrations.llama_cpp import chain
from headlong.integrations.llama_cpp.picking import FIRST, GROWTH, NEAR, SURE, Listed, Row, kept, top, whole

TINY = 1e-300
"""In the place of 0, of a temperature or a share."""


class ChainedRow(Row):
    """A row whose settings ask for more than top_k, top_p, min_p and temperature."""

    def __init__(self, *row: Any, mirostat: chain.Mirostat | None = None) -> None:
        super().__init__(*row)
        self._mirostat = mirostat

    def pick(self, rng: np.random.Generator) -> int:
        settings = self._settings
        if self._grammar is not None and (settings.top_k <= 0 or settings.top_n_sigma > 0 or self._mirostat is not None):
            self._rule_out(self._grammar)
            self._grammar = None
        if self._mirostat is not None:
            return self._surprising(self._mirostat, rng)
        found = self._down_to_sigma(settings.top_n_sigma) if settings.top_n_sigma > 0 else None
        if settings.top_k > 0:
            found = top(self._first(settings.top_k) if found is None else found, settings.top_k)
        filters = settings.top_p < 1 or settings.min_p > 0
        if found is None and (settings.typical_p < 1 or (settings.dynatemp_range > 0 and not filters)):
            found = self._everything()  # an entropy of all tokens goes by each of them
        if found is None:
            if not filters:
                return self._without_likeliest(rng)
            found = self._kept()
        else:
            if settings.typical_p < 1:
                found = whole(found, chain.typical(found.exponents, settings.typical_p))
            found = whole(found, slice(kept(found, settings).sure))
        if self._taken(rng):
            likely = np.count_nonzero(chain.log_probs(found.exponents) >= self._log_threshold)
            found = whole(found, slice(max(0, int(likely) - 1), None))
        keys = found.exponents - found.exponents[0]
        keys = keys / max(chain.temperature(found.exponents, settings), TINY) + rng.gumbel(size=len(keys))
        return int(found.ids[np.argmax(keys)])

    def _everything(self) -> Listed:
        """All tokens that may come, with their own mass."""
        ids, exponents = self._ids, self._exponents
        if self._others:
            all_but = np.delete(np.arange(self._head.vocab), self._ids)
            left = np.asarray(self._limits.get("allowed", all_but))
            ids, exponents = np.append(ids, left), np.append(exponents, self._head.of(self._hidden, left))
        order = np.lexsort((ids, -exponents))
        order = order[exponents[order] > -np.inf]
        return whole(self._some(Listed(ids[order], exponents[order])), slice(None))

    def _down_to(self, least: Callable[[Listed], float], found: Listed) -> Listed:
        """At least the tokens whose exponents reach ``least``; what that says may depend on how narrow a normaliser is."""
        while found.floor >= least(found):
            longer = self._listed(len(found.ids) * GROWTH)
            found = longer._replace(low=max(longer.low, found.low), high=found.high)
        return found

    def _down_to_sigma(self, sigmas: float) -> Listed:
        """The tokens whose exponents are at most so many standard deviations below the largest."""
        if "allowed" in self._limits:
            found = self._everything()
            deviation = float(found.exponents.std())
        else:
            first, second = self._head.moments(self._hidden)
            before, after = self._head.of(self._hidden, self._ids), self._exponents[self._exponents > -np.inf]
            count = self._others + len(after)
            first, second = first - before.sum() + after.sum(), second - (before**2).sum() + (after**2).sum()
            deviation = math.sqrt(max(0.0, second / count - (first / count) ** 2))
            found = self._listed(FIRST)
        least = float(found.exponents[0]) - sigmas * deviation
        found = self._down_to(lambda _: least, found)
        return whole(found, slice(np.count_nonzero(found.exponents >= least)))

    def _kept(self) -> Listed:
        """All that pass top_p and min_p, among all tokens."""
        found = self._listed(FIRST)
        while True:
            bounds = kept(found, self._settings)
            if bounds.covered and bounds.sure == bounds.possible:
                return whole(found, slice(bounds.sure))
            if bounds.covered:
                found = self._settled(found, np.arange(len(found.ids)) == bounds.sure)  # the narrowest has one end
            else:
                found = self._longer(found)

    def _likely(self, log_share: float) -> tuple[Listed, int]:
        """A list, and how many of its first tokens are all that have at least this share of the mass."""
        found = self._weighed(self._listed(FIRST), NEAR)
        found = self._down_to(lambda one: one.low + log_share, found)
        most, least = (np.count_nonzero(found.exponents >= end + log_share) for end in (found.low, found.high))
        if most > least:
            found = self._weighed(found, SURE)
        return found, int(np.count_nonzero(found.exponents >= found.low + log_share))

    def _without_likeliest(self, rng: np.random.Generator) -> int:
        """From all tokens, but for the likeliest that xtc takes away."""
        if self._taken(rng):
            found, count = self._likely(self._log_threshold)
            self._take_away(found.ids[: max(0, count - 1)])
        return self._draw(rng)

    def _taken(self, rng: np.random.Generator) -> bool:
        """Whether xtc takes tokens away here."""
        return self._settings.xtc and rng.random() <= self._settings.xtc_probability

    @property
    def _log_threshold(self) -> float:
        return math.log(self._settings.xtc_threshold or TINY)

    def _take_away(self, ids: Ids) -> None:
        here = np.isin(self._ids, ids)
        gone = np.setdiff1d(ids, self._ids)
        self._ids = np.append(self._ids, gone)
        self._exponents = np.append(np.where(here, -np.inf, self._exponents), np.full(len(gone), -np.inf))
        self._others -= len(gone)
        if "allowed" in self._limits:
            self._limits = {"allowed": np.setdiff1d(self._limits["allowed"], gone)}
        else:
            self._limits = {"exclude": self._ids} if len(self._ids) else {}

    def _surprising(self, mirostat: chain.Mirostat, rng: np.random.Generator) -> int:
        """From the tokens whose surprise is at most mu."""
        found, count = self._likely(-max(0.0, mirostat.mu) * math.log(2))
        logs = chain.log_probs(found.exponents[: max(1, count)])
        place = int(np.argmax(logs + rng.gumbel(size=len(logs))))
        mirostat.take(float(logs[place]))
        return int(found.ids[place])
