"""The contract of every engine over a layer of several parts: the verbs of :class:`headlong.engines.base.Engine`.

::

    log p = logits - lse             trees and bands: lse = 0 (but for rounding), logits are log-probabilities

An engine of a kind gives four things for whole batches: its best ``k`` (:meth:`_best`), given classes
(:meth:`_score`), every class (:meth:`_everything`) and draws without filters (:meth:`_draw`). Here input is checked, masks and
filters are applied, and answers get their shape. A mask that leaves few classes costs those classes; any other costs
the whole distribution, as does a temperature or a nucleus that an engine cannot walk.
"""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from headlong import native
from headlong.answers import Cost, LogProb, Lse, Sample, TopK
from headlong.arrays import answer_as, ids64
from headlong.dtypes import Doubles, Ids
from headlong.engines.arguments import Asked, aimed, check_told, checked_k, told, untold
from headlong.engines.class_masks import check_some_left
from headlong.engines.contract import Bounded
from headlong.engines.draws import from_kept
from headlong.engines.few_allowed_classes import ListedClasses, listed
from headlong.engines.sampling_filters import Filters
from headlong.engines.structured.answers import Best, Drawn, Scored, Spent, best_of, drawn_of, joined, present
from headlong.engines.structured.saved import SavedLayer, write_structured
from headlong.errors import InputError
from headlong.layers.structured import StructuredLayer
from headlong.promise import Promise

NEAR = 0.01
"""Within which the normaliser is asked for with the first classes of a nucleus."""


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """None."""


class StructuredEngine(Bounded, ABC):
    """Reads one structured layer. Made by ``headlong.compile`` and ``headlong.load``; safe to use from many threads."""

    kind: ClassVar[str]
    Options: ClassVar[type[Any]] = NoOptions
    """A frozen dataclass: the options and their defaults."""
    draws_tempered: ClassVar[bool] = False
    """Whether :meth:`_draw` knows temperatures other than 1."""

    def __init__(
        self,
        layer: StructuredLayer,
        options: Any,
        promise: Promise,
        *,
        threads: int | None = None,
        seed: int = 0,
        reason: str = "asked for",
    ) -> None:
        self.layer, self._options, self.promise, self.seed, self.reason = layer, options, promise, seed, reason
        self._threads = threads
        self.isa = native.isa()

    @property
    def name(self) -> str:
        """How the layer is read, in one word: its kind."""
        return self.kind

    @property
    def options(self) -> dict[str, Any]:
        """The options of the layer's kind, by name, as compiled: those that were given, and the others' defaults."""
        found: dict[str, Any] = dataclasses.asdict(self._options)
        return found

    @abstractmethod
    def _best(self, hidden: Doubles, k: int, eps: float) -> Best:
        """The ``k`` likeliest classes of all."""

    @abstractmethod
    def _score(self, hidden: Doubles, ids: Ids, eps: float) -> Scored:
        """``ids [batch, m]``, each in range; ``eps`` inf: the normaliser is not needed."""

    @abstractmethod
    def _everything(self, hidden: Doubles) -> Scored:
        """Every class in the order of its id, to float64's rounding."""

    @abstractmethod
    def _draw(self, hidden: Doubles, filters: Filters) -> Drawn:
        """``filters.n`` draws: no filter is on, and the temperature is 1 unless ``draws_tempered``."""

    def _normalise(self, hidden: Doubles, eps: float) -> Scored:
        """The normaliser of all classes; ``logits`` are empty."""
        return self._score(hidden, np.zeros((len(hidden), 0), np.int64), eps)

    def topk(self, hidden: Any, k: int = 10, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> TopK:
        """The ``k`` likeliest classes of each row of ``hidden [batch, dim]``: as :meth:`headlong.engines.base.Engine.topk`."""
        asked, k = self._asked(hidden, allowed, exclude), checked_k(k, self.layer.vocab)

        def answer(call: Asked, _: int) -> TopK:
            if call.mask is None:
                best = self._best(call.hidden, k, aimed(eps, self.promise, call.form))
            else:
                best = joined([best_of(*part, k) for part in self._restricted(call)], Best)
            shift = np.where(np.isfinite(best.lse), best.lse, 0.0)[:, None]
            error, cost = best.logit_error + best.lse_error, self._cost(best.spent, call)
            return TopK(best.logits - shift, best.ids, best.logits, best.lse, error, best.proved, cost)

        found = asked.each(answer)
        return answer_as(found if told(eps, self.promise) else untold(found), asked.form)

    def log_prob(
        self, hidden: Any, ids: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None
    ) -> LogProb:
        """The log-probabilities of ``ids [batch, m]``; -inf for a class that the layer gives no probability."""
        if allowed is not None or exclude is not None:
            return self._log_prob_among(hidden, ids, eps, allowed, exclude)
        if eps is None:
            check_told("log_prob", None, self.promise)
        call = self._asked(hidden)
        scored = self._score(call.hidden, ids64(ids, len(call.hidden), self.layer.vocab), aimed(eps, self.promise, call.form))
        log_probs, error = scored.logits - scored.lse[:, None], scored.logit_error + scored.lse_error
        found = LogProb(log_probs, scored.logits, scored.lse, error, self._cost(scored.spent, call))
        return answer_as(found if told(eps, self.promise) else untold(found), call.form)

    def lse(self, hidden: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> Lse:
        """The log-normaliser of each row, over the classes that are there."""
        check_told("lse", eps, self.promise)
        asked = self._asked(hidden, allowed, exclude)

        def answer(call: Asked, _: int) -> Lse:
            if call.mask is None:
                scored = self._normalise(call.hidden, aimed(eps, self.promise, call.form))
                return Lse(scored.lse, scored.lse_error, self._cost(scored.spent, call))
            best = joined([best_of(*part, 1) for part in self._restricted(call)], Best)
            return Lse(best.lse, best.lse_error, self._cost(best.spent, call))

        return answer_as(asked.each(answer), asked.form)

    def _sample(self, hidden: Any, filters: Filters, allowed: Any, exclude: Any) -> Sample:
        asked = self._asked(hidden, allowed, exclude)
        check_some_left(asked.mask)
        plain, few = filters.sieve.keeps_all, 0 < filters.top_k <= self.layer.vocab // 4

        def answer(call: Asked, first: int) -> Sample:
            if call.mask is None and plain and (filters.temperature == 1 or self.draws_tempered):
                drawn = self._draw(call.hidden, filters)
            elif call.mask is None and (few or (not plain and not filters.top_k and filters.temperature == 1)):
                return from_kept(self, call.hidden, None, filters, NEAR)
            else:
                drawn = self._drawn_densely(call, filters._replace(row0=(filters.row0 + first) % 2**64))
            ids, logits, score, proved, spent = drawn
            return Sample(ids, logits, score, proved, self._cost(spent, call))

        return answer_as(asked.each(answer, in_order=True), asked.form)

    def save(self, path: str | os.PathLike[str], layer: bool = True) -> None:
        """Write the engine to one safetensors file; ``layer=False`` leaves the layer out, and ``load`` asks for it."""
        kept = SavedLayer(self.layer, self.kind, self.options, self.promise, self.seed, self.reason)
        write_structured(path, kept, layer)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as layer and options, from which the rest is derived; a copy, deep or not, shares the layer."""
        parts = self.layer, self._options, self.promise
        return partial(type(self), *parts, threads=self._threads, seed=self.seed, reason=self.reason), ()

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
        return native.threads(self._threads)

    def _cost(self, spent: Spent, call: Asked) -> Cost:
        path = "rows" if call.few_classes else self.kind
        return Cost(spent.rows, spent.bytes, spent.dense, f"{path}/{self.isa}")

    def _restricted(self, call: Asked) -> Iterator[tuple[ListedClasses, Scored]]:
        """The classes that the mask leaves; row by row where all are looked at, for a product's sums go by its batch."""
        assert call.mask is not None
        if call.few_classes:
            ids = listed(call.mask, len(call.hidden))
            scored = self._score(call.hidden, np.maximum(ids, 0), self.exact_at)
            yield present(ids, scored.logits), scored
            return
        for row in range(max(1, len(call.hidden))):
            part = slice(row, row + 1)
            scored = self._everything(call.hidden[part])
            mask = call.mask if len(call.mask) == 1 else call.mask[part]
            ids = np.broadcast_to(np.arange(self.layer.vocab), scored.logits.shape)
            yield present(np.where(mask == 1, ids, -1), scored.logits), scored

    def _drawn_densely(self, call: Asked, filters: Filters) -> Drawn:
        parts, row = [], filters.row0
        whole = np.ones((1, self.layer.vocab), np.uint8)
        for answer, scored in self._restricted(call if call.mask is not None else call._replace(mask=whole)):
            if len(answer.ids) and not (answer.ids >= 0).any(axis=1).all():
                row = row - filters.row0 + int(np.argmin((answer.ids >= 0).any(axis=1)))
                raise InputError(f"no class of positive probability is left to sample in row {row}; allow others")
            parts.append(drawn_of(answer, scored.spent, filters._replace(row0=row % 2**64)))
            row += len(answer.ids)
        return joined(parts, Drawn)


ENGINES: dict[str, type[StructuredEngine]] = {}
"""The engine of every kind of structured layer; the contract's tests run over all of them."""

Registered = TypeVar("Registered", bound=type[StructuredEngine])


def register_engine(engine: Registered) -> Registered:
    ENGINES[engine.kind] = engine
    return engine
