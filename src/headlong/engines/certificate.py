"""Which of somebody's answers are right: scores that may be off by a known error, and the rows that have to be read to be sure.

::

    s_i - e_i <= z_i <= s_i + e_i                                                of every class
    candidates   s_i + e_i >= the k-th largest s_j - e_j                         no other class is among the k best
    certain      a candidate whose interval meets no other's                     its place cannot be another one

A row all of whose places are certain is answered as it came, and nothing is read. Of the others the candidates are scored from
their rows; where these are many, or one of them is not within its interval, the engine answers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headlong.answers import Certificate
from headlong.arrays import Array, answer_like, as_numpy, pieces, to_host
from headlong.dtypes import UNIT, Doubles, Flags, Ids
from headlong.engines.arguments import checked_hidden, checked_k
from headlong.engines.kind import Kind
from headlong.engines.promise_failures import longest_row
from headlong.errors import OptionError, ShapeError
from headlong.question import Question

MANY = 16
"""Candidates are many where they are more than k and the classes over this."""


def certify(engine: Kind, hidden: Any, scores: Any, error: Any, k: int) -> Certificate:
    """The k best classes of each row of ``hidden [n, dim]`` from ``scores [n, vocab]``, each within ``error``."""
    vocab = engine.layer.vocab
    rows, k = checked_hidden(to_host(hidden), engine.layer.dim, vocab=vocab), checked_k(k, vocab)
    given, off = _checked(scores, error, len(rows), vocab)
    norms = getattr(engine, "norms", None)
    longest = longest_row(engine.layer) if norms is None else float(norms.max())
    blocks = pieces(max(1, len(rows)), vocab)
    parts = [_certified(engine, rows[at], given[at], off if len(off) == 1 else off[at], k, longest) for at in blocks]
    columns = (np.concatenate(column) for column in zip(*parts, strict=True))
    return answer_like(Certificate(*columns), hidden)


def _checked(scores: Any, error: Any, count: int, vocab: int) -> tuple[Array, Array]:
    """``[n, vocab]`` scores, and errors ``[1 or n, 1 or vocab]``."""
    given, off = as_numpy(to_host(scores), "scores"), as_numpy(to_host(error), "error")
    if given.shape != (count, vocab):
        raise ShapeError(f"scores has shape {list(given.shape)}; expected [{count}, {vocab}], a score of every class")
    off = off[:, None] if off.ndim == 1 else off.reshape(1, 1) if off.ndim == 0 else off
    if off.ndim != 2 or off.shape[0] not in (1, count) or off.shape[1] not in (1, vocab):
        raise ShapeError(f"error has shape {list(np.shape(error))}; expected one number, [{count}], [1, {vocab}] or all")
    if off.dtype.kind not in "fiu" or not (off >= 0).all():
        raise OptionError("error holds NaN or a negative number; expected how far off scores may be, inf where nobody knows")
    return given, off


def _certified(engine: Kind, rows: Doubles, scores: Array, off: Array, k: int, longest: float) -> tuple[Array, ...]:
    wide, vocab = scores.astype(np.float64), scores.shape[1]
    with np.errstate(invalid="ignore"):
        reach = off + 4 * UNIT * (np.abs(wide) + off)
        low, high = wide - reach, wide + reach
    unknown = ~np.isfinite(wide) | ~np.isfinite(reach)
    low, high = np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high)
    kth = np.partition(low, vocab - k, axis=1)[:, vocab - k]
    open_ = high >= kth[:, None]
    counts = open_.sum(axis=1)
    asked, proved, answered = np.zeros(len(rows), np.int64), np.ones(len(rows), bool), np.zeros(len(rows), bool)
    ids, logits, error = np.empty((len(rows), k), np.int64), np.empty((len(rows), k)), np.zeros(len(rows))
    certain = np.zeros((len(rows), k), bool)
    few = np.flatnonzero(counts <= k + vocab // MANY)
    if few.size:
        among, there = _listed(open_[few], wide[few])
        bounds = [np.take_along_axis(end[few], among, 1) for end in (low, high)]
        certain[few] = _certain(*(np.where(there, end, -np.inf) for end in bounds))[:, :k]
        ids[few], logits[few] = among[:, :k], np.take_along_axis(wide[few], among[:, :k], 1)
        error[few] = (bounds[1] - bounds[0])[:, :k].max(axis=1) / 2
        answered[few] = certain[few].all(axis=1)
        open_rows = ~answered[few]
        doubtful, among, there = few[open_rows], among[open_rows], there[open_rows]
        asked[doubtful] = counts[doubtful]
    if few.size and doubtful.size:
        exact = engine.ask(rows[doubtful], Question("given", ids=among, eps=engine.exact_at)).logits
        inside = (bounds[0][open_rows] <= exact) & (exact <= bounds[1][open_rows])
        exact = np.where(there, exact, -np.inf)
        order = np.lexsort((among, -exact), axis=1)[:, : k + 1]
        falling = np.take_along_axis(exact, order, 1)
        # Logits that are nearer than sums in float64 tell, and not the same, are the engine's to put in order.
        lost = (engine.layer.dim + 8) * 4 * UNIT * longest * np.linalg.norm(rows[doubtful], axis=1)
        with np.errstate(invalid="ignore"):
            near = (falling[:, :-1] - falling[:, 1:] <= lost[:, None]) & (falling[:, :-1] != falling[:, 1:])
        answered[doubtful] = (inside | ~there).all(axis=1) & ~near.any(axis=1)
        ids[doubtful], logits[doubtful] = np.take_along_axis(among, order[:, :k], 1), falling[:, :k]
        error[doubtful] = 0.0
    if (rest := np.flatnonzero(~answered)).size:
        top = engine.ask(rows[rest], Question("best", k))
        ids[rest], logits[rest], proved[rest] = top.ids, top.logits, top.proved
        certain[rest], error[rest], asked[rest] = False, 0.0, vocab
    return ids, logits, certain, proved, error, asked


def _listed(open_: Flags, scores: Doubles) -> tuple[Ids, Flags]:
    """``[n, m]`` ids of the classes that are open, by falling scores, equal ones by id, and which of the places are any."""
    counts = open_.sum(axis=1)
    row, ids = np.nonzero(open_)
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    among, there = np.zeros((len(open_), counts.max()), np.int64), np.arange(counts.max()) < counts[:, None]
    among[row, place] = ids
    falling = np.where(there, -np.take_along_axis(scores, among, 1), np.inf)
    order = np.lexsort((among, falling, ~there), axis=1)
    return np.take_along_axis(among, order, 1), there


def _certain(low: Doubles, high: Doubles) -> Flags:
    """``[n, m]``: of intervals by falling scores, which of them meet none of those before and behind."""
    before = np.minimum.accumulate(low, axis=1)
    behind = np.maximum.accumulate(high[:, ::-1], axis=1)[:, ::-1]
    ends = np.full((len(low), 1), np.inf)
    return (high < np.concatenate([ends, before[:, :-1]], axis=1)) & (low > np.concatenate([behind[:, 1:], -ends], axis=1))
