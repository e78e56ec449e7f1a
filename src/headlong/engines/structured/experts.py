"""Reads an experts layer: one native call routes each query, reads its expert's rows and proves the answer.

::

    k, g = argmax and maximum of softmax(gate x)            float64; ``proved`` is off where rounding could change k
    top-k, lse of expert k at g x                           a full scan of its rows
    sample = argmax z / T + gumbel over its classes         one Gumbel per class of the whole layer

The answers are those of the layer's own distribution: classes that the expert lacks have probability 0, rows end early
with id -1 where it has fewer than k.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from headlong import native
from headlong.answers import Answer, Cost
from headlong.dtypes import UNIT, Doubles, Flags, Ids
from headlong.engines.build import reading
from headlong.engines.few_allowed_classes import lse_of
from headlong.engines.full import Full
from headlong.engines.method import PLAIN, Running
from headlong.engines.structured.base import Scored, StructuredEngine, register_engine
from headlong.engines.structured.experts_in_numpy import chosen, every_logit
from headlong.layers.experts import ExpertsLayer
from headlong.layers.structured import StructuredLayer
from headlong.native import DrawsOfExpert, FoundOfExpert
from headlong.promise import Promise
from headlong.question import Filters


class Routed(NamedTuple):
    """``[batch]`` each: a query's expert, how far its logits may be off, and whether the gate is sure of it."""

    expert: Ids
    error: Doubles
    sure: Flags


@register_engine
class ExpertsEngine(StructuredEngine):
    """An engine for each expert behind one gate; promises what they keep."""

    kind: ClassVar[str] = "experts"
    draws_tempered: ClassVar[bool] = True

    def __init__(self, layer: StructuredLayer, options: Any, promise: Promise, running: Running = PLAIN) -> None:
        super().__init__(layer, options, promise, running)
        assert isinstance(layer, ExpertsLayer)
        self.parts = [
            reading(layer.expert(number), Full(), promise, running=running)
            for number in range(layer.experts)
        ]
        self._sizes = layer.sizes
        self._row_bytes = layer.width * layer.weight.itemsize
        self._gate_bytes = float(layer.gate.nbytes)
        readers: list[Any] = [engine.reader for engine in self.parts]
        self._experts = layer
        self._reader: Any = None  # native alone
        if self.isa != native.REFERENCE:
            self._reader = native.experts(layer.gate, layer.ids, layer.starts, readers, layer.constant, layer.scaled)

    def route(self, hidden: Any) -> Ids:
        """The expert that reads each row, ``[batch]``."""
        return self._routed(self._asked(hidden).hidden).expert

    def _routed(self, hidden: Doubles) -> Routed:
        if self._reader is not None:
            found: FoundOfExpert = self._reader.best(hidden, 0, np.inf, self._count)
            return Routed(found.expert, found.logit_error, found.proved)
        routes = [chosen(self._experts, row) for row in hidden]
        kinds = {"expert": np.int64, "error": np.float64, "sure": np.bool_}
        return Routed(*(np.array([getattr(one, name) for one in routes], kind) for name, kind in kinds.items()))

    def _best(self, hidden: Doubles, k: int, eps: float) -> Answer:
        if self._reader is None:
            return super()._best(hidden, k, eps)
        found: FoundOfExpert = self._reader.best(hidden, k, eps, self._count)
        log_probs = found.logits - np.where(np.isfinite(found.lse), found.lse, 0.0)[:, None]
        error = found.logit_error + found.lse_error
        whole = Answer(found.ids, found.logits, log_probs, found.lse, error, proved=found.proved)
        return whole.at(self._cost(found.rows, found.bytes, found.dense))

    def _score(self, hidden: Doubles, ids: Ids, eps: float) -> Scored:
        if self._reader is None:
            return super()._score(hidden, ids, eps)
        logits = self._reader.logits(hidden, ids)
        found: FoundOfExpert = self._reader.best(hidden, 0, eps, self._count)
        count = np.isfinite(logits).sum(axis=1)
        lse_error = np.full(len(hidden), np.inf) if np.isinf(eps) else found.lse_error
        cost = self._cost(found.rows + count, found.bytes + count * float(self._row_bytes), found.dense)
        return Scored(logits, found.lse, found.logit_error, lse_error, cost, found.proved)

    def _everything(self, hidden: Doubles) -> Scored:
        to = self._routed(hidden)
        if self._reader is None:
            logits = every_logit(self._experts, [chosen(self._experts, row) for row in hidden])
        else:
            logits = self._reader.everything(hidden, self.layer.vocab, self._count)
        lse = lse_of(logits)
        error = to.error + (self.layer.vocab + 16 + 8 * np.abs(lse)) * UNIT
        return Scored(logits, lse, to.error, error, self._spent(to.expert), to.sure)

    def _draw(self, hidden: Doubles, filters: Filters) -> Answer:
        if self._reader is None:
            return super()._draw(hidden, filters)
        n, temperature, *_, seed, row0, _, _ = filters
        drawn: DrawsOfExpert = self._reader.sample(hidden, n, temperature, seed, row0, self._count)
        found = Answer(drawn.ids, drawn.logits, score=drawn.score, proved=drawn.proved)
        return found.at(self._spent(drawn.expert))

    def _spent(self, expert: Ids) -> Cost:
        """Every row of each query's expert."""
        rows = self._sizes[expert]
        read = np.asarray(rows * float(self._row_bytes) + self._gate_bytes, np.float64)
        return self._cost(rows, read, np.zeros(len(rows), bool))
