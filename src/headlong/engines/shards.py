"""One layer whose classes are spread over several engines: every question merged with its proof.

::

    lse      = logaddexp over shards of lse_r                      error = max over shards of error_r
    top-k    = the k best of the union of the shards' k best       proved where every shard's are
    sample   = argmax over shards of the winning link(z) / T + gumbel, noise by global class id

Errors merge by their maximum, since the normaliser's slopes in the shards' normalisers are their shares of the mass, which
add up to one. A delta is the union of the shards', so each is compiled with its part. Where the engines are (here, or one
in every process of a group) is the business of ``everyone``; nothing here knows of processes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headlong.answers import Cost, LogProb, Lse, Sample, TopK
from headlong.arrays import Array, answer_as, ids64
from headlong.dtypes import Doubles, Ids
from headlong.engines.arguments import Asked, aimed, asked
from headlong.engines.base import Engine
from headlong.engines.class_masks import Marked, classes_of
from headlong.engines.merged import Merged, best_of, blank, columns, exact_logits, exactly_tied, log_probs_of, merged_lse
from headlong.engines.sampling_filters import Filters
from headlong.promise import Promise

Verb = Callable[[Engine, int], tuple[Array, ...]]
Question = tuple[Any, ...]
"""What a verb was asked: arrays and plain values, which have to be the same wherever a shard is."""
Everyone = Callable[[Verb, Question], list[tuple[Array, ...]]]
"""Runs a verb of ``(engine, first class)`` on every shard and returns the arrays of all, in the order of the classes."""


class ShardFacts(NamedTuple):
    """What all shards agree on: ``starts`` has the first class of each, and the number of classes at its end."""

    starts: tuple[int, ...]
    dim: int
    link: Any
    promise: Promise
    name: str
    options: dict[str, Any]

    @property
    def vocab(self) -> int:
        return self.starts[-1]


def here(engines: list[Engine]) -> Shards:
    """Shards that all live in this process, in the order of their classes."""
    starts = tuple(int(stop) for stop in np.cumsum([0, *(engine.layer.vocab for engine in engines)]))
    pairs = list(zip(engines, starts[:-1], strict=True))
    return Shards(lambda verb, question: [verb(*pair) for pair in pairs], facts(engines[0], starts))


def facts(engine: Engine, starts: tuple[int, ...]) -> ShardFacts:
    """Those of any one of equally compiled shards."""
    count, promise = len(starts) - 1, engine.promise
    whole = promise._replace(delta=min(1.0, promise.delta * count))
    return ShardFacts(starts, engine.layer.dim, engine.layer.link, whole, engine.name, engine.options)


class Shards(Merged):
    """The verbs of :class:`headlong.engines.base.Engine` over all shards."""

    def __init__(self, everyone: Everyone, facts: ShardFacts) -> None:
        self._everyone, self.facts = everyone, facts
        self.promise = facts.promise

    @property
    def layer(self) -> ShardFacts:
        """What is known of the whole layer: ``vocab``, ``dim``, ``link``."""
        return self.facts

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def options(self) -> dict[str, Any]:
        """Those of every shard: all are compiled alike."""
        return dict(self.facts.options)

    @property
    def reason(self) -> str:
        return f"{len(self.facts.starts) - 1} shards, each compiled for its part"

    def _topk(self, call: Asked, k: int, eps: float | None, about: Any = None) -> TopK:

        def best(engine: Engine, start: int) -> tuple[Array, ...]:
            top = engine.topk(call.hidden, min(k, engine.layer.vocab), eps=eps, **_share(call, engine, start))
            short = ((0, 0), (0, k - top.ids.shape[1]))
            ids = np.pad(np.where(top.ids < 0, -1, top.ids + start), short, constant_values=-1)
            logits, longest = np.pad(top.logits, short, constant_values=-np.inf), np.full(1, float(engine.norms.max()))
            return logits, ids, longest, top.lse, top.error, top.proved, *top.cost[:3]

        def exact(rows: Array, some: Ids) -> Doubles:
            def own(engine: Engine, start: int) -> tuple[Array, ...]:
                return (exact_logits(engine, call.hidden[rows], np.clip(some - start, 0, engine.layer.vocab - 1)),)

            owner = np.searchsorted(self.facts.starts, some, side="right") - 1
            (each,) = columns(self._everyone(own, ("exact", call.hidden[rows], some)))
            return np.asarray(np.take_along_axis(np.stack(each), owner[None], 0)[0])

        parts = self._everyone(best, ("topk", call.hidden, call.mask, k, eps, about))
        logits, ids = (np.concatenate(column, axis=1) for column in columns(parts)[:2])
        _, _, longest, lses, errors, proved, *cost = columns(parts)
        logits = exactly_tied(logits, ids, call.hidden, float(np.max(longest)), exact)
        logits, ids = best_of(logits, ids, k, self.facts.vocab)
        lse, error = merged_lse(lses, errors)
        log_probs = log_probs_of(logits, ids, lse, self.facts.link)
        return TopK(log_probs, ids, logits, lse, error, np.all(proved, axis=0), self._cost(cost))

    def _lse(self, call: Asked, eps: float | None, temperature: float | None, about: Any = None) -> Lse:

        def sums(engine: Engine, start: int) -> tuple[Array, ...]:
            reader = engine if temperature is None else engine.at_temperature(temperature)
            found = reader.lse(call.hidden, eps=eps, **_share(call, engine, start))
            return found.lse, found.error, *found.cost[:3]

        question = ("lse", call.hidden, call.mask, eps, temperature, about)
        lses, errors, *cost = columns(self._everyone(sums, question))
        return Lse(*merged_lse(lses, errors), self._cost(cost))

    def log_prob(
        self, hidden: Any, ids: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None
    ) -> LogProb:
        """The log-probabilities of global ``ids [batch, m]``: each row is read where it lies."""
        if allowed is not None or exclude is not None:
            return self._log_prob_among(hidden, ids, eps, allowed, exclude)
        call = asked(hidden, None, None, self.facts.dim, self.facts.vocab)
        chosen = ids64(ids, len(call.hidden), self.facts.vocab)
        eps = aimed(eps, self.promise, call.form)

        def given(engine: Engine, start: int) -> tuple[Array, ...]:
            inside = np.clip(chosen - start, 0, engine.layer.vocab - 1)
            found = engine.log_prob(call.hidden, inside, eps=eps)
            return found.logits, found.lse, found.error, *found.cost[:3]

        logits, lses, errors, *cost = columns(self._everyone(given, ("log_prob", call.hidden, chosen, eps)))
        owner = np.searchsorted(self.facts.starts, chosen, side="right") - 1
        mine = np.take_along_axis(np.stack(logits), owner[None], 0)[0]
        lse, error = merged_lse(lses, errors)
        answer = LogProb(self.facts.link(mine) - lse[:, None], mine, lse, error, self._cost(cost))
        return answer_as(answer, call.form)

    def _drawn(self, call: Asked, filters: Filters) -> Sample:
        """The best key of all shards; a shard in which a row has no class left offers none."""

        def keys(engine: Engine, start: int) -> tuple[Array, ...]:
            here = _rows_here(call, engine, start)
            ids, logits, score = blank(len(call.hidden), filters.n)
            proved, cost = np.ones(ids.shape, bool), [np.zeros(len(ids), kind) for kind in (np.int64, np.float64, np.bool_)]
            for row, limits in here:
                rule = filters._replace(row0=(filters.row0 + row.start) % 2**64, class0=start)
                drawn = engine.drawn(call.hidden[row], rule, **limits)
                ids[row], logits[row], score[row], proved[row] = drawn.ids + start, *drawn[1:4]
                for total, part in zip(cost, drawn.cost[:3], strict=True):
                    total[row] = part
            return ids, logits, score, proved, *cost

        question = ("sample", call.hidden, call.mask, filters)
        ids, logits, score, proved, *cost = columns(self._everyone(keys, question))
        best = np.argmax(np.stack(score), axis=0)[None]
        won, at, key = (np.take_along_axis(np.stack(part), best, 0)[0] for part in (ids, logits, score))
        return Sample(won, at, key, np.all(proved, axis=0), self._cost(cost))

    def agree(self, question: tuple[Any, ...]) -> None:
        """An error where some process asks another question."""
        self._everyone(lambda engine, start: (np.zeros(1),), question)

    def _fresh_seed(self) -> int:
        """A fresh one, the first shard's, for everyone."""
        drawn = self._everyone(lambda engine, start: (np.array([secrets.randbits(64)], np.uint64),), ("seed",))
        return int(drawn[0][0][0])

    @property
    def _path(self) -> str:
        return f"{len(self.facts.starts) - 1} shards/{self.facts.name}"

    def _cost(self, columns: list[tuple[Array, ...]]) -> Cost:
        rows, read, dense = columns
        return Cost(np.sum(rows, axis=0), np.sum(read, axis=0), np.any(dense, axis=0), self._path)

    def __repr__(self) -> str:
        count = len(self.facts.starts) - 1
        return (
            f"Shards({self.facts.name}: {count} shards, vocab={self.facts.vocab}, dim={self.facts.dim}, {self.promise})"
        )


def _share(call: Asked, engine: Engine, start: int) -> dict[str, Any]:
    """The part of the mask that falls on this shard."""
    if call.mask is None:
        return {}
    return {"allowed": Marked(np.ascontiguousarray(call.mask[:, start : start + engine.layer.vocab]))}


def _rows_here(call: Asked, engine: Engine, start: int) -> list[tuple[slice, dict[str, Any]]]:
    """All rows in one call where there is no mask; else one by one, those that have a class left in this shard."""
    if call.mask is None:
        return [(slice(0, len(call.hidden)), {})]
    mask = call.mask[:, start : start + engine.layer.vocab]
    lists = [classes_of(row) for row in mask]
    every = [(row, lists[row % len(lists)]) for row in range(len(call.hidden))]
    return [(slice(row, row + 1), {"allowed": ids}) for row, ids in every if len(ids)]
