"""Answers over a few allowed classes: their exact rows alone, no preview.

    z = hidden @ weight[ids].T + bias[ids] ;  everything else is NumPy on ``[batch, m]``

Rows of different length are asked one after the other. The same questions as ``reference/executor.py``, answered by
sorting: with all logits at hand there is nothing to bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.dtypes import Doubles, Ids
from headlong.engines.class_masks import classes_of
from headlong.engines.reference import gumbel
from headlong.engines.sampling_filters import Filters, kept_count
from headlong.links import Link, evaluated

MOST_KEYS = 1 << 18
"""Keys that are held at once: 2 MiB."""


class ListedClasses(NamedTuple):
    """``ids, logits, exponents [batch, m]`` in ascending order of ids: exponents are ``link(logits)``."""

    ids: Ids
    logits: Doubles
    exponents: Doubles


def few_enough(left: int, vocab: int) -> bool:
    """Whether exact rows alone are the cheapest answer where a mask leaves ``left`` classes."""
    return left <= max(64, vocab // 64) < vocab  # gathered rows: beyond, a scan of all classes under the mask is cheaper


def listed(mask: NDArray[np.uint8], batch: int) -> Ids:
    """``[batch, m]``: the ids of each row's mask, which leaves as many in every row."""
    rows = [classes_of(row) for row in mask]
    ids = np.stack(rows) if rows else np.empty((0, 0), np.int64)
    return np.ascontiguousarray(np.broadcast_to(ids, (batch, ids.shape[1])))


def listed_classes(ids: Ids, logits: Doubles, link: Link) -> ListedClasses:
    """``logits`` were scored with any id in place of -1."""
    return ListedClasses(ids, np.where(ids < 0, -np.inf, logits), np.where(ids < 0, -np.inf, evaluated(link)(logits)))


def lse_of(exponents: Doubles) -> Doubles:
    """``log sum exp`` of each row; -inf for an empty one. Summed one after the other: what pads a row changes nothing."""
    shift = exponents.max(axis=1, initial=-np.inf)
    finite = np.where(np.isfinite(shift), shift, 0.0)
    sums = np.cumsum(np.exp(exponents - finite[:, None]), axis=1)[:, -1:].sum(axis=1)
    with np.errstate(divide="ignore"):
        return np.asarray(finite + np.log(sums))


def topk_of(answer: ListedClasses, k: int) -> tuple[Doubles, Ids, Doubles]:
    """``logits, ids, exponents [batch, k]``, equal logits by id; missing classes are id -1 and -inf."""
    order = np.argsort(-answer.logits, axis=1, kind="stable")[:, :k]
    rows, missing = np.arange(len(order))[:, None], k - order.shape[1]
    logits, ids, exponents = answer.logits[rows, order], answer.ids[rows, order], answer.exponents[rows, order]
    if missing > 0:
        none = np.full((len(order), missing), -np.inf)
        logits, exponents = np.concatenate([logits, none], axis=1), np.concatenate([exponents, none], axis=1)
        ids = np.concatenate([ids, np.full(none.shape, -1, np.int64)], axis=1)
    return logits, ids, exponents


def gumbels(seed: int, row: int, draws: range, classes: Ids) -> Doubles:
    """``-log(-log(u)) [draws, classes]``: natively where that is there."""
    if native.isa() == native.REFERENCE:
        return np.stack([gumbel.gumbels(seed, row, draw, classes) for draw in draws])
    return native.gumbels(seed, row, draws, classes)


def largest_keys(exponents: Doubles, classes: Ids, filters: Filters, row: int) -> tuple[Ids, Doubles]:
    """``argmax, max`` over the classes of ``link(z) / T + g`` for each of ``n`` draws; ``exponents`` are ``link(z) / T``."""
    won, score = np.empty(filters.n, np.int64), np.empty(filters.n)
    at_once = max(1, MOST_KEYS // max(1, len(classes)))
    for first in range(0, filters.n, at_once):
        draws = range(first, min(first + at_once, filters.n))
        keys = exponents + gumbels(filters.seed, row % 2**64, draws, classes)
        won[first : draws.stop] = np.argmax(keys, axis=1)
        score[first : draws.stop] = keys.max(axis=1)
    return won, score


def sample_of(answer: ListedClasses, filters: Filters) -> tuple[Ids, Doubles, Doubles]:
    """``ids, logits, score [batch, n]``: ``argmax link(z) / T + g`` over the classes that the filters keep."""
    won = np.empty((len(answer.ids), filters.n), np.int64)
    score = np.empty(won.shape)
    for b in range(len(won)):
        live = np.flatnonzero(answer.ids[b] >= 0)
        order = live[np.argsort(-answer.logits[b, live], kind="stable")]
        kept = np.sort(order[: kept_count(answer.exponents[b, order] / filters.temperature, filters)])
        exponents = answer.exponents[b, kept] / filters.temperature
        first, score[b] = largest_keys(exponents, answer.ids[b, kept] + filters.class0, filters, filters.row0 + b)
        won[b] = kept[first]
    return np.take_along_axis(answer.ids, won, axis=1), np.take_along_axis(answer.logits, won, axis=1), score
