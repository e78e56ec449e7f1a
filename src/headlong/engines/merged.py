"""Several engines that answer as one: what of every question is the same wherever the parts are.

::

    top-k    the k best of the parts' k best                    lse    logaddexp of the parts', error their largest
    sample   the best key of all parts; filters look at the best of all parts first

A kind says how its parts are asked (``_topk``, ``_lse``, ``_drawn``); shards and layers with changes are kinds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from headlong import native
from headlong.answers import Cost, Lse, Sample, TopK
from headlong.arrays import WIDE, Array, answer_as
from headlong.dtypes import UNIT, Doubles, Ids
from headlong.engines.arguments import Asked, aimed, asked, checked_k
from headlong.engines.base import Engine
from headlong.engines.class_masks import check_some_left
from headlong.engines.contract import Bounded
from headlong.engines.few_allowed_classes import largest_keys
from headlong.engines.sampling_filters import GROWTH, Filters, Ranked, Sieve, kept
from headlong.errors import NonFiniteError, OptionError
from headlong.links import Link, evaluated
from headlong.promise import Promise

COMPARED = 1024
"""Classes of one query that an executor is asked to compare at once; it does so with up to 4,096 (csrc/executor/rows.cpp)."""


class Merged(Bounded, ABC):
    """The verbs of :class:`headlong.engines.base.Engine` over all parts."""

    promise: Promise

    @property
    @abstractmethod
    def layer(self) -> Any:
        """What is known of all parts together: ``vocab``, ``dim``, ``link``."""

    @property
    @abstractmethod
    def _path(self) -> str:
        """What ran, for the cost."""

    @abstractmethod
    def _topk(self, call: Asked, k: int, eps: float | None, about: Any = None) -> TopK: ...

    @abstractmethod
    def _lse(self, call: Asked, eps: float | None, temperature: float | None, about: Any = None) -> Lse: ...

    @abstractmethod
    def _drawn(self, call: Asked, filters: Filters) -> Sample:
        """The best key of all parts; where there are several, without filters."""

    def _asked(self, hidden: Any, allowed: Any = None, exclude: Any = None) -> Asked:
        return asked(hidden, allowed, exclude, self.layer.dim, self.layer.vocab)

    def topk(self, hidden: Any, k: int = 10, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> TopK:
        """The ``k`` likeliest classes of all parts together."""
        call = self._asked(hidden, allowed, exclude)
        return answer_as(self._topk(call, checked_k(k, self.layer.vocab), aimed(eps, self.promise, call.form)), call.form)

    def lse(self, hidden: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> Lse:
        """The log-normaliser over all classes."""
        call = self._asked(hidden, allowed, exclude)
        return answer_as(self._lse(call, aimed(eps, self.promise, call.form), None), call.form)

    def _sample(self, hidden: Any, filters: Filters, allowed: Any, exclude: Any) -> Sample:
        call = self._asked(hidden, allowed, exclude)
        check_some_left(call.mask)
        sieve = Sieve(filters.temperature, filters.top_k, filters.top_p, filters.min_p)
        drawn = self._drawn(call, filters) if sieve.keeps_all else self._sieved(call, filters, sieve)
        return answer_as(drawn, call.form)

    def tempered_lse(self, hidden: Doubles, temperature: float, eps: float, limits: dict[str, Any]) -> Lse:
        """The parts' at that temperature."""
        try:
            return self._lse(self._asked(hidden, limits.get("allowed")), eps, None if temperature == 1 else temperature)
        except OptionError:  # no link says this one at a temperature
            return super().tempered_lse(hidden, temperature, eps, limits)

    def _every(self, call: Asked) -> tuple[Ids, Doubles] | None:
        """The classes that one query may be answered with, ascending, and their logits; None where they are elsewhere."""
        return None

    def _sieved(self, call: Asked, filters: Filters, sieve: Sieve) -> Sample:
        """The classes that pass first, then their keys: filters depend on all classes."""
        ids, logits, score = blank(len(call.hidden), filters.n)
        cost = [np.zeros(len(ids), kind) for kind in (np.int64, np.float64, np.bool_)]
        for row in range(len(ids)):
            part = slice(row, row + 1)
            mask = None if call.mask is None else call.mask[part if len(call.mask) > 1 else slice(0, 1)]
            source = _Query(self, Asked(WIDE, call.hidden[part], mask, False), cost, row, filters)
            found = kept(source, sieve)
            order = np.argsort(found.ids)
            if not len(order):
                raise NonFiniteError("no class has a finite logit; expected an intact layer: open it with verify=True")
            classes, exponents, values = found.ids[order], found.scores[order] / sieve.temperature, source.logits[order]
            won, score[row] = largest_keys(exponents, classes + filters.class0, filters, filters.row0 + row)
            ids[row], logits[row] = classes[won], values[won]
        proved = np.full(ids.shape, self.promise.delta == 0)
        return Sample(ids, logits, score, proved, Cost(cost[0], cost[1], cost[2], self._path))


class _Query:
    """One query as a :class:`~headlong.engines.sampling_filters.CandidateSource`; keeps the logits of the last candidates,
    and what they cost."""

    def __init__(self, whole: Merged, call: Asked, cost: list[Array], row: int, about: Any) -> None:
        self.whole, self.call, self.cost, self.row, self.about = whole, call, cost, row, about
        self.logits: Doubles = np.empty(0)
        self.there = whole.layer.vocab if call.mask is None else int(call.mask.sum())

    def best(self, count: int) -> Ranked:
        count = min(count, self.there)
        # So many are found sooner by reading all of them.
        every = self.whole._every(self.call) if count > self.there // GROWTH else None  # noqa: SLF001  # the same file
        if every is None:
            top = self.whole._topk(self.call, count, math.inf, self.about)  # noqa: SLF001
            ids, self.logits = top.ids[0], top.logits[0]
            self._count(top.cost)
        else:
            count, order = self.there, np.argsort(-every[1], kind="stable")
            ids, self.logits = every[0][order], every[1][order]
            self.cost[0][self.row] += count
            self.cost[2][self.row] = True
        scores = np.asarray(evaluated(self.whole.layer.link)(self.logits), np.float64)
        return Ranked(ids, scores, -math.inf if count == self.there else float(scores[-1]))

    def lse(self, temperature: float, eps: float) -> tuple[float, float]:
        try:
            found = self.whole._lse(self.call, eps, temperature, self.about)  # noqa: SLF001
        except OptionError:  # no link says this one at a temperature: all classes will be looked at
            return (-math.inf, math.inf)
        self._count(found.cost)
        middle, error = float(found.lse[0]), float(found.error[0])
        return (middle - error, middle + error)

    def _count(self, cost: Cost) -> None:
        self.cost[0][self.row] += cost.rows[0]
        self.cost[1][self.row] += cost.bytes[0]
        self.cost[2][self.row] |= cost.dense[0]


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


def exactly_tied(logits: Doubles, ids: Ids, hidden: Doubles, longest: float, exact: Callable[[Array, Ids], Doubles]) -> Doubles:
    """The parts' logits ``[batch, m]``, where some are so close that roundings may decide those that ``exact(rows, ids)``
    gives: equal ones are equal then, whichever part they come from. ``longest``: the norm of the longest row."""
    order = np.argsort(-logits, axis=1, kind="stable")
    falling = np.take_along_axis(logits, order, 1)
    products = (hidden.shape[1] + 8) * longest * np.linalg.norm(hidden, axis=1)[:, None]
    with np.errstate(invalid="ignore"):
        sizes = products + np.abs(falling[:, 1:]) + np.abs(falling[:, :-1])
        close = falling[:, :-1] - falling[:, 1:] < 4 * UNIT * sizes
    near = np.zeros(logits.shape, bool)
    near[:, :-1] |= close
    near[:, 1:] |= close
    rows = np.flatnonzero(near.any(axis=1))
    if not len(rows):
        return logits
    here = np.zeros(near.shape, bool)
    np.put_along_axis(here, order, near, 1)
    found = logits.copy()
    found[rows] = np.where(here[rows], exact(rows, np.maximum(ids[rows], 0)), logits[rows])
    return found


def best_of(logits: Doubles, ids: Ids, k: int, vocab: int) -> tuple[Doubles, Ids]:
    """The k largest of each row, equal ones by id; -1, which pads, comes last."""
    order = np.lexsort((np.where(ids < 0, vocab, ids), -logits), axis=1)[:, :k]
    return np.take_along_axis(logits, order, 1), np.take_along_axis(ids, order, 1)


def log_probs_of(logits: Doubles, ids: Ids, lse: Doubles, link: Link) -> Doubles:
    """``link(z) - lse``; -inf where there is no class."""
    exponents = np.where(ids < 0, -np.inf, link(np.where(ids < 0, 0.0, logits)))
    return np.asarray(exponents - np.where(np.isfinite(lse), lse, 0.0)[:, None])


def merged_lse(lses: tuple[Doubles, ...], errors: tuple[Doubles, ...]) -> tuple[Doubles, Doubles]:
    """``lse = log sum_p exp(lse_p)`` of the parts' normalisers, and their errors by the share of the mass that each has.

    With shares ``w_p = exp(lse_p - lse)``, what is above and what is below ``lse`` is at most

        max(log sum_p w_p exp(error_p), -log sum_p w_p exp(-error_p)) + rounding <= max_p error_p + rounding

    One part alone is answered as it is. Rounding is that of the sum, some 1e-15 of ``1 + |lse|`` for each part: where all parts
    use the whole promise, an error may be that much above it.
    """
    if len(lses) == 1:
        return lses[0], errors[0]
    stacked, off = np.stack(lses), np.stack(errors)
    lse = np.asarray(np.logaddexp.reduce(stacked, axis=0))
    there = np.isfinite(lse)
    largest = np.max(off, axis=0)
    size = np.where(there, np.abs(lse), 0.0) + np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(invalid="ignore"):  # infinities on either side: the largest error stands
        above = np.logaddexp.reduce(stacked + off, axis=0) - lse
        below = lse - np.logaddexp.reduce(stacked - off, axis=0)
    wide = np.maximum(above, below)
    error = np.where(there & np.isfinite(wide), np.minimum(wide, largest), largest)
    return lse, np.asarray(error + 8 * len(stacked) * UNIT * (1 + size))


def columns(parts: list[tuple[Array, ...]]) -> list[tuple[Array, ...]]:
    return list(zip(*parts, strict=True))


def blank(batch: int, n: int) -> tuple[Ids, Doubles, Doubles]:
    return np.full((batch, n), -1, np.int64), np.full((batch, n), -np.inf), np.full((batch, n), -np.inf)
