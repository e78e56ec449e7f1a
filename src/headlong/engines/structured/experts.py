"""Reads an experts layer: one native call routes each query, reads its expert's rows and proves the answer.

::

    k, g = argmax and maximum of softmax(gate x)            float64; ``proved`` is off where rounding could change k
    top-k, lse of expert k at g x                           a scan of its rows, or an int8 cascade over them
    sample = argmax z / T + gumbel over its classes         one Gumbel per class of the whole layer

The answers are those of the layer's own distribution: classes that the expert lacks have probability 0, rows end early
with id -1 where it has fewer than k. With ``parts="cascade"`` each expert is read by int8 codes first; calibration vectors
choose what is read of the expert that the gate sends them to, searches over its blocks among it, for samples too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.answers import Sample
from headlong.arrays import Array, answer_as
from headlong.dtypes import UNIT
from headlong.engines.build import READERS, part
from headlong.engines.by_blocks import EDGE, FIRST_ASKED, BlockReader
from headlong.engines.few_allowed_classes import lse_of
from headlong.engines.sampling_filters import Filters
from headlong.engines.structured.answers import Best, Drawn, Ids, Scored, Spent
from headlong.engines.structured.base import StructuredEngine, register_engine
from headlong.engines.structured.experts_in_numpy import ExpertsReference
from headlong.errors import OptionError
from headlong.layers.experts import ExpertsLayer
from headlong.layers.structured import StructuredLayer
from headlong.native import Doubles
from headlong.promise import Promise

FEWEST = 64
"""Calibration vectors that the gate sends to an expert, from which on they choose its plan."""


@dataclass(frozen=True)
class ExpertsOptions:
    """``parts``: how each expert is read: "auto", "full" or "cascade"."""

    parts: str = "auto"

    def __post_init__(self) -> None:
        if self.parts not in READERS:
            raise OptionError(f"parts is {self.parts!r}; expected one of {', '.join(READERS)}")


class ExpertsReader(Protocol):
    """What answers for whole batches: native code, or :class:`ExpertsReference` in NumPy."""

    def topk(self, hidden: Doubles, k: int, eps: float, threads: int, delta: float, seed: int) -> tuple[Array, ...]:
        """``logits, ids [batch, k], lse, logit_error, lse_error, proved, rows, bytes, dense, expert [batch]``"""

    def logits(self, hidden: Doubles, ids: Ids) -> Doubles:
        """``[batch, m]``, -inf for a class that the expert lacks"""

    def everything(self, hidden: Doubles, vocab: int, threads: int) -> Doubles:
        """``[batch, vocab]``"""

    def sample(
        self, hidden: Doubles, n: int, temperature: float, seed: int, row0: int, threads: int
    ) -> tuple[Array, ...]:
        """``ids, logits, score, proved [batch, n], expert [batch]``"""

    def draw(
        self, hidden: Doubles, n: int, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, row0: int,
        threads: int,
    ) -> tuple[Array, ...]:  # fmt: skip
        """Under filters, too, by blocks where a query's expert has them: ``ids, logits, score, proved [batch, n], rows, bytes,
        done, expert [batch]``; under filters, ``done`` are those that blocks make"""


@register_engine
class ExpertsEngine(StructuredEngine):
    """An engine for each expert behind one gate; promises what they keep."""

    kind: ClassVar[str] = "experts"
    Options: ClassVar[type[Any]] = ExpertsOptions
    draws_tempered: ClassVar[bool] = True
    calibrates: ClassVar[bool] = True

    def __init__(
        self, layer: StructuredLayer, options: Any, promise: Promise, *, calibration: Doubles | None = None, **about: Any
    ) -> None:
        super().__init__(layer, options, promise, **about)
        assert isinstance(layer, ExpertsLayer)
        self.calibration = calibration
        vectors = [None] * layer.experts if calibration is None else routed(layer, calibration)
        self.parts = [
            part(layer.expert(number), options.parts, promise, threads=self._threads, seed=self.seed, vectors=mine)
            for number, mine in enumerate(vectors)
        ]
        kept = [engine.promise for engine in self.parts]
        self.promise = Promise(*(max(values) for values in zip(*kept, strict=True)))
        self._sizes = layer.sizes
        self._row_bytes = layer.width * layer.weight.itemsize
        self._gate_bytes = float(layer.gate.nbytes)
        readers = [engine.executor for engine in self.parts]
        searches = [search_of(reader) for reader in readers]
        self._by_blocks = any(isinstance(reader, BlockReader) for reader in readers)
        self._reader: ExpertsReader = (
            ExpertsReference(layer, readers)
            if self.isa == native.REFERENCE
            else native.experts(layer.gate, layer.ids, layer.starts, readers, searches, layer.constant, layer.scaled)
        )

    def route(self, hidden: Any) -> Ids:
        """The expert that reads each row, ``[batch]``."""
        call = self._asked(hidden)
        return np.asarray(self._reader.topk(call.hidden, 1, np.inf, self._count, 0.0, 0)[-1])

    def _best(self, hidden: Doubles, k: int, eps: float) -> Best:
        logits, ids, lse, logit_error, lse_error, proved, rows, read, dense, _ = self._reader.topk(
            hidden, k, eps, self._count, self.promise.delta, self.seed
        )
        return Best(logits, ids, proved, lse, logit_error, lse_error, Spent(rows, read, dense))

    def _score(self, hidden: Doubles, ids: Ids, eps: float) -> Scored:
        logits = self._reader.logits(hidden, ids)
        _, _, lse, logit_error, lse_error, _, rows, read, dense, _ = self._reader.topk(
            hidden, 0, eps, self._count, self.promise.delta, self.seed
        )
        count = np.isfinite(logits).sum(axis=1)
        if np.isinf(eps):
            lse_error = np.full(len(lse), np.inf)
        spent = Spent(rows + count, read + count * float(self._row_bytes), dense)
        return Scored(logits, lse, logit_error, lse_error, spent)

    def _everything(self, hidden: Doubles) -> Scored:
        logits = self._reader.everything(hidden, self.layer.vocab, self._count)
        _, _, _, error, _, _, _, _, _, expert = self._reader.topk(hidden, 0, np.inf, self._count, 0.0, 0)
        lse = lse_of(logits)
        return Scored(logits, lse, error, error + (self.layer.vocab + 16 + 8 * np.abs(lse)) * UNIT, self._spent(expert))

    def _sample(self, hidden: Any, filters: Filters, allowed: Any, exclude: Any) -> Sample:
        """By blocks where the query's expert draws so; other queries under filters as those of any layer of parts."""
        call = self._asked(hidden, allowed, exclude)
        if call.mask is not None or not self._by_blocks:
            return super()._sample(hidden, filters, allowed, exclude)
        rule = filters._replace(row0=filters.row0 % 2**64)[:-1]
        ids, logits, score, proved, rows, read, done, _ = self._reader.draw(call.hidden, *rule, self._count)
        dense = np.zeros(len(rows), bool)
        for left in stretches(~done):
            own = filters._replace(row0=(filters.row0 + left.start) % 2**64)
            other: Sample = super()._sample(call.hidden[left], own, None, None)
            ids[left], logits[left], score[left], proved[left] = other[:4]
            rows[left] += other.cost.rows
            read[left] += other.cost.bytes
            dense[left] = other.cost.dense
        return answer_as(Sample(ids, logits, score, proved, self._cost(Spent(rows, read, dense), call)), call.form)

    def _draw(self, hidden: Doubles, filters: Filters) -> Drawn:
        *drawn, expert = self._reader.sample(
            hidden, filters.n, filters.temperature, filters.seed, filters.row0, self._count
        )
        ids, logits, score, proved = drawn
        return Drawn(ids, logits, score, proved, self._spent(expert))

    def _spent(self, expert: Ids) -> Spent:
        """Every row of each query's expert."""
        rows = self._sizes[expert]
        read = np.asarray(rows * float(self._row_bytes) + self._gate_bytes, np.float64)
        return Spent(rows, read, np.zeros(len(rows), bool))


def routed(layer: ExpertsLayer, hidden: Doubles) -> list[Doubles | None]:
    """What each expert is asked for of these vectors, ``g x``; None where that is too little to choose a plan by."""
    x = np.concatenate([hidden, np.ones((len(hidden), 1))], axis=1) if layer.constant else hidden
    scores = x @ layer.gate.astype(np.float64).T
    expert, best = scores.argmax(axis=1), scores.max(axis=1, keepdims=True)
    asked = x / np.exp(scores - best).sum(axis=1, keepdims=True) if layer.scaled else x
    each = (np.ascontiguousarray(asked[expert == number]) for number in range(layer.experts))
    return [mine if len(mine) >= FEWEST else None for mine in each]


def stretches(flags: NDArray[np.bool_]) -> list[slice]:
    """Where runs of set flags are."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(np.int8)))
    return [slice(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def search_of(reader: Any) -> tuple[Any, ...] | None:
    """What native code asks an expert's blocks by; None where it has none."""
    if not isinstance(reader, BlockReader) or not reader.native:
        return None
    sizes = reader.batch, reader.most, reader.together
    return reader.search.capsule, *sizes, reader.least, EDGE, FIRST_ASKED, reader.samples, reader.affine
