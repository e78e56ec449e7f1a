"""The next class of each row, from candidates.

::

    next = argmax over classes of f(z)                       greedy
    next = argmax over kept classes of f(z) / T + gumbel     sampling: temperature, then top-k, top-p, min-p

Rows that no processor edits are one call of the engine. Where some classes have other scores (a repetition penalty, a
bias), those are few and read exactly; the engine answers for all the others, and the two are merged: the winner, or as
many of the best as decide the filters.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headlong import Affine
from headlong.dtypes import Doubles, Ids
from headlong.engines.reference.gumbel import gumbels
from headlong.engines.sampling_filters import FIRST_CANDIDATES, Ranked, kept
from headlong.errors import InputError
from headlong.integrations.generation.fast_head import Reading, Taking
from headlong.integrations.generation.processors import Edits, Outweighs, ProcessorRecipe, edited, joined, others
from headlong.integrations.generation.surprisal_filters import kept_by_surprisal
from headlong.question import Sieve

SLACK = 2.0**-40
"""What sums of some dozens of weights round, as a share of their mass."""


class Picks(NamedTuple):
    """How a text goes on: ``seed`` None: by the likeliest class; ``first``: tokens of the prompt."""

    head: Reading
    taken: Taking
    recipe: ProcessorRecipe
    seed: int | None
    first: int

    def of(self, hidden: Tensor, input_ids: Tensor) -> Tensor:
        """The next class of each row ``[batch]``, counted in ``head.paths``; its noise belongs to its place in the text."""
        row0 = (input_ids.shape[1] - self.first) * len(hidden)
        massless = self.seed is None or (self.recipe.surprisals is None and not self.recipe.by_mass)
        engine = self.head.by_ids if massless else self.head.engine
        ids, path = _picked(engine, hidden, self.recipe, input_ids, self.seed, row0)
        if (ids < 0).any():
            self.head.changed()
            raise InputError("the weights were written to while tokens were generated; restore and accelerate again")
        self.head.count(path, len(hidden))
        return torch.from_numpy(ids)


def _picked(
    engine: Any, hidden: Tensor, recipe: ProcessorRecipe, input_ids: Tensor, seed: int | None, row0: int
) -> tuple[Ids, str]:
    def scores(ids: list[Ids]) -> list[Doubles]:
        return [exponents(engine, hidden[row : row + 1], part) for row, part in enumerate(ids)]

    edits = edited(recipe.edits, input_ids, engine.layer.vocab, scores, outweighing(engine, hidden))
    _check_some_left(edits.banned, engine.layer.vocab)
    if not any(map(len, edits.ids)) and recipe.surprisals is None:
        limits = limits_of(edits.banned, engine.layer.vocab)
        if seed is None:
            top = engine.topk(hidden, k=1, eps=math.inf, **limits)
            return np.asarray(top.ids)[:, 0], top.cost.path
        places = row0 + np.arange(len(hidden))
        ties = "all" if "top_k" in recipe.filters else "ids"  # as transformers' top_k has them
        drawn = engine.sample(hidden, seed=seed, position=places, eps=math.inf, ties=ties, **recipe.filters, **limits)
        return np.asarray(drawn.ids)[:, 0], drawn.cost.path
    rows = [Row(engine, hidden[row : row + 1], edits, row, recipe) for row in range(len(hidden))]
    ids = [one.likeliest() if seed is None else one.draw(seed, row0 + row) for row, one in enumerate(rows)]
    return np.array(ids, np.int64), f"{engine.method.name}, edited"


def _check_some_left(banned: list[Ids], vocab: int) -> None:
    for row, ids in enumerate(banned):
        if len(ids) == vocab:
            raise InputError(f"the processors leave no token in row {row}; allow at least one (banned: all {vocab})")


def limits_of(banned: list[Ids], vocab: int) -> dict[str, Any]:
    """``exclude=`` where few are ruled out, ``allowed=`` where few are left, nothing where all are there."""
    if not any(map(len, banned)):
        return {}
    if max(map(len, banned)) <= vocab // 2:
        return {"exclude": banned}
    return {"allowed": [others(vocab, row) for row in banned]}


def exponents(engine: Any, hidden: Tensor, ids: Ids) -> Doubles:
    """``f(z)`` of ``ids``, in their order: their rows alone are read."""
    if not len(ids):
        return np.empty(0)
    top = engine.topk(hidden, k=len(ids), eps=math.inf, allowed=ids)
    order = np.argsort(np.asarray(top.ids)[0])
    return np.asarray(engine.layer.link(np.asarray(top.logits)[0][order]), np.float64)


AHEAD = 16
"""Best classes that mostly tell whether those above some id outweigh the best one below."""


def outweighing(engine: Any, hidden: Tensor) -> Outweighs:
    """``logsumexp(f(z)[first:]) > max(f(z)[:first])`` of what is not banned; all above are read where the best do not tell."""

    def outweighs(row: int, banned: Ids, first: int) -> bool:
        one, low, vocab = hidden[row : row + 1], int(np.searchsorted(banned, first)), engine.layer.vocab
        above = others(vocab, banned, first)
        if low == first or not len(above):
            return low == first and len(above) > 0
        top = engine.topk(one, k=AHEAD, eps=math.inf, **limits_of([banned], vocab))
        ids = np.asarray(top.ids)[0]
        scores = np.asarray(engine.layer.link(np.asarray(top.logits, np.float64)))[0]
        if ids[0] >= first:
            return True
        seen = float(np.logaddexp.reduce(scores[ids >= first], initial=-math.inf))
        unseen = math.log(len(above)) + scores[-1] if ids[-1] >= 0 else -math.inf
        if seen > scores[0] or np.logaddexp(seen, unseen) < scores[0]:
            return bool(seen > scores[0])
        return bool(np.logaddexp.reduce(exponents(engine, one, above)) > scores[0])

    return outweighs


class Row:
    """One row of which some classes have been edited: those, and an engine for the others."""

    def __init__(self, engine: Any, hidden: Tensor, edits: Edits, row: int, recipe: ProcessorRecipe) -> None:
        self.engine, self.hidden, self.surprisals, filters = engine, hidden, recipe.surprisals, recipe.filters
        self.ids, self.scores = edits.ids[row], edits.scores[row]
        out = joined(engine.layer.vocab, edits.banned[row], self.ids)
        self.others = engine.layer.vocab - len(out)
        self.limits = limits_of([out], engine.layer.vocab)
        self.sieve = Sieve(
            float(filters.get("temperature", 1.0)),
            filters.get("top_k", 0),
            filters.get("top_p", 1.0),
            filters.get("min_p", 0.0),
            all_ties=True,
        )

    def likeliest(self) -> int:
        """The argmax, the smaller id of two."""
        return int(self.best(1).ids[0])

    def draw(self, seed: int, row: int) -> int:
        """``argmax f(z) / T + gumbel`` over the classes that pass the filters."""
        if self.surprisals is not None:
            found = kept_by_surprisal(self, self.sieve, self.surprisals)
        elif self.sieve.top_k:
            found = kept(self, self.sieve)
        else:
            token = self._drawn_from_all(seed, row)
            if self.sieve.keeps_all or self._surely_kept(token):
                return token
            found = kept(self, self.sieve)
        return int(found.ids[np.argmax(self._keys(found.ids, found.scores, seed, row))])

    def _surely_kept(self, token: int) -> bool:
        """Whether a draw of all classes passes top_p and min_p: those that are better have little of what some of the best have
        alone. No normaliser is asked for, and with the same noise a draw of what is kept would be the same."""
        found = self.best(FIRST_CANDIDATES)
        scaled = found.scores / self.sieve.temperature
        weights = np.exp(scaled - scaled[0])
        (place,) = np.flatnonzero(found.ids == token) if token in found.ids else (len(scaled),)
        if place >= len(scaled) or found.scores[place] <= found.least or weights[place] < self.sieve.min_p:
            return False
        return bool(place == 0 or weights[:place].sum() < self.sieve.top_p * weights.sum() * (1 - SLACK))

    def _keys(self, ids: Ids, scores: Doubles, seed: int, row: int) -> Doubles:
        return np.asarray(scores / self.sieve.temperature + gumbels(seed, row, 0, ids))

    def _drawn_from_all(self, seed: int, row: int) -> int:
        ids, keys = self.ids, self._keys(self.ids, self.scores, seed, row)
        if self.others:
            drawn = self.engine.sample(
                self.hidden, temperature=self.sieve.temperature, seed=seed, position=row, eps=math.inf, **self.limits
            )
            ids, keys = np.append(ids, int(drawn.ids[0, 0])), np.append(keys, float(drawn.score[0, 0]))
        return int(ids[np.argmax(keys)])

    def best(self, count: int) -> Ranked:
        """The edited classes and the ``count`` best of the others."""
        count = min(count, self.others)
        ids, scores, least = self.ids, self.scores, -math.inf
        if count:
            top = self.engine.topk(self.hidden, k=count, eps=math.inf, **self.limits)
            others = np.asarray(self.engine.layer.link(np.asarray(top.logits)[0]), np.float64)
            ids, scores = np.concatenate([ids, np.asarray(top.ids)[0]]), np.concatenate([scores, others])
            least = -math.inf if count == self.others else float(others[-1])
        order = np.lexsort((ids, -scores))
        return Ranked(ids[order], scores[order], least)

    def lse(self, temperature: float, eps: float) -> tuple[float, float]:
        """Both ends of the log of all mass at this temperature."""
        mine = float(np.logaddexp.reduce(self.scores / temperature, initial=-math.inf))
        if not self.others:
            return (mine, mine)
        if temperature != 1 and not isinstance(self.engine.layer.link, Affine):
            return (mine, math.inf)  # no link says a soft-cap at a temperature: all classes will be looked at
        found = self.tempered(temperature).lse(self.hidden, eps=eps, **self.limits)
        middle, error = float(found.lse[0]), float(found.error[0])
        return (float(np.logaddexp(mine, middle - error)), float(np.logaddexp(mine, middle + error)))

    def entropy(self, temperature: float, eps: float) -> tuple[float, float]:
        """Both ends of the entropy at this temperature."""
        scaled = self.scores / temperature
        middle, error = 0.0, 0.0
        if self.others:
            if temperature != 1 and not isinstance(self.engine.layer.link, Affine):
                return (0.0, math.log(self.others + len(scaled)))
            engine = self.tempered(temperature)
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

    def tempered(self, temperature: float) -> Any:
        return self.engine if temperature == 1 else self.engine.at_temperature(temperature)
