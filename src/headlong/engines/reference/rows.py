"""The NumPy reader of rows: one query at a time, every logit in float64.

    top-k    the k largest logits, equal ones by id
    lse      log of the sum of all exponentials
    sample   argmax of link(z) / T + gumbel over the classes that the filters keep

The readable twin of ``csrc/executor``, with the same answers: choose it with ``HEADLONG_ISA=numpy``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.answers import Answer
from headlong.dtypes import UNIT, Doubles, Ids
from headlong.engines.reference.gumbel import gumbels
from headlong.engines.reference.nucleus import kept
from headlong.engines.reference.query import Matrix, Query, logits, ordered
from headlong.links import ROUNDING as LINK_ROUNDING
from headlong.links import evaluated, lowering_error
from headlong.question import Mask, Question


def top(query: Query, k: int) -> Ids:
    """The ids of the k largest logits, largest first, equal logits by id; fewer where there are fewer classes."""
    ids = np.flatnonzero(query.within & query.live)
    if not query.proves:
        return np.asarray(ids[np.lexsort((ids, -query.logits[ids]))][:k])
    ids, query.logits[ids] = ordered(query.matrix, query.hidden, ids, query.logits[ids], k)
    return ids[:k]


def normaliser(query: Query, temperature: float = 1.0) -> tuple[float, float]:
    """``(lse, error)`` of the log-normaliser, in nats."""
    exponents = query.exponents(temperature)
    shift = float(exponents.max())
    if not math.isfinite(shift):
        return -math.inf, 0.0
    value = shift + math.log(float(np.exp(exponents - shift).sum()))
    colder = max(1.0, 1 / temperature)  # what logits may be off grows by that, and so does their size
    return value, _rounding(query, shift / colder) * colder if query.proves else math.inf


def _rounding(query: Query, shift: float) -> float:
    """What float64 can have added to the error of a normaliser: of the logits, of the link, of the sum, of its log."""
    link = query.matrix.link
    size = abs(shift) + link.offset
    off = link.steepest * float(query.rounding[query.live].max()) + 2 * lowering_error(link)
    return off + size * LINK_ROUNDING + (len(query.logits) + 16) * UNIT


class Rows:
    """The reader of a :class:`Matrix`, looped over the queries of a batch. Nothing is estimated from sampled rows: all is
    proved."""

    isa = "numpy"

    def __init__(self, matrix: Matrix, path: str = "") -> None:
        self.matrix, self.path = matrix._replace(link=evaluated(matrix.link)), path

    def ask(self, hidden: Doubles, question: Question) -> Answer:
        k = max(question.k, 0 if question.filters is None else question.filters.top_k)
        one = {"best": self._best, "given": self._given, "normaliser": self._normaliser, "draw": self._draw}[question.verb]
        parts = [one(query, question, row) for row, query in enumerate(self._queries(hidden, question.mask, k))]
        return stacked(parts, question, self.path)

    def _best(self, query: Query, question: Question, row: int) -> Answer:
        k, ids = question.k, top(query, question.k)
        values = query.logits[ids]
        lse, error = normaliser(query)
        log_probs = self.matrix.link(values) - (lse if math.isfinite(lse) else 0.0)
        ranked = {"ids": _pad(ids, k, -1), "logits": _pad(values, k, -np.inf), "log_probs": _pad(log_probs, k, -np.inf)}
        return _row(query, lse=lse, error=error, proved=query.proves, **ranked)

    def _given(self, query: Query, question: Question, row: int) -> Answer:
        assert question.ids is not None
        values, count = logits(self.matrix, query.hidden, question.ids[row]), question.ids.shape[1]
        if question.eps == math.inf:  # the normaliser is not asked for
            query.rows, query.bytes, lse, error = 0, 0.0, math.nan, math.inf
        else:
            lse, error = normaliser(query)
        found = _row(query, logits=values, log_probs=self.matrix.link(values) - lse, lse=lse, error=error)
        read = found.bytes + float(count * self.matrix.weight[0].nbytes)
        return found._replace(rows=found.rows + count, bytes=read, full=found.full & (query.rows > 0))

    def _normaliser(self, query: Query, question: Question, row: int) -> Answer:
        lse, error = normaliser(query, question.temperature)
        return _row(query, lse=lse, error=error)

    def _draw(self, query: Query, question: Question, row: int) -> Answer:
        """By one rule, rows at consecutive positions."""
        assert question.filters is not None
        n, temperature, top_k, top_p, min_p, seed, row0, class0, _ = question.filters
        if top_k:
            query.live = np.isin(np.arange(len(query.live)), top(query, top_k))
        exponents = query.exponents(temperature)
        ids = kept(query.logits, exponents, top_p, min_p)
        if not len(ids):
            none = np.full(n, -np.inf)
            return _row(query, ids=np.full(n, -1), logits=none, score=none, proved=np.zeros(n, bool))
        noise = (gumbels(seed, (row0 + row) % 2**64, draw, ids + class0) for draw in range(n))
        keys = np.array([exponents[ids] + gumbel for gumbel in noise]).reshape(n, len(ids))
        chosen = ids[keys.argmax(axis=1)]
        return _row(query, ids=chosen, logits=query.logits[chosen], score=keys.max(axis=1), proved=np.full(n, query.proves))

    def _queries(self, hidden: Doubles, mask: Mask, k: int) -> Iterator[Query]:
        """Each row of the batch, with all of its logits."""
        everything = np.ones(len(self.matrix.weight), bool)
        for b, row in enumerate(hidden):
            yield Query(self.matrix, row, everything if mask is None else mask[b % len(mask)] != 0, k)


def _row(query: Query, **fields: Any) -> Answer:
    """What one query was answered, and what it cost."""
    cost = Answer(rows=np.array([query.rows]), bytes=np.array([query.bytes]), full=np.array([query.proves]))
    named: dict[str, Any] = {name: np.asarray(value)[None] for name, value in fields.items()}
    return cost._replace(**named)


def stacked(parts: list[Answer], question: Question, path: str) -> Answer:
    """One row for each query; of an empty batch the shapes that others would have."""
    if parts:
        return Answer.of((np.concatenate(column) for column in zip(*(part[:-1] for part in parts), strict=True)), path)
    nothing = np.empty(0)
    wide = {"best": question.k, "given": 0 if question.ids is None else question.ids.shape[1]}.get(
        question.verb, 0 if question.filters is None else question.filters.n
    )
    flat, flags = np.empty((0, wide)), np.empty(0, np.bool_)
    proved = flags.reshape(0, *([wide] if question.verb == "draw" else []))
    none = np.empty((0, wide), np.int64), flat, flat, nothing, nothing, nothing, proved, flat, nothing
    return Answer(*none, np.empty(0, np.int64), nothing, flags, path)


def _pad(values: NDArray[Any], count: int, filler: float) -> NDArray[Any]:
    return np.concatenate([values, np.full(count - len(values), filler, values.dtype)])
