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

from headlong.arrays import Array
from headlong.engines.arguments import Asked
from headlong.engines.base import Engine
from headlong.engines.class_masks import Marked
from headlong.engines.merged import Merged, Verb
from headlong.engines.parts import Part
from headlong.promise import Promise

Question = tuple[Any, ...]
"""What a verb was asked: arrays and plain values, which have to be the same wherever a shard is."""
Everyone = Callable[[Verb, Question], list[tuple[Array, ...]]]
"""Runs a verb on every shard and returns the arrays of all, in the order of the classes."""


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
    parts = [Part(engine, first=start) for engine, start in zip(engines, starts[:-1], strict=True)]
    return Shards(lambda verb, question: [verb(part) for part in parts], facts(engines[0], starts))


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

    def _ask(self, call: Asked, verb: Verb, *question: Any) -> list[tuple[Array, ...]]:

        def asked(part: Part) -> tuple[Array, ...]:
            """With what falls of the mask on this shard."""
            if call.mask is None:
                return verb(part)
            own = call.mask[:, part.first : part.first + part.engine.layer.vocab]
            return verb(part._replace(marks=Marked(np.ascontiguousarray(own))))

        return list(zip(*self._everyone(asked, question), strict=True))

    def agree(self, question: tuple[Any, ...]) -> None:
        """An error where some process asks another question."""
        self._everyone(lambda part: (np.zeros(1),), question)

    def _fresh_seed(self) -> int:
        """A fresh one, the first shard's, for everyone."""
        drawn = self._everyone(lambda part: (np.array([secrets.randbits(64)], np.uint64),), ("seed",))
        return int(drawn[0][0][0])

    @property
    def _path(self) -> str:
        return f"{len(self.facts.starts) - 1} shards/{self.facts.name}"

    def __repr__(self) -> str:
        count = len(self.facts.starts) - 1
        return (
            f"Shards({self.facts.name}: {count} shards, vocab={self.facts.vocab}, dim={self.facts.dim}, {self.promise})"
        )
