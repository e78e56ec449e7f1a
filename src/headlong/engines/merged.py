"""Several engines that answer as one: what of every question is the same wherever the parts are.

::

    top-k    the k best of the parts' k best                    lse    logaddexp of the parts', error their largest
    sample   the best key of all parts; with filters, of the classes that they keep of all parts' best

A kind says what its parts are and where they are asked (``_everyone``); shards and layers with changes are kinds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np

from headlong.answers import Answer, summed
from headlong.arrays import Array, Form
from headlong.dtypes import UNIT, Doubles, Ids
from headlong.engines.contract import Verbs
from headlong.engines.draws import from_kept
from headlong.question import Question

NEAR = 0.01
"""Within which parts are asked for the normalisers that join estimates which nothing bounds."""
COMPARED = 1024
"""Classes of one query that a reader is asked to compare at once; it does so with up to 4,096 (csrc/executor/rows.cpp)."""


class Merged(Verbs, ABC):
    """The verbs of every engine over all parts."""

    @property
    @abstractmethod
    def _path(self) -> str:
        """What ran, for the cost."""

    @property
    @abstractmethod
    def _longest(self) -> float:
        """The norm of the longest row."""

    @abstractmethod
    def _everyone(self, hidden: Doubles, question: Question) -> list[Answer]:
        """What :meth:`headlong.engines.parts.Part.ask` gives for every part, wherever it is, in the order of the classes.
        Vectors and question have to be the same wherever a part is."""

    @property
    def _is_one_part(self) -> bool:
        """Whether one engine has all classes, and filters by itself."""
        return False

    def ask(self, hidden: Doubles, question: Question) -> Answer:
        if question.filters is not None and not (question.filters.sieve.keeps_all or self._is_one_part):
            return from_kept(self, hidden, question.mask, question.filters)
        parts = self._everyone(hidden, question)
        whole = Answer().at(summed([part.cost for part in parts], self._path))
        if question.verb == "draw":
            return _largest(whole, parts)
        lse, error = merged_lse(tuple(part.lse for part in parts), tuple(part.error for part in parts))
        whole = whole._replace(lse=lse, error=error)
        if question.verb == "normaliser":
            return whole
        if question.verb == "given":
            logits = np.max([part.logits for part in parts], axis=0)
            return whole._replace(logits=logits, log_probs=self._log_probs(logits, lse))
        ids = np.concatenate([part.ids for part in parts], axis=1)
        logits = np.concatenate([part.logits for part in parts], axis=1)
        logits = exactly_tied(logits, ids, hidden, self._longest, lambda rows, some: self._exact(hidden[rows], some))
        logits, ids = best_of(logits, ids, question.k, self.layer.vocab)
        proved = np.all([part.proved for part in parts], axis=0)
        return whole._replace(ids=ids, logits=logits, log_probs=self._log_probs(logits, lse), proved=proved)

    def _exact(self, hidden: Doubles, ids: Ids) -> Doubles:
        """Logits ``[batch, m]`` that are summed without rounding and rounded once: a reader does so where logits of one
        question are within rounding of each other, as those of two equal classes are."""
        found = np.empty(ids.shape)
        for start in range(0, ids.shape[1], COMPARED):
            twice = np.repeat(ids[:, start : start + COMPARED], 2, axis=1)
            each = [part.logits[:, ::2] for part in self._everyone(hidden, Question("given", ids=twice))]
            found[:, start : start + COMPARED] = np.max(each, axis=0)
        return found

    def _log_probs(self, logits: Doubles, lse: Doubles) -> Doubles:
        """-inf where there is no class."""
        return self.exponents(logits) - np.where(np.isfinite(lse), lse, 0.0)[:, None]

    def _aim(self, eps: float | None, form: Form) -> float | None:
        aim = super()._aim(eps, form)
        return NEAR if aim is None else aim


def _largest(whole: Answer, parts: list[Answer]) -> Answer:
    """The best key of all parts; one without a class for a row offers none."""
    ids, logits, score = parts[0].ids, parts[0].logits, parts[0].score
    for part in parts[1:]:
        better = part.score > score
        ids, logits, score = (
            np.where(better, new, old) for new, old in ((part.ids, ids), (part.logits, logits), (part.score, score))
        )
    return whole._replace(ids=ids, logits=logits, score=score, proved=np.all([part.proved for part in parts], axis=0))


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
