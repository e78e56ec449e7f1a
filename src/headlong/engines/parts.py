"""One of several engines that answer as one: what its classes are called, and which of them a call may be answered with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from headlong.answers import Answer
from headlong.arrays import AT_ONCE, pieces
from headlong.dtypes import Doubles, Ids
from headlong.engines.base import Engine
from headlong.engines.class_masks import Marks
from headlong.engines.few_allowed_classes import listed_classes, sample_of
from headlong.question import Filters, Mask, Question


class Part(NamedTuple):
    """``engine``, whose classes have the ``names``, ascending, or the numbers from ``first`` on.

    ``own [vocab]``  1 where a class is still this engine's, None: all are
    """

    engine: Engine
    names: Ids | None = None
    first: int = 0
    own: Marks | None = None

    def ask(self, hidden: Doubles, question: Question) -> Answer:
        """By name; of its own classes alone, as far as the question's mask, which is by name, leaves them."""
        self.engine.check_weights()
        question = question._replace(mask=self._mask(question.mask))
        if question.verb == "best":
            return self._best(hidden, question)
        if question.verb == "given":
            return self._given(hidden, question)
        if question.verb == "draw":
            return self._draw(hidden, question)
        return self.engine.ask(hidden, question)

    def _mask(self, mask: Mask) -> Mask:
        if mask is None:
            return None if self.own is None else self.own[None]
        here = mask[:, self.first : self.first + self.engine.layer.vocab] if self.names is None else mask[:, self.names]
        return np.ascontiguousarray(here if self.own is None else here & self.own)

    def _best(self, hidden: Doubles, question: Question) -> Answer:
        """Padded to ``k``."""
        k = min(question.k, self.engine.layer.vocab)
        top, short = self.engine.ask(hidden, question._replace(k=k)), question.k - k
        ids = top.ids
        if self.first or self.names is not None:
            named: Ids = ids + self.first if self.names is None else self.names[ids]
            ids = np.where(ids < 0, -1, named)
        if not short:
            return top._replace(ids=ids)
        behind = ((0, 0), (0, short))
        logits, log_probs = (np.pad(part, behind, constant_values=-np.inf) for part in (top.logits, top.log_probs))
        return top._replace(ids=np.pad(ids, behind, constant_values=-1), logits=logits, log_probs=log_probs)

    def _given(self, hidden: Doubles, question: Question) -> Answer:
        """-inf for classes that are not here; the normaliser is that of the marked ones, where it is asked for."""
        ids = question.ids
        assert ids is not None
        if self.names is None:
            places = np.clip(ids - self.first, 0, self.engine.layer.vocab - 1)
            here = places + self.first == ids
        else:
            places = np.minimum(np.searchsorted(self.names, ids), len(self.names) - 1)
            here = self.names[places] == ids
        if self.own is not None:
            here &= self.own[places] != 0
        read, row_bytes = here.sum(axis=1), float(self.engine.layer.row_bytes)
        scored = self.engine.reader.ask(hidden, Question("given", ids=np.where(here, places, 0))).logits
        whole = Answer(logits=np.where(here, scored, -np.inf), rows=read, bytes=read * row_bytes)
        if question.eps == np.inf:
            nothing = np.full(len(read), np.nan)
            return whole._replace(lse=nothing, error=nothing + np.inf, full=np.zeros(len(read), bool))
        norm = self.engine.ask(hidden, Question("normaliser", eps=question.eps, mask=question.mask))
        return norm._replace(logits=whole.logits, rows=norm.rows + whole.rows, bytes=norm.bytes + whole.bytes)

    def _draw(self, hidden: Doubles, question: Question) -> Answer:
        """Keyed by name, filtered among this part: the best that it has, for rows of which it has any class."""
        assert question.filters is not None
        shape, batch = (len(hidden), question.filters.n), len(hidden)
        ids, logits, score = np.full(shape, -1, np.int64), np.full(shape, -np.inf), np.full(shape, -np.inf)
        whole = Answer(ids=ids, logits=logits, score=score, proved=np.ones(shape, bool), rows=np.zeros(batch, np.int64))
        whole = whole._replace(bytes=np.zeros(batch), full=np.zeros(batch, bool))
        for rows in self._runs(batch, question.mask):
            mask = question.mask
            mask = mask if mask is None or len(mask) == 1 else np.ascontiguousarray(mask[rows])
            row0 = (question.filters.row0 + rows.start) % 2**64
            found = self._drawn(hidden[rows], mask, question.filters._replace(row0=row0))
            for to, one in zip(whole[:-1], found[:-1], strict=True):
                if len(to):
                    to[rows] = one
        return whole

    def _runs(self, batch: int, mask: Mask) -> Iterator[slice]:
        """Queries to be drawn for together: one by one where some have no class here."""
        if mask is None or mask.any(axis=1).all():
            yield from pieces(batch, 0 if self.names is None else len(self.names), max(AT_ONCE, batch))
            return
        yield from (slice(row, row + 1) for row in range(batch) if mask[row % len(mask)].any())

    def _drawn(self, hidden: Doubles, mask: Mask, filters: Filters) -> Answer:
        if self.names is None:
            filters = filters._replace(class0=filters.class0 + self.first)
            drawn = self.engine.ask(hidden, Question("draw", filters=filters, mask=mask))
            return drawn._replace(ids=drawn.ids + self.first) if self.first else drawn
        places = np.ascontiguousarray(np.broadcast_to(np.arange(len(self.names)), (len(hidden), len(self.names))))
        logits = self.engine.reader.ask(hidden, Question("given", ids=places)).logits  # all added rows are scored
        names = np.broadcast_to(self.names, logits.shape)
        names = names if mask is None else np.where(mask, names, -1)  # one mask may be that of all queries
        layer, count = self.engine.layer, np.full(len(hidden), len(self.names))
        ids, z, score, *_ = sample_of(listed_classes(names, logits, layer.link), filters)
        whole = Answer(ids=ids, logits=z, score=score, proved=np.ones(ids.shape, bool), rows=count)
        return whole._replace(bytes=count * float(layer.row_bytes), full=np.zeros(len(hidden), bool), path=self.engine.name)
