"""The next class of one query, some of whose classes have other scores than its layer gives: those, and an engine for the rest.

::

    drawn from  softmax(f(z) / T)  over  {classes that pass the filters}     as  argmax f(z) / T + gumbel(seed, position, class)

Edited classes are few and read exactly; the engine answers for all others, and the two are merged. A draw of all classes nearly
always passes the filters, and a list of the best says so: what they weigh together is no more than what all do. Only near the
border of a nucleus is the mass of all needed. Every decoder picks its tokens here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from headlong.answers import Cost
from headlong.dtypes import Doubles, Ids
from headlong.engines.contract import Verbs
from headlong.engines.few_allowed_classes import gumbels
from headlong.engines.sampling_filters import FIRST_CANDIDATES, Ranked, kept
from headlong.errors import InputError
from headlong.links import Affine
from headlong.question import Sieve

NO_IDS: Ids = np.empty(0, np.int64)
NO_SCORES: Doubles = np.empty(0)
SLACK = 2.0**-40
"""What sums of some dozens of weights round, as a share of their mass."""


class Noise(NamedTuple):
    """That of one place in a text: ``temperature`` is what kept classes are drawn at."""

    seed: int
    position: int
    temperature: float = 1.0

    def keys(self, ids: Ids, scores: Doubles) -> Doubles:
        return np.asarray(scores / self.temperature + gumbels(self.seed, self.position, range(1), ids)[0])

    def won(self, found: Ranked) -> int:
        """The draw among these alone."""
        return int(found.ids[np.argmax(self.keys(found.ids, found.scores))])


def limits_of(banned: list[Ids], vocab: int) -> dict[str, Any]:
    """``exclude=`` where few are ruled out, ``allowed=`` where few are left, nothing where all are there."""
    if not any(map(len, banned)):
        return {}
    if max(map(len, banned)) <= vocab // 2:
        return {"exclude": banned}
    return {"allowed": [others(vocab, row) for row in banned]}


def joined(vocab: int, *parts: Ids) -> Ids:
    """The ids that are in any of the ``parts``, in their order; half a vocabulary is marked sooner than it is sorted."""
    found = np.zeros(vocab, bool)
    for part in parts:
        found[part] = True
    return np.flatnonzero(found)


def others(vocab: int, ids: Ids, first: int = 0) -> Ids:
    """The ids from ``first`` on that are not in ``ids``."""
    found = np.ones(vocab, bool)
    found[:first] = found[ids] = False
    return np.flatnonzero(found)


def exponents(engine: Verbs, hidden: Any, ids: Ids) -> Doubles:
    """``f(z)`` of ``ids``, in their order: their rows alone are read."""
    if not len(ids):
        return np.empty(0)
    logits: Doubles = np.asarray(engine.log_prob(hidden, ids[None], eps=math.inf).logits, np.float64)[0]
    return engine.exponents(logits)


class EditedRow:
    """One hidden vector ``[1, dim]``; ``cost``: what the engine's last answer took."""

    def __init__(
        self, engine: Verbs, hidden: Any, ids: Ids = NO_IDS, scores: Doubles = NO_SCORES, banned: Ids = NO_IDS
    ) -> None:
        self.engine, self.hidden, self.vocab = engine, hidden, engine.layer.vocab
        self.cost: Cost | None = None
        self.edit(ids, scores, banned)

    def edit(self, ids: Ids, scores: Doubles, banned: Ids) -> None:
        """From now on ``ids`` have the ``scores``, and ``banned``, which are others, do not come; nor does what has -inf."""
        there = scores > -math.inf
        self.ids, self.scores, self.banned = ids[there], scores[there], joined(self.vocab, banned, ids[~there])
        out = joined(self.vocab, self.banned, self.ids)
        self.others, self.limits = self.vocab - len(out), limits_of([out], self.vocab)
        if not self.others and not len(self.ids):
            raise InputError("no token is left to come next: biases, bans and grammar rule out every one")

    def ban(self, more: Ids) -> None:
        """None of ``more`` comes, either."""
        stay = ~np.isin(self.ids, more)
        self.edit(self.ids[stay], self.scores[stay], joined(self.vocab, self.banned, more))

    def best(self, count: int) -> Ranked:
        """The ``count`` best of the others, and the edited classes above the last of these."""
        ids, scores, least, count = self.ids, self.scores, -math.inf, min(count, self.others)
        if count:
            top = self.engine.topk(self.hidden, k=count, eps=math.inf, **self.limits)
            self.cost, found = top.cost, self.engine.exponents(np.asarray(top.logits, np.float64))[0]
            least = -math.inf if count == self.others else float(found[-1])
            above = scores > least
            ids, scores = np.append(ids[above], np.asarray(top.ids)[0]), np.append(scores[above], found)
        order = np.lexsort((ids, -scores))
        return Ranked(ids[order], scores[order], least)

    def every(self) -> Ranked:
        """All classes that may come."""
        left = others(self.vocab, joined(self.vocab, self.banned, self.ids))
        ids, scores = np.append(self.ids, left), np.append(self.scores, exponents(self.engine, self.hidden, left))
        order = np.lexsort((ids, -scores))
        return Ranked(ids[order], scores[order], -math.inf)

    def draw(self, sieve: Sieve, noise: Noise) -> int:
        """A draw among the classes that pass, the same whichever way it is found."""
        if not sieve.top_k:
            token = self.draw_of_all(noise)
            if sieve.keeps_all or self._surely_kept(sieve, token):
                return token
        return noise.won(kept(self, sieve))

    def draw_of_all(self, noise: Noise) -> int:
        ids, keys = self.ids, noise.keys(self.ids, self.scores)
        if self.others:
            seed, position, temperature = noise
            drawn = self.engine.sample(
                self.hidden, temperature=temperature, seed=seed, position=position, eps=math.inf, **self.limits
            )
            self.cost = drawn.cost
            ids, keys = np.append(ids, int(drawn.ids[0, 0])), np.append(keys, float(drawn.score[0, 0]))
        return int(ids[np.argmax(keys)])

    def _surely_kept(self, sieve: Sieve, token: int) -> bool:
        """Whether a draw of all classes passes top_p and min_p: those that are better have little of what some of the best have
        alone. No normaliser is asked for, and with the same noise a draw of what is kept would be the same."""
        found = self.best(FIRST_CANDIDATES)
        scaled = found.scores / sieve.temperature
        weights = np.exp(scaled - scaled[0])
        place = int(np.argmax(found.ids == token))
        if found.ids[place] != token or found.scores[place] <= found.least or weights[place] < sieve.min_p:
            return False
        return bool(place == 0 or weights[:place].sum() < sieve.top_p * weights.sum() * (1 - SLACK))

    def lse(self, temperature: float, eps: float) -> tuple[float, float]:
        """Both ends of the log of all mass at this temperature."""
        mine = float(np.logaddexp.reduce(self.scores / temperature, initial=-math.inf))
        if not self.others:
            return (mine, mine)
        if self._unsaid(temperature):
            return (mine, math.inf)  # all classes will be looked at
        found = self._at(temperature).lse(self.hidden, eps=eps, **self.limits)
        middle, error = float(found.lse[0]), float(found.error[0])
        return (float(np.logaddexp(mine, middle - error)), float(np.logaddexp(mine, middle + error)))

    def entropy(self, temperature: float, eps: float) -> tuple[float, float]:
        """Both ends of the entropy at this temperature."""
        scaled = self.scores / temperature
        middle, error = 0.0, 0.0
        if self.others:
            if self._unsaid(temperature):
                return (0.0, math.log(self.others + len(scaled)))
            engine = self._at(temperature)
            found = engine.entropy(self.hidden, eps=eps, **self.limits)
            middle, error = float(found.entropy[0]), float(found.error[0])
            if len(scaled):  # -log p of each, weighted; the others have one more the less they weigh
                others = engine.lse(self.hidden, eps=eps, **self.limits)
                of_others, off = float(others.lse[0]), float(others.error[0])
                norm = float(np.logaddexp.reduce(scaled, initial=of_others))
                surprisals, theirs = norm - scaled, norm - of_others
                middle = math.exp(-theirs) * (middle + theirs) + float((np.exp(-surprisals) * surprisals).sum())
                error += 2 * off * (1 + middle)
        elif len(scaled):
            surprisals = float(np.logaddexp.reduce(scaled)) - scaled
            middle = float((np.exp(-surprisals) * surprisals).sum())
        return (max(0.0, middle - error), middle + error)

    def _unsaid(self, temperature: float) -> bool:
        """No link says a soft-cap at a temperature."""
        return temperature != 1 and not isinstance(getattr(self.engine.layer, "link", None), Affine)

    def _at(self, temperature: float) -> Verbs:
        return self.engine if temperature == 1 else self.engine.at_temperature(temperature)
