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

import math
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.answers import Cost, LogProb, Lse, Promise, Sample, TopK
from headlong.arrays import Array, answer_as, ids64
from headlong.engines.allowed import Filters
from headlong.engines.arguments import Asked, asked, checked_eps, checked_filters, checked_k
from headlong.engines.base import Engine
from headlong.engines.candidates import Best, Sieve, kept
from headlong.engines.contract import Bounded
from headlong.engines.masks import check_some_left, classes_of
from headlong.engines.reference.gumbel import gumbels
from headlong.engines.reference.query import UNIT
from headlong.errors import OptionError
from headlong.kernels import Doubles

Verb = Callable[[Engine, int], tuple[Array, ...]]
Question = tuple[Any, ...]
"""What a verb was asked: arrays and plain values, which have to be the same wherever a shard is."""
Everyone = Callable[[Verb, Question], list[tuple[Array, ...]]]
"""Runs a verb of ``(engine, first class)`` on every shard and returns the arrays of all, in the order of the classes."""
Ids = NDArray[np.int64]


class Facts(NamedTuple):
    """What all shards agree on: ``starts`` has the first class of each, and the number of classes at its end."""

    starts: tuple[int, ...]
    dim: int
    link: Any
    promise: Promise
    name: str

    @property
    def vocab(self) -> int:
        return self.starts[-1]


def here(engines: list[Engine]) -> Shards:
    """Shards that all live in this process, in the order of their classes."""
    starts = tuple(int(stop) for stop in np.cumsum([0, *(engine.layer.vocab for engine in engines)]))
    pairs = list(zip(engines, starts[:-1], strict=True))
    return Shards(lambda verb, question: [verb(*pair) for pair in pairs], facts(engines[0], starts))


def facts(engine: Engine, starts: tuple[int, ...]) -> Facts:
    """Those of any one of equally compiled shards."""
    count, promise = len(starts) - 1, engine.promise
    whole = promise._replace(delta=min(1.0, promise.delta * count), delta_ids=min(1.0, promise.delta_ids * count))
    return Facts(starts, engine.layer.dim, engine.layer.link, whole, engine.method.name)


class Shards(Bounded):
    """The verbs of :class:`headlong.engines.base.Engine` over all shards."""

    def __init__(self, everyone: Everyone, facts: Facts) -> None:
        self._everyone, self.facts = everyone, facts
        self.promise = facts.promise

    @property
    def layer(self) -> Facts:
        """What is known of the whole layer: ``vocab``, ``dim``, ``link``."""
        return self.facts

    @property
    def name(self) -> str:
        return self.facts.name

    @property
    def reason(self) -> str:
        return f"{len(self.facts.starts) - 1} shards, each compiled for its part"

    def topk(self, hidden: Any, k: int = 10, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> TopK:
        """The ``k`` likeliest classes of the whole layer."""
        call = asked(hidden, allowed, exclude, self.facts.dim, self.facts.vocab)
        return answer_as(self._topk(call, checked_k(k, self.facts.vocab), eps), call.kind)

    def _topk(self, call: Asked, k: int, eps: float | None, about: Any = None) -> TopK:
        eps = None if eps is None else checked_eps(eps)

        def best(engine: Engine, start: int) -> tuple[Array, ...]:
            top = engine.topk(call.hidden, min(k, engine.layer.vocab), eps=eps, **_share(call, engine, start))
            short = ((0, 0), (0, k - top.ids.shape[1]))
            ids = np.pad(np.where(top.ids < 0, -1, top.ids + start), short, constant_values=-1)
            return np.pad(top.logits, short, constant_values=-np.inf), ids, top.lse, top.error, top.proved, *top.cost[:3]

        parts = self._everyone(best, ("topk", call.hidden, call.mask, k, eps, about))
        logits, ids = (np.concatenate(column, axis=1) for column in _columns(parts)[:2])
        order = np.lexsort((np.where(ids < 0, self.facts.vocab, ids), -logits), axis=1)[:, :k]
        logits, ids = np.take_along_axis(logits, order, 1), np.take_along_axis(ids, order, 1)
        _, _, lses, errors, proved, *cost = _columns(parts)
        lse, error = merged_lse(lses, errors)
        exponents = np.where(ids < 0, -np.inf, self.facts.link(np.where(ids < 0, 0.0, logits)))
        log_probs = exponents - np.where(np.isfinite(lse), lse, 0.0)[:, None]
        return TopK(log_probs, ids, logits, lse, error, np.all(proved, axis=0), self._cost(cost))

    def lse(self, hidden: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> Lse:
        """The log-normaliser over all classes."""
        call = asked(hidden, allowed, exclude, self.facts.dim, self.facts.vocab)
        return answer_as(self._lse(call, eps, None), call.kind)

    def _lse(self, call: Asked, eps: float | None, temperature: float | None, about: Any = None) -> Lse:
        eps = None if eps is None else checked_eps(eps)

        def sums(engine: Engine, start: int) -> tuple[Array, ...]:
            reader = engine if temperature is None else engine.at_temperature(temperature)
            found = reader.lse(call.hidden, eps=eps, **_share(call, engine, start))
            return found.lse, found.error, *found.cost[:3]

        question = ("lse", call.hidden, call.mask, eps, temperature, about)
        lses, errors, *cost = _columns(self._everyone(sums, question))
        return Lse(*merged_lse(lses, errors), self._cost(cost))

    def log_prob(self, hidden: Any, ids: Any, *, eps: float | None = None) -> LogProb:
        """The log-probabilities of global ``ids [batch, m]``: each row is read where it lies."""
        call = asked(hidden, None, None, self.facts.dim, self.facts.vocab)
        chosen = ids64(ids, len(call.hidden), self.facts.vocab)

        def given(engine: Engine, start: int) -> tuple[Array, ...]:
            inside = np.clip(chosen - start, 0, engine.layer.vocab - 1)
            found = engine.log_prob(call.hidden, inside, eps=eps)
            return found.logits, found.lse, found.error, *found.cost[:3]

        logits, lses, errors, *cost = _columns(self._everyone(given, ("log_prob", call.hidden, chosen, eps)))
        owner = np.searchsorted(self.facts.starts, chosen, side="right") - 1
        mine = np.take_along_axis(np.stack(logits), owner[None], 0)[0]
        lse, error = merged_lse(lses, errors)
        answer = LogProb(self.facts.link(mine) - lse[:, None], mine, lse, error, self._cost(cost))
        return answer_as(answer, call.kind)

    def sample(
        self,
        hidden: Any,
        n: int = 1,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        row0: int = 0,
        *,
        class0: int = 0,
        allowed: Any = None,
        exclude: Any = None,
    ) -> Sample:
        """``n`` exact draws, the same as one engine over all classes would draw with this seed."""
        self._refuse_class0(class0)
        call = asked(hidden, allowed, exclude, self.facts.dim, self.facts.vocab)
        seed = self._agreed_seed() if seed is None else seed
        filters = checked_filters(n, temperature, top_k, top_p, min_p, seed, row0, self.facts.vocab)
        check_some_left(call.mask)
        sieve = Sieve(filters.temperature, filters.top_k, filters.top_p, filters.min_p)
        if sieve.keeps_all:
            return answer_as(self._drawn(call, filters), call.kind)
        return answer_as(self._sieved(call, filters, sieve), call.kind)

    def _drawn(self, call: Asked, filters: Filters) -> Sample:
        """The best key of all shards; a shard in which a row has no class left offers none."""

        def keys(engine: Engine, start: int) -> tuple[Array, ...]:
            here = _rows_here(call, engine, start)
            ids, logits, score = _blank(len(call.hidden), filters.n)
            proved, cost = np.ones(ids.shape, bool), [np.zeros(len(ids), kind) for kind in (np.int64, np.float64, np.bool_)]
            for row, limits in here:
                drawn = engine.sample(
                    call.hidden[row], filters.n, filters.temperature, seed=filters.seed,
                    row0=(filters.row0 + row.start) % 2**64, class0=start, **limits,
                )  # fmt: skip
                ids[row], logits[row], score[row], proved[row] = drawn.ids + start, *drawn[1:4]
                for total, part in zip(cost, drawn.cost[:3], strict=True):
                    total[row] = part
            return ids, logits, score, proved, *cost

        question = ("sample", call.hidden, call.mask, filters)
        ids, logits, score, proved, *cost = _columns(self._everyone(keys, question))
        best = np.argmax(np.stack(score), axis=0)[None]
        won, at, key = (np.take_along_axis(np.stack(part), best, 0)[0] for part in (ids, logits, score))
        return Sample(won, at, key, np.all(proved, axis=0), self._cost(cost))

    def _sieved(self, call: Asked, filters: Filters, sieve: Sieve) -> Sample:
        """The classes that pass first, then their keys: filters look at all classes together."""
        ids, logits, score = _blank(len(call.hidden), filters.n)
        cost = [np.zeros(len(ids), kind) for kind in (np.int64, np.float64, np.bool_)]
        for row in range(len(ids)):
            part = slice(row, row + 1)
            mask = None if call.mask is None else call.mask[part if len(call.mask) > 1 else slice(0, 1)]
            source = _Query(self, Asked("numpy", call.hidden[part], mask, False), cost, row, filters)
            found = kept(source, sieve)
            order = np.argsort(found.ids)
            classes, exponents = found.ids[order], found.scores[order] / sieve.temperature
            for draw in range(filters.n):
                keys = exponents + gumbels(filters.seed, (filters.row0 + row) % 2**64, draw, classes)
                ids[row, draw], score[row, draw] = classes[np.argmax(keys)], keys.max()
            logits[row] = [source.logits[int(one)] for one in ids[row]]
        proved = np.full(ids.shape, self.promise.delta_ids == 0)
        return Sample(ids, logits, score, proved, Cost(cost[0], cost[1], cost[2], self._path))

    def _agreed_seed(self) -> int:
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


class _Query:
    """One query as a :class:`headlong.engines.candidates.Source`; keeps the logits that it saw, and counts its cost."""

    def __init__(self, shards: Shards, call: Asked, cost: list[Array], row: int, about: Any) -> None:
        self.shards, self.call, self.cost, self.row, self.about = shards, call, cost, row, about
        self.logits: dict[int, float] = {}
        self.there = shards.facts.vocab if call.mask is None else int(call.mask.sum())

    def best(self, count: int) -> Best:
        count = min(count, self.there)
        top = self.shards._topk(self.call, count, math.inf, self.about)  # noqa: SLF001  # the same file
        self._count(top.cost)
        self.logits = dict(zip(top.ids[0].tolist(), top.logits[0].tolist(), strict=True))
        scores = np.asarray(self.shards.facts.link(top.logits[0]), np.float64)
        return Best(top.ids[0], scores, -math.inf if count == self.there else float(scores[-1]))

    def lse(self, temperature: float, eps: float) -> tuple[float, float]:
        try:
            found = self.shards._lse(self.call, eps, temperature, self.about)  # noqa: SLF001
        except OptionError:  # no link says this one at a temperature: all classes will be looked at
            return (-math.inf, math.inf)
        self._count(found.cost)
        middle, error = float(found.lse[0]), float(found.error[0])
        return (middle - error, middle + error)

    def _count(self, cost: Cost) -> None:
        self.cost[0][self.row] += cost.rows[0]
        self.cost[1][self.row] += cost.bytes[0]
        self.cost[2][self.row] |= cost.dense[0]


def merged_lse(lses: tuple[Doubles, ...], errors: tuple[Doubles, ...]) -> tuple[Doubles, Doubles]:
    """``log sum exp`` of the shards' normalisers, and the largest of their errors plus the sum's own rounding."""
    stacked = np.stack(lses)
    lse = np.asarray(np.logaddexp.reduce(stacked, axis=0))
    size = np.where(np.isfinite(lse), np.abs(lse), 0.0)
    return lse, np.asarray(np.max(np.stack(errors), axis=0) + 4 * len(stacked) * UNIT * (1 + size))


def _columns(parts: list[tuple[Array, ...]]) -> list[tuple[Array, ...]]:
    return list(zip(*parts, strict=True))


def _blank(batch: int, n: int) -> tuple[Ids, Doubles, Doubles]:
    return np.full((batch, n), -1, np.int64), np.full((batch, n), -np.inf), np.full((batch, n), -np.inf)


def _share(call: Asked, engine: Engine, start: int) -> dict[str, Any]:
    """The part of the mask that falls on this shard, as its own ids."""
    if call.mask is None:
        return {}
    mask = call.mask[:, start : start + engine.layer.vocab]
    rows = [classes_of(row) for row in mask]
    return {"allowed": rows[0] if len(rows) == 1 else rows}


def _rows_here(call: Asked, engine: Engine, start: int) -> list[tuple[slice, dict[str, Any]]]:
    """All rows in one call where there is no mask; else one by one, those that have a class left in this shard."""
    if call.mask is None:
        return [(slice(0, len(call.hidden)), {})]
    mask = call.mask[:, start : start + engine.layer.vocab]
    lists = [classes_of(row) for row in mask]
    every = [(row, lists[row % len(lists)]) for row in range(len(call.hidden))]
    return [(slice(row, row + 1), {"allowed": ids}) for row, ids in every if len(ids)]
