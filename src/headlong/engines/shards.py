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

from headlong.answers import NOTHING, Answer
from headlong.arrays import Array
from headlong.dtypes import Doubles
from headlong.engines.base import Engine
from headlong.engines.merged import Merged
from headlong.engines.parts import Part
from headlong.promise import Promise
from headlong.question import Question

Said = tuple[Any, ...]
"""What was asked: arrays and plain values, which have to be the same wherever a shard is."""
Everyone = Callable[[Callable[[Part], tuple[Array, ...]], Said], list[tuple[Array, ...]]]
"""Asks every shard and returns the arrays of all, in the order of the classes."""


class ShardFacts(NamedTuple):
    """What all shards agree on: ``starts`` has the first class of each, and the number of classes at its end."""

    starts: tuple[int, ...]
    dim: int
    link: Any
    promise: Promise
    name: str
    options: dict[str, Any]
    longest: float

    @property
    def vocab(self) -> int:
        return self.starts[-1]


def here(engines: list[Engine]) -> Shards:
    """Shards that all live in this process, in the order of their classes."""
    starts = tuple(int(stop) for stop in np.cumsum([0, *(engine.layer.vocab for engine in engines)]))
    parts = [Part(engine, first=start) for engine, start in zip(engines, starts[:-1], strict=True)]
    longest = max(float(engine.norms.max()) for engine in engines)
    return Shards(lambda ask, said: [ask(part) for part in parts], facts(engines[0], starts, longest))


def facts(engine: Engine, starts: tuple[int, ...], longest: float) -> ShardFacts:
    """Those of any one of equally compiled shards; ``longest``: the norm of the longest row of all."""
    count, promise = len(starts) - 1, engine.promise
    whole = promise._replace(delta=min(1.0, promise.delta * count))
    return ShardFacts(starts, engine.layer.dim, engine.layer.link, whole, engine.name, engine.options, longest)


class Shards(Merged):
    """The verbs of every engine over all shards."""

    layer: ShardFacts

    def __init__(self, everyone: Everyone, facts: ShardFacts) -> None:
        self._exchange, self.facts, self.layer = everyone, facts, facts
        self.promise, self.name, self.seed = facts.promise, facts.name, 0
        self.reason = f"{len(facts.starts) - 1} shards, each compiled for its part"

    @property
    def options(self) -> dict[str, Any]:
        """Those of every shard: all are compiled alike."""
        return dict(self.facts.options)

    @property
    def _longest(self) -> float:
        return self.facts.longest

    def _everyone(self, hidden: Doubles, question: Question) -> list[Answer]:
        """Log-probabilities of a part say nothing of the whole, and are not sent."""
        said = hidden, *question
        found = self._exchange(lambda part: tuple(part.ask(hidden, question)._replace(log_probs=NOTHING)[:-1]), said)
        return [Answer.of(arrays) for arrays in found]

    def agree(self, question: Said) -> None:
        """An error where some process asks another question."""
        self._exchange(lambda part: (np.zeros(1),), question)

    def _fresh_seed(self) -> int:
        """A fresh one, the first shard's, for everyone."""
        drawn = self._exchange(lambda part: (np.array([secrets.randbits(64)], np.uint64),), ("seed",))
        return int(drawn[0][0][0])

    @property
    def _path(self) -> str:
        return f"{len(self.facts.starts) - 1} shards/{self.facts.name}"

    def __repr__(self) -> str:
        count = len(self.facts.starts) - 1
        return (
            f"Shards({self.facts.name}: {count} shards, vocab={self.facts.vocab}, dim={self.facts.dim}, {self.promise})"
        )
