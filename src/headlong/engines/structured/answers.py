"""What the engines of structured layers make their answers of, for whole batches: rows, scores, and how far off these are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headlong.answers import Answer
from headlong.dtypes import Doubles, Flags, Ids
from headlong.engines.few_allowed_classes import ListedClasses


class Spent(NamedTuple):
    """Per query: rows scored, bytes read, and whether the whole distribution was."""

    rows: Ids
    bytes: Doubles
    dense: Flags


def summed(costs: list[Any]) -> Spent:
    """The sum of several costs; dense where one of them was."""
    rows, read, dense = (np.stack([getattr(cost, name) for cost in costs]) for name in Spent._fields)
    return Spent(rows.sum(axis=0), read.sum(axis=0), np.asarray(dense.any(axis=0)))


def answer_of(spent: Spent, **fields: Any) -> Answer:
    return Answer(**fields, rows=spent.rows, bytes=spent.bytes, full=spent.dense)


class Scored(NamedTuple):
    """``logits [batch, m]``, the normaliser of all classes ``lse [batch]``, and how far each of the two may be off; where that
    is not all that there is to prove, which rows are proved."""

    logits: Doubles
    lse: Doubles
    logit_error: Doubles
    lse_error: Doubles
    spent: Spent
    proved: Flags | None = None


def present(ids: Ids, logits: Doubles) -> ListedClasses:
    """A class of no probability is not there."""
    ids = np.where(np.isneginf(logits), -1, ids)
    logits = np.where(ids < 0, -np.inf, logits)
    return ListedClasses(ids, logits, logits)
