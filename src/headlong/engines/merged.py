"""Several engines that answer as one: what of every question is the same wherever the parts are.

::

    top-k    the k best of the parts' k best                    lse    logaddexp of the parts', error their largest
    sample   the best key of all parts; with filters, of the classes that they keep of all parts' best

A kind says what its parts are and where they are asked (``_ask``); shards and layers with changes are kinds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from headlong.answers import Cost, LogProb, Lse, Sample, TopK
from headlong.arrays import Array, answer_as, ids64
from headlong.dtypes import UNIT, Doubles, Ids
from headlong.engines.arguments import Asked, aimed, check_told, checked_k, told, untold
from headlong.engines.class_masks import check_some_left
from headlong.engines.contract import Bounded
from headlong.engines.draws import from_kept
from headlong.engines.parts import Part, exact_logits
from headlong.engines.sampling_filters import Filters
from headlong.errors import OptionError
from headlong.promise import Promise

Verb = Callable[[Part], tuple[Array, ...]]
NEAR = 0.01


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
    def _ask(self, call: Asked, verb: Verb, *question: Any) -> list[tuple[Array, ...]]:
        """What ``verb`` gives of every part, wherever it is: each of its arrays of all parts, in the order of the classes.
        ``question`` is what was asked: arrays and plain values, which have to be the same wherever a part is."""

    def _topk(self, call: Asked, k: int, eps: float | None) -> TopK:

        def best(part: Part) -> tuple[Array, ...]:
            top, longest = part.topk(call.hidden, k, eps), np.full(1, float(part.engine.norms.max()))
            return top.logits, top.ids, longest, top.lse, top.error, top.proved, *top.cost[:3]

        def exact(rows: Array, some: Ids) -> Doubles:
            hidden = call.hidden[rows]
            (each,) = self._ask(call, lambda part: (part.logits(hidden, some, exact_logits),), "exact", hidden, some)
            return np.asarray(np.max(each, axis=0))

        parts = self._ask(call, best, "topk", call.hidden, call.mask, k, eps)
        logits, ids = (np.concatenate(column, axis=1) for column in parts[:2])
        longest, lses, errors, proved, *cost = parts[2:]
        logits = exactly_tied(logits, ids, call.hidden, float(np.max(longest)), exact)
        logits, ids = best_of(logits, ids, k, self.layer.vocab)
        lse, error = merged_lse(lses, errors)
        whole = TopK(self._log_probs(logits, lse), ids, logits, lse, error, np.all(proved, axis=0), self._cost(cost))
        return whole if told(eps, self.promise) else untold(whole)

    def _lse(self, call: Asked, eps: float | None, temperature: float | None) -> Lse:

        def sums(part: Part) -> tuple[Array, ...]:
            found = part.lse(call.hidden, eps, temperature)
            return found.lse, found.error, *found.cost[:3]

        lses, errors, *cost = self._ask(call, sums, "lse", call.hidden, call.mask, eps, temperature)
        return Lse(*merged_lse(lses, errors), self._cost(cost))

    def _drawn(self, call: Asked, filters: Filters) -> Sample:
        """The best key of all parts, where there are several without filters; one without a class for a row offers none."""

        def keys(part: Part) -> tuple[Array, ...]:
            best = *blank(len(call.hidden), filters.n), np.ones((len(call.hidden), filters.n), bool)
            cost = [np.zeros(len(call.hidden), kind) for kind in (np.int64, np.float64, np.bool_)]
            for rows in part.runs(len(call.hidden)):
                drawn = part.drawn(call.hidden[rows], rows, filters._replace(row0=(filters.row0 + rows.start) % 2**64))
                found = drawn.ids, drawn.logits, drawn.score, drawn.proved, *drawn.cost[:3]
                for to, one in zip((*best, *cost), found, strict=True):
                    to[rows] = one
            return *best, *cost

        ids, logits, score, proved, *cost = self._ask(call, keys, "sample", call.hidden, call.mask, filters)
        won, at, key = ids[0], logits[0], score[0]
        for others, values, keyed in zip(ids[1:], logits[1:], score[1:], strict=True):
            better = keyed > key
            won, at, key = np.where(better, others, won), np.where(better, values, at), np.where(better, keyed, key)
        return Sample(won, at, key, np.all(proved, axis=0), self._cost(cost))

    def _log_probs(self, logits: Doubles, lse: Doubles) -> Doubles:
        """-inf where there is no class."""
        return self.exponents(logits) - np.where(np.isfinite(lse), lse, 0.0)[:, None]

    def _cost(self, columns: list[tuple[Array, ...]]) -> Cost:
        rows, read, dense = columns
        return Cost(np.sum(rows, axis=0), np.sum(read, axis=0), np.any(dense, axis=0), self._path)

    def _aim(self, eps: float | None, call: Asked) -> float:
        """What parts are asked for; where estimates that nothing bounds are told, the other parts' normalisers join them."""
        aim = aimed(eps, self.promise, call.form)
        return NEAR if math.isinf(aim) and told(eps, self.promise) else aim

    @property
    def _is_one_part(self) -> bool:
        """Whether one engine has all classes, and filters by itself."""
        return False

    def topk(self, hidden: Any, k: int = 10, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> TopK:
        """The ``k`` likeliest classes of all parts together."""
        call = self._asked(hidden, allowed, exclude)
        return answer_as(self._topk(call, checked_k(k, self.layer.vocab), self._aim(eps, call)), call.form)

    def lse(self, hidden: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None) -> Lse:
        """The log-normaliser over all classes."""
        check_told("lse", eps, self.promise)
        call = self._asked(hidden, allowed, exclude)
        return answer_as(self._lse(call, self._aim(eps, call), None), call.form)

    def log_prob(
        self, hidden: Any, ids: Any, *, eps: float | None = None, allowed: Any = None, exclude: Any = None
    ) -> LogProb:
        """The log-probabilities of ``ids [batch, m]``, each read where it lies; -inf for those that are gone."""
        if allowed is not None or exclude is not None:
            return self._log_prob_among(hidden, ids, eps, allowed, exclude)
        if eps is None:
            check_told("log_prob", None, self.promise)
        call = self._asked(hidden)
        chosen, within = ids64(ids, len(call.hidden), self.layer.vocab), self._aim(eps, call)

        def given(part: Part) -> tuple[Array, ...]:
            logits = part.logits(call.hidden, chosen)
            count = np.isfinite(logits).sum(axis=1)
            if not told(within, self.promise):
                nothing, none = np.full(len(logits), np.nan), np.zeros(len(logits), bool)
                return logits, nothing, nothing + np.inf, count, count * float(part.engine.layer.row_bytes), none
            norm = part.lse(call.hidden, within, None)
            read = norm.cost.bytes + count * float(part.engine.layer.row_bytes)
            return logits, norm.lse, norm.error, norm.cost.rows + count, read, norm.cost.dense

        each, lses, errors, *cost = self._ask(call, given, "log_prob", call.hidden, chosen, within)
        logits, (lse, error) = np.max(each, axis=0), merged_lse(lses, errors)
        whole = LogProb(self._log_probs(logits, lse), logits, lse, error, self._cost(cost))
        return answer_as(whole if told(within, self.promise) else untold(whole), call.form)

    def _sample(self, hidden: Any, filters: Filters, allowed: Any, exclude: Any) -> Sample:
        call = self._asked(hidden, allowed, exclude)
        check_some_left(call.mask)
        if filters.sieve.keeps_all or self._is_one_part:
            return answer_as(self._drawn(call, filters), call.form)
        return answer_as(from_kept(self, call.hidden, call.mask, filters), call.form)

    def tempered_lse(self, hidden: Doubles, temperature: float, eps: float, limits: dict[str, Any]) -> Lse:
        """The parts' at that temperature."""
        try:
            return self._lse(self._asked(hidden, limits.get("allowed")), eps, None if temperature == 1 else temperature)
        except OptionError:  # no link says this one at a temperature
            return super().tempered_lse(hidden, temperature, eps, limits)


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
    with np.errstate(invalid="ignore"):  # NaN, where none was asked for
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


def blank(batch: int, n: int) -> tuple[Ids, Doubles, Doubles]:
    return np.full((batch, n), -1, np.int64), np.full((batch, n), -np.inf), np.full((batch, n), -np.inf)
