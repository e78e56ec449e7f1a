"""Answers over a few allowed classes: their exact rows alone, no preview.

    z = hidden @ weight[ids].T + bias[ids] ;  everything else is NumPy on ``[batch, m]``

Rows of different length are asked one after the other. The same questions as ``reference/rows.py``, answered by
sorting: with all logits at hand there is nothing to bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.answers import NOTHING, Answer, Cost
from headlong.dtypes import UNIT, Doubles, Ids
from headlong.engines.class_masks import all_left, classes_of
from headlong.engines.reference import gumbel
from headlong.engines.sampling_filters import kept_count
from headlong.errors import NonFiniteError
from headlong.links import Link, evaluated
from headlong.question import Filters, Question

Ask = Callable[[Doubles, Question], Answer]
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


def by_classes_left(hidden: Doubles, question: Question, vocab: int, few: Ask, many: Ask) -> Answer:
    """Rows of which a mask leaves few classes by ``few``, as many at a time as have equally many; the others by ``many``.

    How a row is answered depends on the row alone: on nothing that pads it, and not on who is asked with it.
    """
    if question.mask is None:
        return many(hidden, question)
    each = [one if few_enough(one, vocab) else -1 for one in all_left(question.mask)]
    if len(set(each)) <= 1:
        return (few if each and each[0] >= 0 else many)(hidden, question)
    counts = np.array(each)
    filters = question.filters
    follow = filters is not None and not isinstance(filters.seed, np.ndarray)  # rows that count up stay together
    order = np.arange(len(counts)) if follow else np.argsort(counts, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(counts[order])) + 1)
    parts = [(few if counts[rows[0]] >= 0 else many)(hidden[rows], of_rows(question, rows)) for rows in groups]
    return in_rows(parts, np.argsort(order))


def of_rows(question: Question, rows: Ids) -> Question:
    """What is asked of some of the rows; where these count up from a position, they follow one another."""
    mask, ids, filters = question.mask, question.ids, question.filters
    if mask is not None and len(mask) > 1:
        mask = np.ascontiguousarray(mask[rows])
    if filters is not None and isinstance(filters.seed, np.ndarray):
        filters = Filters._make([filters.n, *(np.asarray(part)[rows] for part in filters[1:-2]), *filters[-2:]])
    elif filters is not None:
        filters = filters._replace(row0=(filters.row0 + int(rows[0])) % 2**64)
    return question._replace(mask=mask, ids=None if ids is None else ids[rows], filters=filters)


def in_rows(parts: list[Answer], order: Ids) -> Answer:
    """The rows of all parts behind one another, then in ``order``."""
    *columns, paths = zip(*parts, strict=True)
    joined = (np.concatenate(column) for column in columns)
    return Answer.of((one[order] if len(one) else one for one in joined), paths[-1])


def answered(
    question: Question,
    classes: ListedClasses,
    rounding: Callable[[Doubles], Doubles],
    cost: Cost,
    logit_error: Doubles | float = 0.0,
) -> Answer:
    """The answer from all classes there are; ``rounding(lse)``: how far off a normaliser is, to which ``logit_error`` is added
    for log-probabilities."""
    temperature = question.temperature if question.filters is None else question.filters.temperature
    exponents = classes.exponents
    if isinstance(temperature, np.ndarray) or temperature != 1:
        exponents = exponents / np.reshape(temperature, (-1, 1))
    lse = lse_of(exponents)
    colder = np.maximum(1.0, 1.0 / np.asarray(temperature))  # what logits may be off grows by that, and so does their size
    error = rounding(lse / colder) * colder
    whole = Answer(lse=lse, error=error).at(cost)
    if question.verb == "best":
        logits, ids, best = best_of(classes, question.k)
        log_probs = np.where(ids < 0, -np.inf, best - np.where(np.isfinite(lse), lse, 0.0)[:, None])
        proved = np.ones(len(ids), bool)
        return whole._replace(ids=ids, logits=logits, log_probs=log_probs, error=error + logit_error, proved=proved)
    if question.filters is None:
        return whole
    ids, logits, score, drawn, kept = sample_of(classes, question.filters)
    whole = whole._replace(ids=ids, logits=logits, score=score, proved=np.ones(ids.shape, bool))
    if question.eps == math.inf:
        return whole._replace(lse=NOTHING, error=NOTHING)
    summed = (classes.ids.shape[1] + 8) * UNIT * (1 + np.abs(np.where(np.isfinite(lse), lse, 0.0)))
    log_probs, kept = drawn - lse[:, None], np.minimum(0.0, kept - lse)
    return whole._replace(log_probs=log_probs, kept=kept, error=error + summed + logit_error)


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


def best_of(answer: ListedClasses, k: int) -> tuple[Doubles, Ids, Doubles]:
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


def of_row(filters: Filters, row: int) -> Filters:
    """One row's own, at its own position."""
    if isinstance(filters.seed, np.ndarray):
        return Filters._make([filters.n, *(np.asarray(part)[row].item() for part in filters[1:-2]), *filters[-2:]])
    return filters._replace(row0=(filters.row0 + row) % 2**64)


def nothing_to_draw(row: int) -> NonFiniteError:
    return NonFiniteError(
        f"no logit of row {row} is a number, so no class can be drawn: the layer's weights hold NaN or infinity; load the file "
        "with verify=True"
    )


def checked_draws(ids: Ids) -> Ids:
    """``ids [batch, n]``, or NonFiniteError where a row has none."""
    if (ids < 0).any():
        raise nothing_to_draw(int(np.flatnonzero((ids < 0).any(axis=1))[0]))
    return ids


def sample_of(answer: ListedClasses, filters: Filters) -> tuple[Ids, Doubles, Doubles, Doubles, Doubles]:
    """``ids, logits, score [batch, n]``: ``argmax link(z) / T + g`` over the classes that the filters keep; ``link(z) / T`` of
    what was drawn, and ``[batch]`` the log of the sum of the exponentials of all that are kept."""
    shape = len(answer.ids), filters.n
    won, score, drawn, mass = np.empty(shape, np.int64), np.empty(shape), np.empty(shape), np.empty(shape[0])
    for b in range(len(won)):
        own = of_row(filters, b)
        live = np.flatnonzero(answer.ids[b] >= 0)
        order = live[np.argsort(-answer.logits[b, live], kind="stable")]
        kept = np.sort(order[: kept_count(answer.exponents[b, order] / (1.0 if own.last else own.temperature), own)])
        if len(kept) == 0:
            raise nothing_to_draw(b)
        exponents = answer.exponents[b, kept] / own.temperature
        first, score[b] = largest_keys(exponents, answer.ids[b, kept] + own.class0, own, own.row0)
        won[b], drawn[b], mass[b] = kept[first], exponents[first], lse_of(exponents[None])[0]
    return np.take_along_axis(answer.ids, won, axis=1), np.take_along_axis(answer.logits, won, axis=1), score, drawn, mass
