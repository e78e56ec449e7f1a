"""What reads a layer of several parts, for the verbs of every engine.

::

    log p = logits - lse             trees and bands: lse = 0 (but for rounding), logits are log-probabilities

An engine of a kind gives every class (:meth:`_everything`), and in ways of its own what it finds sooner: its best ``k``
(:meth:`_best`), given classes (:meth:`_score`), draws without filters (:meth:`_draw`). Here masks and filters are applied. A
mask that leaves few classes costs those classes; any other costs the whole distribution, as does a temperature or a nucleus
that an engine cannot walk. With ``HEADLONG_ISA=numpy`` a kind whose search is native alone sorts every class.
"""

from __future__ import annotations

import dataclasses
import math
import os
from abc import ABC, abstractmethod
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from headlong import native
from headlong.answers import Answer, Cost
from headlong.dtypes import UNIT, Doubles, Flags, Ids
from headlong.engines.contract import Verbs
from headlong.engines.draws import from_kept
from headlong.engines.few_allowed_classes import ListedClasses, answered, by_classes_left, in_rows, listed, of_rows
from headlong.engines.method import PLAIN, Running
from headlong.engines.structured.saved import SavedLayer, write_structured
from headlong.errors import InputError
from headlong.layers.structured import StructuredLayer
from headlong.promise import Promise
from headlong.question import Filters, Question

NEAR = 0.01
"""Within which the normaliser is asked for with the first classes of a nucleus."""


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """None."""


class Scored(NamedTuple):
    """``logits [batch, m]``, the normaliser of all classes ``lse [batch]``, and how far each of the two may be off; where that
    is not all that there is to prove, which rows are proved."""

    logits: Doubles
    lse: Doubles
    logit_error: Doubles
    lse_error: Doubles
    cost: Cost
    proved: Flags | None = None


class StructuredEngine(Verbs, ABC):
    """Reads one structured layer. Made by ``headlong.compile`` and ``headlong.load``; safe to use from many threads."""

    layer: StructuredLayer
    kind: ClassVar[str]
    Options: ClassVar[type[Any]] = NoOptions
    """A frozen dataclass: the options and their defaults."""
    draws_tempered: ClassVar[bool] = False
    """Whether :meth:`_draw` knows temperatures other than 1."""

    def __init__(self, layer: StructuredLayer, options: Any, promise: Promise, running: Running = PLAIN) -> None:
        self.layer, self._options, self._running = layer, options, running
        self.promise = Promise(promise.eps, 0.0)  # every kind proves
        self.name, self.seed, self.reason = self.kind, running.seed, running.reason
        self.isa = native.isa()

    @property
    def options(self) -> dict[str, Any]:
        """The options of the layer's kind, by name, as compiled: those that were given, and the others' defaults."""
        found: dict[str, Any] = dataclasses.asdict(self._options)
        return found

    @abstractmethod
    def _everything(self, hidden: Doubles) -> Scored:
        """Every class in the order of its id, to float64's rounding; of a row the same in any batch."""

    def _best(self, hidden: Doubles, k: int, eps: float) -> Answer:
        """The ``k`` likeliest classes of all."""
        return self._by_every_class(hidden, Question("best", k, eps=eps))

    def _score(self, hidden: Doubles, ids: Ids, eps: float) -> Scored:
        """``ids [batch, m]``, each in range; ``eps`` inf: the normaliser is not needed."""
        every = self._everything(hidden)
        return every._replace(logits=np.take_along_axis(every.logits, ids, axis=1))

    def _draw(self, hidden: Doubles, filters: Filters) -> Answer:
        """``filters.n`` draws: no filter is on, and the temperature is 1 unless ``draws_tempered``."""
        return self._by_every_class(hidden, Question("draw", filters=filters))

    def _normalise(self, hidden: Doubles, eps: float) -> Scored:
        """The normaliser of all classes; ``logits`` are empty."""
        return self._score(hidden, np.zeros((len(hidden), 0), np.int64), eps)

    def ask(self, hidden: Doubles, question: Question) -> Answer:
        if question.verb == "given":
            return self._given(hidden, question)
        return by_classes_left(hidden, question, self.layer.vocab, self._by_scores, self._of_all)

    def _given(self, hidden: Doubles, question: Question) -> Answer:
        """A class that the layer gives no probability has -inf."""
        assert question.ids is not None
        scored = self._score(hidden, question.ids, math.inf if question.eps is None else question.eps)
        log_probs, error = scored.logits - scored.lse[:, None], scored.logit_error + scored.lse_error
        return Answer(logits=scored.logits, log_probs=log_probs, lse=scored.lse, error=error).at(scored.cost)

    def _of_all(self, hidden: Doubles, question: Question) -> Answer:
        filters, eps = question.filters, math.inf if question.eps is None else question.eps
        if question.mask is not None:
            return self._by_every_class(hidden, question)
        if question.verb == "best":
            return self._best(hidden, question.k, eps)
        if filters is None:
            if question.temperature != 1:
                return self.normaliser_of_every_class(hidden, question)
            scored = self._normalise(hidden, eps)
            return Answer(lse=scored.lse, error=scored.lse_error).at(scored.cost)
        plain, few = filters.sieve.keeps_all, 0 < filters.top_k <= self.layer.vocab // 4
        if plain and (filters.temperature == 1 or self.draws_tempered):
            return self._draw(hidden, filters)
        if few or (not plain and not filters.top_k and filters.temperature == 1):
            return from_kept(self, hidden, None, filters, NEAR)
        return self._by_every_class(hidden, question)

    def _cost(self, rows: Ids, read: Doubles, dense: Flags) -> Cost:
        return Cost(rows, read, dense, f"{self.kind}/{self.isa}")

    def _by_scores(self, hidden: Doubles, question: Question) -> Answer:
        """The classes that a mask leaves, which are few."""
        assert question.mask is not None
        if question.temperature != 1:
            return self.normaliser_of_every_class(hidden, question)
        ids = listed(question.mask, len(hidden))
        found = self._among(ids, self._score(hidden, np.maximum(ids, 0), self.exact_at), question)
        return found._replace(path=f"rows/{self.isa}")

    def _by_every_class(self, hidden: Doubles, question: Question) -> Answer:
        """Row by row: all classes of one are held at once."""
        if question.temperature != 1:
            return self.normaliser_of_every_class(hidden, question)
        parts = []
        for row in range(max(1, len(hidden))):
            one = hidden[row : row + 1]
            own = of_rows(question, np.array([row])) if len(hidden) else question
            scored = self._everything(one)
            ids = np.broadcast_to(np.arange(self.layer.vocab), scored.logits.shape)
            ids = ids if own.mask is None else np.where(own.mask == 1, ids, -1)
            parts.append(self._among(ids, scored, own, row))
        return in_rows(parts, np.arange(len(hidden)))

    def _among(self, ids: Ids, scored: Scored, question: Question, row: int = 0) -> Answer:
        """From the scores of all classes that are left, ``ids [batch, m]``; ``row``  that of the first in the call."""
        ids = np.where(np.isneginf(scored.logits), -1, ids)  # a class of no probability is not there
        logits = np.where(ids < 0, -np.inf, scored.logits)
        classes = ListedClasses(ids, logits, logits)
        if question.filters is not None and len(ids) and not (there := (classes.ids >= 0).any(axis=1)).all():
            row += int(np.argmin(there))
            raise InputError(f"no class of positive probability is left to sample in row {row:,}; allow others")

        def rounding(lse: Doubles) -> Doubles:
            size = np.abs(np.where(np.isfinite(lse), lse, 0.0))
            return np.asarray(scored.logit_error + ((classes.ids >= 0).sum(axis=1) + 16 + 8 * size) * UNIT)

        found = answered(question, classes, rounding, scored.cost, scored.logit_error)
        if scored.proved is None or question.verb == "normaliser":
            return found
        return found._replace(proved=found.proved & scored.proved.reshape(-1, *[1] * (found.proved.ndim - 1)))

    def save(self, path: str | os.PathLike[str], layer: bool = True) -> None:
        """Write the engine to one safetensors file; ``layer=False`` leaves the layer out, and ``load`` asks for it."""
        kept = SavedLayer(self.layer, self.kind, self.options, self.promise, self.seed, self.reason)
        write_structured(path, kept, layer)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as layer and options, from which the rest is derived; a copy, deep or not, shares the layer."""
        return partial(type(self), self.layer, self._options, self.promise, self._running), ()

    def __repr__(self) -> str:
        layer = self.layer
        return (
            f"Engine({self.kind}: vocab={layer.vocab}, dim={layer.dim}, {self._storage()}, {self.promise}, kernel {self.isa})"
        )

    def _storage(self) -> str:
        """What the engine holds, in a few words."""
        return f"{sum(array.nbytes for array in self.layer.tensors().values()) / 2**20:.1f} MiB"

    @property
    def _count(self) -> int:
        return native.threads(self._running.threads)


ENGINES: dict[str, type[StructuredEngine]] = {}
"""The engine of every kind of structured layer; the contract's tests run over all of them."""

Registered = TypeVar("Registered", bound=type[StructuredEngine])


def register_engine(engine: Registered) -> Registered:
    ENGINES[engine.kind] = engine
    return engine
