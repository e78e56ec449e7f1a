"""``generate`` from candidates: no ``[batch, vocab]`` scores, no sort, the same law.

::

    next = argmax over classes of f(z)                       greedy
    next = argmax over kept classes of f(z) / T + gumbel     sampling: temperature, then top-k, top-p, min-p

Rows that no processor edits are one call of the engine. Where some classes have other scores (a repetition penalty, a
bias), those are few and read exactly; the engine answers for all the others, and the two are merged: the winner, or as
many of the best as decide the filters. transformers' own loop does the rest, so caches, padding and stopping are its.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import LogitsProcessor
from transformers.generation.utils import GENERATION_MODES_MAPPING

from headlong import Affine
from headlong.engines.candidates import Best, Sieve, kept
from headlong.engines.reference.gumbel import gumbels
from headlong.errors import InputError
from headlong.integrations.processors import Edits, Ids, Recipe, edited, recipe
from headlong.integrations.transformers import CHANGED, FastHead

Doubles = NDArray[np.float64]


def headlong_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    headlong_seed: int | None = None,
    **model_kwargs: Any,
) -> Any:
    """For ``model.generate(..., custom_generate=headlong_generate)`` on a model that :func:`accelerate` has seen.

    ``headlong_seed``  the same seed gives the same noise to each (step, row, token); None: drawn from torch's generator
    Beams, returned scores and processors that need every score take the model's own path over the dense layer: counted in
    ``head.paths``, said once in a RuntimeWarning.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, FastHead):
        raise InputError("the model's output layer is not accelerated; call headlong's accelerate(model) first")
    mode = generation_config.get_generation_mode()
    method = getattr(type(model), str(GENERATION_MODES_MAPPING[mode]).removeprefix("transformers-community/"), None)
    if method is None:
        raise InputError(f"{mode.value} is not part of transformers any more; leave out custom_generate")
    asked: dict[str, Any] = {"stopping_criteria": stopping_criteria, "generation_config": generation_config, **model_kwargs}
    found = _answerable(head, method is type(model)._sample, logits_processor, generation_config)  # noqa: SLF001
    if isinstance(found, str):
        head.fall_back(found, 0)
        with head.dense(found):
            return method(model, input_ids, logits_processor=logits_processor, **asked)
    seed = int(torch.randint(2**63 - 1, (1,))) if headlong_seed is None else headlong_seed
    with head.taking() as taken:
        picker = Picker(head, taken, found, seed if generation_config.do_sample else None)
        greedy = copy.copy(generation_config)
        greedy.do_sample = False  # the loop takes the argmax of what the picker marked
        return method(model, input_ids, logits_processor=picker, **asked | {"generation_config": greedy})


def _answerable(head: FastHead, samples: bool, processors: Any, config: Any) -> Recipe | str:
    if not samples:
        return "a decoding method other than greedy and sampling"
    if config.return_dict_in_generate and (config.output_scores or config.output_logits):
        return "output_scores and output_logits"
    if head.stale:  # all rows are looked at: nothing looks again until the last token
        return CHANGED
    return recipe(processors, head.out_features)


class Picker(LogitsProcessor):  # type: ignore[misc]  # transformers ships no types that are read here
    """Stands where the processors stood: picks from candidates, and marks the pick in a blank vector."""

    def __init__(self, head: FastHead, taken: Any, recipe: Recipe, seed: int | None) -> None:
        self.head, self.taken, self.recipe, self.seed = head, taken, recipe, seed
        self.step = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        hidden = self.taken.hidden[:, -1].detach()
        ids, path = pick(self.head.engine, hidden, self.recipe, input_ids, self.seed, self.step * len(hidden))
        if (ids < 0).any():
            self.head.changed()
            raise InputError("the weights were written to while tokens were generated; restore and accelerate again")
        self.head.count(path, len(hidden))
        self.step += 1
        return scores.new_zeros(len(ids), self.head.out_features).scatter_(1, torch.from_numpy(ids)[:, None], 1.0)


def pick(engine: Any, hidden: Tensor, recipe: Recipe, input_ids: Tensor, seed: int | None, row0: int) -> tuple[Ids, str]:
    """The next class of each row, and the path that answered; ``seed`` None: the likeliest."""

    def scores(ids: list[Ids]) -> list[Doubles]:
        return [_exponents(engine, hidden[row : row + 1], part) for row, part in enumerate(ids)]

    edits = edited(recipe.edits, input_ids, engine.layer.vocab, scores)
    _check_some_left(edits.banned, engine.layer.vocab)
    if not any(map(len, edits.ids)):
        limits = _limits(edits.banned, engine.layer.vocab)
        if seed is None:
            top = engine.topk(hidden, k=1, eps=math.inf, **limits)
            return np.asarray(top.ids)[:, 0], top.cost.path
        drawn = engine.sample(hidden, seed=seed, row0=row0, **recipe.filters, **limits)
        return np.asarray(drawn.ids)[:, 0], drawn.cost.path
    rows = [Row(engine, hidden[row : row + 1], edits, row, recipe.filters) for row in range(len(hidden))]
    ids = [one.likeliest() if seed is None else one.draw(seed, row0 + row) for row, one in enumerate(rows)]
    return np.array(ids, np.int64), f"{engine.method.name}, edited"


def _check_some_left(banned: list[Ids], vocab: int) -> None:
    for row, ids in enumerate(banned):
        if len(ids) == vocab:
            raise InputError(f"the processors leave no token in row {row}; allow at least one (banned: all {vocab})")


def _limits(banned: list[Ids], vocab: int) -> dict[str, Any]:
    """``exclude=`` where few are ruled out, ``allowed=`` where few are left, nothing where all are there."""
    if not any(map(len, banned)):
        return {}
    if max(map(len, banned)) <= vocab // 2:
        return {"exclude": banned}
    everything = np.arange(vocab)
    return {"allowed": [np.setdiff1d(everything, row, assume_unique=True) for row in banned]}


def _exponents(engine: Any, hidden: Tensor, ids: Ids) -> Doubles:
    """``f(z)`` of ``ids``, in their order: their rows alone are read."""
    if not len(ids):
        return np.empty(0)
    top = engine.topk(hidden, k=len(ids), eps=math.inf, allowed=ids)
    order = np.argsort(np.asarray(top.ids)[0])
    return np.asarray(engine.layer.link(np.asarray(top.logits)[0][order]), np.float64)


class Row:
    """One row of which some classes have been edited: those, and an engine for the others."""

    def __init__(self, engine: Any, hidden: Tensor, edits: Edits, row: int, filters: dict[str, Any]) -> None:
        self.engine, self.hidden = engine, hidden
        self.ids, self.scores = edits.ids[row], edits.scores[row]
        out = np.union1d(edits.banned[row], self.ids)
        self.others = engine.layer.vocab - len(out)
        self.limits = _limits([out], engine.layer.vocab)
        self.sieve = Sieve(
            float(filters.get("temperature", 1.0)),
            filters.get("top_k", 0),
            filters.get("top_p", 1.0),
            filters.get("min_p", 0.0),
        )

    def likeliest(self) -> int:
        """The argmax, the smaller id of two."""
        return int(self.best(1).ids[0])

    def draw(self, seed: int, row: int) -> int:
        """``argmax f(z) / T + gumbel`` over the classes that pass the filters."""
        if self.sieve.keeps_all:
            return self._drawn_from_all(seed, row)
        found = kept(self, self.sieve)
        return int(found.ids[np.argmax(self._keys(found.ids, found.scores, seed, row))])

    def _keys(self, ids: Ids, scores: Doubles, seed: int, row: int) -> Doubles:
        return np.asarray(scores / self.sieve.temperature + gumbels(seed, row, 0, ids))

    def _drawn_from_all(self, seed: int, row: int) -> int:
        ids, keys = self.ids, self._keys(self.ids, self.scores, seed, row)
        if self.others:
            drawn = self.engine.sample(self.hidden, temperature=self.sieve.temperature, seed=seed, row0=row, **self.limits)
            ids, keys = np.append(ids, int(drawn.ids[0, 0])), np.append(keys, float(drawn.score[0, 0]))
        return int(ids[np.argmax(keys)])

    def best(self, count: int) -> Best:
        """The edited classes and the ``count`` best of the others."""
        count = min(count, self.others)
        ids, scores, least = self.ids, self.scores, -math.inf
        if count:
            top = self.engine.topk(self.hidden, k=count, eps=math.inf, **self.limits)
            others = np.asarray(self.engine.layer.link(np.asarray(top.logits)[0]), np.float64)
            ids, scores = np.concatenate([ids, np.asarray(top.ids)[0]]), np.concatenate([scores, others])
            least = -math.inf if count == self.others else float(others[-1])
        order = np.lexsort((ids, -scores))
        return Best(ids[order], scores[order], least)

    def lse(self, temperature: float, eps: float) -> tuple[float, float]:
        """Both ends of the log of all mass at this temperature."""
        mine = float(np.logaddexp.reduce(self.scores / temperature, initial=-math.inf))
        if not self.others:
            return (mine, mine)
        if not isinstance(self.engine.layer.link, Affine):
            return (mine, math.inf)  # no link says a soft-cap at a temperature: all classes will be looked at
        found = self.engine.at_temperature(temperature).lse(self.hidden, eps=eps, **self.limits)
        middle, error = float(found.lse[0]), float(found.error[0])
        return (float(np.logaddexp(mine, middle - error)), float(np.logaddexp(mine, middle + error)))
