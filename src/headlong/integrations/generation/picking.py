"""The next class of each row, from candidates.

::

    next = argmax over classes of f(z)                       greedy
    next = argmax over kept classes of f(z) / T + gumbel     sampling: temperature, then top-k, top-p, min-p

Rows that no processor edits are one call of the engine. Where some classes have other scores (a repetition penalty, a
bias), those and the engine's answers for all the others are merged: ``engines/edited_row.py``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from headlong.dtypes import Doubles, Ids
from headlong.engines.contract import Verbs
from headlong.engines.edited_row import EditedRow, Noise, exponents, limits_of, others
from headlong.errors import InputError
from headlong.integrations.generation.fast_head import Reading, Taking
from headlong.integrations.generation.processors import Edits, Outweighs, ProcessorRecipe, edited
from headlong.integrations.generation.surprisal_filters import kept_by_surprisal
from headlong.question import Sieve


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
    engine: Verbs, hidden: Tensor, recipe: ProcessorRecipe, input_ids: Tensor, seed: int | None, row0: int
) -> tuple[Ids, str]:
    def scores(ids: list[Ids]) -> list[Doubles]:
        return [exponents(engine, hidden[row : row + 1], part) for row, part in enumerate(ids)]

    edits = edited(recipe.edits, input_ids, engine.layer.vocab, scores, outweighing(engine, hidden))
    _check_some_left(edits.banned, engine.layer.vocab)
    if not any(map(len, edits.ids)) and recipe.surprisals is None:
        limits = limits_of(edits.banned, engine.layer.vocab)
        if seed is None:
            if edits.best is not None and (edits.best >= 0).all():
                return edits.best, f"{engine.name}, timestamps"
            top = engine.topk(hidden, k=1, eps=math.inf, **limits)
            return np.asarray(top.ids)[:, 0], top.cost.path
        places = row0 + np.arange(len(hidden))
        ties = "all" if "top_k" in recipe.filters else "ids"  # as transformers' top_k has them
        drawn = engine.sample(hidden, seed=seed, position=places, eps=math.inf, ties=ties, **recipe.filters, **limits)
        return np.asarray(drawn.ids)[:, 0], drawn.cost.path
    rows = [Row(engine, hidden[row : row + 1], edits, row, recipe) for row in range(len(hidden))]
    ids = [one.next(seed, row0 + row) for row, one in enumerate(rows)]
    return np.array(ids, np.int64), f"{engine.name}, edited"


def _check_some_left(banned: list[Ids], vocab: int) -> None:
    for row, ids in enumerate(banned):
        if len(ids) == vocab:
            raise InputError(f"the processors leave no token in row {row:,}; allow at least one (banned: all {vocab:,})")


AHEAD = 16
"""Best classes that mostly tell whether those above some id outweigh the best one below."""


def outweighing(engine: Verbs, hidden: Tensor) -> Outweighs:
    """``logsumexp(f(z)[first:]) > max(f(z)[:first])`` of what is not banned; all above are read where the best do not tell."""

    def outweighs(banned: list[Ids], first: int) -> tuple[list[bool], Ids]:
        vocab = engine.layer.vocab
        top = engine.topk(hidden, k=min(AHEAD, vocab), eps=math.inf, **limits_of(banned, vocab))
        exponents_of = engine.exponents(np.asarray(top.logits, np.float64))
        outweighed, best = list[bool](), np.full(len(banned), -1)
        for row, (ids, scores) in enumerate(zip(np.asarray(top.ids), exponents_of, strict=True)):
            above = ids >= first
            seen = np.logaddexp.reduce(scores[above], initial=-math.inf)
            unseen = math.log(max(1, vocab - first)) + scores[-1] if ids[-1] >= 0 else -math.inf
            more = bool(above[0] or seen > scores[0])
            if not more and np.logaddexp(seen, unseen) >= scores[0]:
                every = exponents(engine, hidden[row : row + 1], others(vocab, banned[row], first))
                more = bool(np.logaddexp.reduce(every, initial=-math.inf) > scores[0])
            if not more or above.any():
                best[row] = ids[above == more][0]
            outweighed.append(more)
        return outweighed, best

    return outweighs


class Row(EditedRow):
    """A row that processors have edited."""

    def __init__(self, engine: Verbs, hidden: Tensor, edits: Edits, row: int, recipe: ProcessorRecipe) -> None:
        super().__init__(engine, hidden, edits.ids[row], edits.scores[row], edits.banned[row])
        self.surprisals, filters = recipe.surprisals, recipe.filters
        top_k, top_p = filters.get("top_k", 0), filters.get("top_p", 1.0)
        self.sieve = Sieve(float(filters.get("temperature", 1.0)), top_k, top_p, filters.get("min_p", 0.0), all_ties=True)

    def next(self, seed: int | None, place: int) -> int:
        """The likeliest, the smaller id of two, or what is drawn of what passes the filters."""
        if seed is None:
            return int(self.best(1).ids[0])
        noise = Noise(seed, place, self.sieve.temperature)
        if self.surprisals is None:
            return self.draw(self.sieve, noise)
        return noise.won(kept_by_surprisal(self, self.sieve, self.surprisals))
