"""One of several engines that answer as one: what its classes are called, and which of them a call may be answered with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from headlong import native
from headlong.answers import Cost, Lse, Sample, TopK
from headlong.dtypes import Doubles, Ids
from headlong.engines.base import Engine
from headlong.engines.class_masks import Marked, Marks
from headlong.engines.few_allowed_classes import listed_classes, sample_of
from headlong.engines.sampling_filters import Filters

AT_ONCE = 1 << 22
"""Scores of added rows that are held at once."""
COMPARED = 1024
"""Classes of one query that an executor is asked to compare at once; it does so with up to 4,096 (csrc/executor/rows.cpp)."""


def logits_of(engine: Engine, hidden: Doubles, places: Ids) -> Doubles:
    """Of rows ``places [batch, m]``."""
    return engine.executor.logits(hidden, places, native.threads(engine.threads))


def exact_logits(engine: Engine, hidden: Doubles, places: Ids) -> Doubles:
    """Of rows ``places [batch, m]``, summed without rounding and rounded once: an executor does so where logits of one call are
    within rounding of each other, as those of two equal places are."""
    found = np.empty(places.shape)
    for start in range(0, places.shape[1], COMPARED):
        twice = np.repeat(places[:, start : start + COMPARED], 2, axis=1)
        found[:, start : start + COMPARED] = logits_of(engine, hidden, twice)[:, ::2]
    return found


class Part(NamedTuple):
    """``engine``, whose classes have the ``names``, ascending, or the numbers from ``first`` on.

    ``own [vocab]``  1 where a class is still this engine's, None: all are; ``marks``  those that may be answered
    """

    engine: Engine
    marks: Marked | None = None
    names: Ids | None = None
    first: int = 0
    own: Marks | None = None

    def topk(self, hidden: Doubles, k: int, eps: float | None) -> TopK:
        """By name, padded to ``k``."""
        top = self.engine.topk(hidden, min(k, self.engine.layer.vocab), eps=eps, allowed=self.marks)
        if self.first or self.names is not None:
            names = top.ids + self.first if self.names is None else self.names[top.ids]
            top = replace(top, ids=np.where(top.ids < 0, -1, names))
        short = k - top.ids.shape[1]
        if not short:
            return top
        ids, logits, log_probs = (
            np.pad(part, ((0, 0), (0, short)), constant_values=none)
            for part, none in ((top.ids, -1), (top.logits, -np.inf), (top.log_probs, -np.inf))
        )
        return replace(top, ids=ids, logits=logits, log_probs=log_probs)

    def lse(self, hidden: Doubles, eps: float | None, temperature: float | None) -> Lse:
        reader = self.engine if temperature is None else self.engine.at_temperature(temperature)
        return reader.lse(hidden, eps=eps, allowed=self.marks)

    def logits(self, hidden: Doubles, ids: Ids, of: Callable[[Engine, Doubles, Ids], Doubles] = logits_of) -> Doubles:
        """Of the classes ``ids [batch, m]``; -inf for those that are not here."""
        if self.names is None:
            places = np.clip(ids - self.first, 0, self.engine.layer.vocab - 1)
            here = places + self.first == ids
        else:
            places = np.minimum(np.searchsorted(self.names, ids), len(self.names) - 1)
            here = self.names[places] == ids
        if self.own is not None:
            here &= self.own[places] != 0
        return np.where(here, of(self.engine, hidden, np.where(here, places, 0)), -np.inf)

    def runs(self, batch: int) -> Iterator[slice]:
        """Queries to be drawn for together: one by one where some have no class here."""
        mask = None if self.marks is None else self.marks.mask
        if mask is None or mask.any(axis=1).all():
            step = batch if self.names is None else max(1, AT_ONCE // len(self.names))
            yield from (slice(row, min(row + step, batch)) for row in range(0, batch, max(1, step)))
            return
        yield from (slice(row, row + 1) for row in range(batch) if mask[row % len(mask)].any())

    def drawn(self, hidden: Doubles, rows: slice, filters: Filters) -> Sample:
        """Draws for the queries ``rows`` of the call, keyed by name, filtered among this part. Added rows are all scored."""
        mask = None if self.marks is None else self.marks.mask
        mask = mask if mask is None or len(mask) == 1 else np.ascontiguousarray(mask[rows])
        if self.names is None:
            allowed = None if mask is None else Marked(mask)
            drawn = self.engine.drawn(hidden, filters._replace(class0=filters.class0 + self.first), allowed)
            return replace(drawn, ids=drawn.ids + self.first) if self.first else drawn
        places = np.ascontiguousarray(np.broadcast_to(np.arange(len(self.names)), (len(hidden), len(self.names))))
        logits = logits_of(self.engine, hidden, places)
        names = np.broadcast_to(self.names, logits.shape)
        names = names if mask is None else np.where(mask, names, -1)  # one mask may be that of all queries
        layer, count = self.engine.layer, np.full(len(hidden), len(self.names))
        found = sample_of(listed_classes(names, logits, layer.link), filters)
        cost = Cost(count, count * float(layer.row_bytes), np.zeros(len(hidden), bool), self.engine.name)
        return Sample(*found, np.ones(found[0].shape, bool), cost)
