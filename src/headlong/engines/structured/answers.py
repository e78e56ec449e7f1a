"""What the engines of structured layers hand to their verbs, for whole batches: rows, scores, rankings, draws."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np

from headlong.arrays import Array
from headlong.dtypes import UNIT, Doubles, Flags, Ids
from headlong.engines.few_allowed_classes import ListedClasses, lse_of, sample_of, topk_of
from headlong.engines.sampling_filters import Filters


class Spent(NamedTuple):
    """Per query: rows scored, bytes read, and whether the whole distribution was."""

    rows: Ids
    bytes: Doubles
    dense: Flags


def summed(costs: list[Any]) -> Spent:
    """The sum of several costs; dense where one of them was."""
    rows, read, dense = (np.stack([getattr(cost, name) for cost in costs]) for name in Spent._fields)
    return Spent(rows.sum(axis=0), read.sum(axis=0), np.asarray(dense.any(axis=0)))


class Scored(NamedTuple):
    """``logits [batch, m]``, the normaliser of all classes ``lse [batch]``, and how far each of the two may be off."""

    logits: Doubles
    lse: Doubles
    logit_error: Doubles
    lse_error: Doubles
    spent: Spent


class Best(NamedTuple):
    """``logits, ids [batch, k]``, best first, equal logits by id, rows that end early filled with -inf and -1."""

    logits: Doubles
    ids: Ids
    proved: Flags
    lse: Doubles
    logit_error: Doubles
    lse_error: Doubles
    spent: Spent


class Drawn(NamedTuple):
    """``ids, logits, score, proved [batch, n]``."""

    ids: Ids
    logits: Doubles
    score: Doubles
    proved: Flags
    spent: Spent


def present(ids: Ids, logits: Doubles) -> ListedClasses:
    """A class of no probability is not there."""
    ids = np.where(np.isneginf(logits), -1, ids)
    logits = np.where(ids < 0, -np.inf, logits)
    return ListedClasses(ids, logits, logits)


def best_of(answer: ListedClasses, scored: Scored, k: int) -> Best:
    """The ranking and the normaliser of the classes that are left."""
    logits, ids, _ = topk_of(answer, k)
    lse = lse_of(answer.logits)
    size = np.abs(np.where(np.isfinite(lse), lse, 0.0))
    rounding = scored.logit_error + ((answer.ids >= 0).sum(axis=1) + 16 + 8 * size) * UNIT
    return Best(logits, ids, np.ones(len(ids), bool), lse, scored.logit_error, rounding, scored.spent)


def drawn_of(answer: ListedClasses, spent: Spent, filters: Filters) -> Drawn:
    ids, logits, score = sample_of(answer, filters)
    return Drawn(ids, logits, score, np.ones(ids.shape, bool), spent)


Answer = TypeVar("Answer", Best, Drawn)


def joined(parts: list[Answer], kind: type[Answer]) -> Answer:
    """Blocks of rows, one below the other."""
    if len(parts) == 1:
        return parts[0]
    columns: list[Any] = [_stacked(column) for column in zip(*parts, strict=True)]
    return kind(*columns)


def _stacked(column: tuple[Any, ...]) -> Array | Spent:
    if isinstance(column[0], Spent):
        return Spent(*(np.concatenate(part) for part in zip(*column, strict=True)))
    return np.concatenate(column)
