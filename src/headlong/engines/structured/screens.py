"""Reads a layer behind a screen: the best clusters' classes exactly, the rest not at all.

::

    top-k, lse, samples   of the candidates alone          log_prob   exact logits of any class, over the candidates' lse

What a screen leaves out is not bounded, so nothing is proved: ``proved`` is always off, ``error`` is infinite, and the
promise is none, or the rate of incomplete top k that was measured on held-out vectors. The
candidates' normaliser is a lower end of the layer's. With a mask the answer is exact: those classes are read as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from headlong.engines.arguments import Asked
from headlong.engines.build import reading
from headlong.engines.few_allowed_classes import ListedClasses, lse_of, sample_of, topk_of
from headlong.engines.methods.full import Full
from headlong.engines.sampling_filters import Filters
from headlong.engines.structured.answers import Best, Drawn, Ids, Scored, Spent
from headlong.engines.structured.base import StructuredEngine, register_engine
from headlong.errors import OptionError, named
from headlong.layers.screens import ScreenLayer
from headlong.layers.structured import StructuredLayer
from headlong.native import Doubles
from headlong.promise import Promise

AT_ONCE = 1 << 22
"""Candidate logits of one piece of a batch."""


@dataclass(frozen=True)
class ScreensOptions:
    """``probes``: clusters that a query reads; None: as many as the layer says. Others void what was calibrated."""

    probes: int | None = None


@register_engine
class ScreensEngine(StructuredEngine):
    """Exact rows behind a screen; promises what was measured, if anything."""

    kind: ClassVar[str] = "screens"
    Options: ClassVar[type[Any]] = ScreensOptions
    draws_tempered: ClassVar[bool] = True

    def __init__(self, layer: StructuredLayer, options: Any, promise: Promise, **about: Any) -> None:
        super().__init__(layer, options, promise, **about)
        if not isinstance(layer, ScreenLayer):
            raise OptionError(f"layer is {named(layer)}; the screens engine reads a ScreenLayer")
        self.probes = layer.probes if options.probes is None else options.probes
        if type(self.probes) is not int or not 1 <= self.probes <= layer.clusters:
            raise OptionError(f"probes={self.probes!r}; expected 1 to the {layer.clusters} clusters")
        self.promise = Promise(math.inf, 1.0, 1.0)
        if layer.missed is not None and self.probes == layer.probes:
            self.promise = Promise(math.inf, layer.missed[1], layer.missed[1])
        self._screen = layer
        self._rows = reading(layer.rows, Full(), Promise(math.inf, 0.0, 0.0), threads=self._threads, seed=self.seed)
        self._row_bytes = float(layer.dim * layer.rows.weight.itemsize)
        self._centroids = layer.centroids.astype(np.float64)

    def candidates(self, hidden: Doubles) -> Ids:
        """``[batch, m]``: the classes that each row reads, ascending, padded with -1."""
        screen = self._screen
        scores = hidden @ self._centroids[:, :-1].T + self._centroids[:, -1]
        if self.probes == screen.clusters:
            chosen = np.broadcast_to(np.arange(screen.clusters), scores.shape)
        elif self.probes == 1:
            chosen = scores.argmax(axis=1)[:, None]
        else:  # a sort keeps the smaller of equal scores, which a partition does not
            chosen = np.argsort(-scores, axis=1, kind="stable")[:, : self.probes]
        sets = [np.unique(np.concatenate([screen.ids[screen.part(one)] for one in row])) for row in chosen]
        ids = np.full((len(sets), max(map(len, sets), default=0)), -1, np.int64)
        for row, one in zip(ids, sets, strict=True):
            row[: len(one)] = one
        return ids

    def _read(self, hidden: Doubles) -> tuple[ListedClasses, Spent]:
        ids = self.candidates(hidden)
        logits = np.where(ids < 0, -np.inf, self._rows.executor.logits(hidden, np.maximum(ids, 0), self._count))
        return ListedClasses(ids, logits, logits), self._spent((ids >= 0).sum(axis=1))

    def _spent(self, rows: Ids) -> Spent:
        read = np.asarray(rows * self._row_bytes + float(self._screen.centroids.nbytes), np.float64)
        return Spent(rows.astype(np.int64), read, np.zeros(len(rows), bool))

    def _best(self, hidden: Doubles, k: int, eps: float) -> Best:
        answer, spent = self._read(hidden)
        logits, ids, _ = topk_of(answer, k)
        none = np.full(len(hidden), np.inf)
        return Best(logits, ids, np.zeros(len(hidden), bool), lse_of(answer.logits), np.zeros(len(hidden)), none, spent)

    def _score(self, hidden: Doubles, ids: Ids, eps: float) -> Scored:
        logits = self._rows.executor.logits(hidden, ids, self._count)
        answer, spent = self._read(hidden)
        count = ids.shape[1]
        spent = Spent(spent.rows + count, spent.bytes + count * self._row_bytes, spent.dense)
        return Scored(logits, lse_of(answer.logits), np.zeros(len(hidden)), np.full(len(hidden), np.inf), spent)

    def _everything(self, hidden: Doubles) -> Scored:
        every = np.ascontiguousarray(np.broadcast_to(np.arange(self.layer.vocab), (len(hidden), self.layer.vocab)))
        logits = self._rows.executor.logits(hidden, every, self._count)
        spent = self._spent(np.full(len(hidden), self.layer.vocab))._replace(dense=np.ones(len(hidden), bool))
        return Scored(logits, lse_of(logits), np.zeros(len(hidden)), np.zeros(len(hidden)), spent)

    def _present(self, call: Asked) -> Iterator[tuple[ListedClasses, Spent]]:
        """Without a mask the screen has its say in every draw, whatever temperature and filters."""
        if call.mask is not None:
            yield from super()._present(call)
        else:
            yield self._read(call.hidden)

    def _draw(self, hidden: Doubles, filters: Filters) -> Drawn:
        answer, spent = self._read(hidden)
        ids, logits, score = sample_of(answer, filters)
        return Drawn(ids, logits, score, np.zeros(ids.shape, bool), spent)
