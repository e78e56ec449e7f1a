"""The next token of one sequence by llama.cpp's whole chain of samplers, from as many of the best as decide it.

Filters that go by a threshold (top_n_sigma, mirostat, xtc) need the best down to it; those that go by the entropy of what is
left (typical_p, dynatemp) every token of that. Where nothing has been left out before them that is every logit, which is read.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headlong.engines.edited_row import Noise, exponents
from headlong.engines.sampling_filters import FINEST, FIRST_CANDIDATES, GROWTH, Ranked, kept, kept_count
from headlong.integrations.llama_cpp import chain
from headlong.integrations.llama_cpp.head import Head
from headlong.integrations.llama_cpp.picking import Row
from headlong.randomness import stream

TINY = 1e-300
"""In the place of 0, of a temperature or a share."""
NEAR = 0.01
"""Width of a normaliser that settles most tokens."""


class ChainedRow(Row):
    """A row whose settings ask for more than top_k, top_p, min_p and temperature."""

    def __init__(self, head: Head, *row: Any, mirostat: chain.Mirostat | None = None) -> None:
        super().__init__(head, *row)
        self._head, self._mirostat = head, mirostat

    def pick(self, noise: Noise) -> int:
        settings = self.settings
        if settings.top_k <= 0 or settings.top_n_sigma > 0 or self._mirostat is not None:
            self.rule_out()
        if self._mirostat is not None:
            return self._surprising(self._mirostat, noise)
        found = self._down_to_sigma(settings.top_n_sigma) if settings.top_n_sigma > 0 else None
        if settings.top_k > 0:
            found = self.first(settings.top_k) if found is None else found.alone(slice(settings.top_k))
        filters = settings.top_p < 1 or settings.min_p > 0
        if found is None and (settings.typical_p < 1 or (settings.dynatemp_range > 0 and not filters)):
            found = self.every()  # an entropy of all tokens goes by each of them
        if found is None:
            if not filters:
                return self._without_likeliest(noise)
            found = kept(self, settings.sieve)
        else:
            if settings.typical_p < 1:
                found = found.alone(chain.typical(found.scores, settings.typical_p))
            found = found.alone(slice(kept_count(found.scores, settings.sieve)))
        if self._taken(noise):
            likely = np.count_nonzero(chain.log_probs(found.scores) >= self._log_threshold)
            found = found.alone(slice(max(0, int(likely) - 1), None))
        temperature = max(chain.temperature(found.scores, settings), TINY)
        return noise._replace(temperature=temperature).won(found._replace(scores=found.scores - found.scores[0]))

    def _down_to(self, least: float) -> Ranked:
        """At least the tokens whose scores reach ``least``."""
        found = self.best(FIRST_CANDIDATES)
        while found.least >= least:
            found = self.best(len(found.ids) * GROWTH)
        return found

    def _down_to_sigma(self, sigmas: float) -> Ranked:
        """The tokens whose scores are at most so many standard deviations below the largest."""
        if "allowed" in self.limits:
            found = self.every()
            deviation = float(found.scores.std())
        else:
            gone = np.union1d(self.ids, self.banned)
            first, second = self._head.moments(self.hidden)
            before, count = exponents(self.engine, self.hidden, gone), self.others + len(self.ids)
            first, second = first - before.sum() + self.scores.sum(), second - (before**2).sum() + (self.scores**2).sum()
            deviation = math.sqrt(max(0.0, second / count - (first / count) ** 2))
            found = self.best(1)
        least = float(found.scores[0]) - sigmas * deviation
        found = found if np.isneginf(found.least) else self._down_to(least)
        return found.alone(slice(np.count_nonzero(found.scores >= least)))

    def _likely(self, log_share: float) -> tuple[Ranked, int]:
        """A list, and how many of its first tokens are all that have at least this share of the mass."""
        low, high = self.lse(1.0, NEAR)
        found = self._down_to(low + log_share)
        if np.count_nonzero((found.scores >= low + log_share) & (found.scores < high + log_share)):
            low = sum(self.lse(1.0, FINEST)) / 2
        return found, int(np.count_nonzero(found.scores >= low + log_share))

    def _without_likeliest(self, noise: Noise) -> int:
        """From all tokens, but for the likeliest that xtc takes away."""
        if self._taken(noise):
            found, count = self._likely(self._log_threshold)
            self.ban(found.ids[: max(0, count - 1)])
        return self.draw_of_all(noise)

    def _taken(self, noise: Noise) -> bool:
        """Whether xtc takes tokens away here."""
        settings = self.settings
        return settings.xtc and stream("xtc", noise.seed, noise.position).random() <= settings.xtc_probability

    @property
    def _log_threshold(self) -> float:
        return math.log(self.settings.xtc_threshold or TINY)

    def _surprising(self, mirostat: chain.Mirostat, noise: Noise) -> int:
        """From the tokens whose surprise is at most mu."""
        found, count = self._likely(-max(0.0, mirostat.mu) * math.log(2))
        found = found.alone(slice(max(1, count)))
        token = noise._replace(temperature=1.0).won(found)
        mirostat.take(float(chain.log_probs(found.scores)[found.ids == token][0]))
        return token
