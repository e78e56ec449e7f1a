"""The NumPy executor: one query at a time, every question answered from estimates and radii.

    top-k    look at all -> score the k best estimates, tau = their worst -> next level, then rows best first,
             while estimate + radius >= tau
    lse      sum of exp over the intervals; rows with the widest gap are read further until the two ends meet
    sample   argmax of link(z) / T + gumbel: rows best first while their upper end beats the best score

The readable twin of ``csrc/executor``, with the same verbs and the same answers: choose it with ``HEADLONG_ISA=numpy``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import UNIT
from headlong.engines.reference.gumbel import gumbels
from headlong.engines.reference.joint_error import closest
from headlong.engines.reference.nucleus import Nucleus
from headlong.engines.reference.query import Doubles, Ids, Matrix, Query, logits
from headlong.links import ROUNDING as LINK_ROUNDING
from headlong.links import evaluated, lowering_error

Mask = NDArray[np.uint8] | None
Answer = tuple[NDArray[Any], ...]

STEP = 16
"""Rows scored before the threshold is looked at again."""


def top(query: Query, k: int) -> Ids:
    """The ids of the k largest logits, largest first, equal logits by id; fewer where there are fewer classes."""
    among = query.within & query.live
    k = min(k, int(among.sum()))
    if k == 0:
        return np.empty(0, np.int64)
    query.score(_largest(query.estimate, np.flatnonzero(among), k))
    while True:
        ids = np.flatnonzero(among & query.scored)
        best = np.asarray(ids[np.lexsort((ids, -query.estimate[ids]))][:k])
        reaches = query.reach()[1] >= query.estimate[best[-1]]
        rivals = np.flatnonzero(among & reaches & ~query.scored)
        if not len(rivals):
            return best
        if not finish_if_dear(query, len(rivals)):
            behind = rivals[query.depth[rivals] < query.last - 1]
            query.look(behind if len(behind) else _largest(query.reach()[1], rivals, STEP))


def normaliser(query: Query, eps: float) -> tuple[float, float]:
    """``(lse, error)``: the middle and half the width of an interval that holds the log-normaliser, in nats.

    Reads on until the half-width is at most ``eps``; ``eps=inf`` takes the interval as it is.
    """
    live = np.flatnonzero(query.live)
    if not len(live):
        return -math.inf, 0.0
    while True:
        low, high = query.exponents(live)
        shift = float(high.max() if np.isfinite(high.max()) else low.max())
        shift = shift if math.isfinite(shift) else 0.0
        with np.errstate(over="ignore", divide="ignore"):
            low, high = np.exp(low - shift), np.exp(high - shift)
            bottom, peak = map(float, np.log(closest(query, live, low, high, shift)))
        half, rounding = (peak - bottom) / 2, _rounding(query, shift)
        goal = max(eps - rounding, rounding)  # where float64 cannot keep eps, reading on past its rounding is idle
        if half <= goal or query.scored[live].all():
            break
        wide = live[widest(low, high, goal)]
        if not finish_if_dear(query, len(wide)):
            query.look(wide[: max(STEP, len(wide) // 2)])
    if not query.proves:
        return shift + bottom, math.inf
    return shift + (bottom + half if math.isfinite(half) else bottom), half + rounding


def widest(low: Doubles, high: Doubles, eps: float) -> Ids:
    """The fewest classes, widest gap first, without which the sums are within ``exp(2 eps)``: lower ends only rise."""
    gap = high - low
    order = np.argsort(-gap, kind="stable")
    order = order[: np.count_nonzero(gap)]
    left = np.concatenate([np.cumsum(gap[order][::-1])[::-1][1:], [0.0]])
    return np.asarray(order[: np.flatnonzero(left <= low.sum() * math.expm1(min(2 * eps, 700.0)))[0] + 1])


def draws(query: Query, noise: Iterator[Doubles], temperature: float, kept: Nucleus) -> Iterator[tuple[int, float]]:
    """``(class, score)`` for each vector of Gumbels: the argmax of ``link(z) / T + g`` over the classes that are kept."""
    for gumbel in noise:
        while True:
            ids = np.flatnonzero(query.live & ~kept.refused)
            score = query.exponents(ids, temperature)[1] + gumbel[ids]
            scored = query.scored[ids]
            exact = score[scored].max(initial=-math.inf)
            rivals = np.flatnonzero(~scored & (score >= exact))
            if len(rivals):
                # Only beside a score to beat does the number of rivals say how expensive the draw is.
                if math.isinf(exact) or not finish_if_dear(query, len(rivals)):
                    query.look(ids[_largest(score, rivals, STEP)])
                continue
            winner = int(ids[scored & (score == exact)][0])
            if kept.holds(winner):
                yield winner, float(exact)
                break


def finish_if_dear(query: Query, rows: int) -> bool:
    """Score everything once ``rows`` candidates are more than the plan's share of the classes."""
    expensive = rows > query.matrix.plan.dense.share * len(query.estimate)
    if expensive:
        query.score_all()
    return expensive


def _largest(values: Doubles, ids: Ids, count: int) -> Ids:
    """The ``count`` of ``ids`` with the largest values, smaller ids first among equals."""
    return ids[np.argsort(-values[ids], kind="stable")[:count]]


def _rounding(query: Query, shift: float) -> float:
    """What float64 can have added to the error of a normaliser: of the logits, of the link, of the sum, of its log."""
    link = query.matrix.link
    size = abs(shift) + link.offset
    logits = link.steepest * float(query.rounding[query.live].max()) + 2 * lowering_error(link)
    return logits + size * LINK_ROUNDING + (len(query.estimate) + 16) * UNIT


class Executor:
    """The verbs of ``headlong._native.Executor`` over a :class:`Matrix`, looped over the queries of a batch.

    ``hidden [batch, dim]`` float64; ``mask [1 or batch, vocab]`` (0: the class is not there) or None. ``delta`` and ``seed``
    are not used: what may be estimated from sampled rows is proved here.
    """

    isa = "numpy"

    def __init__(self, matrix: Matrix) -> None:
        self.matrix = matrix._replace(link=evaluated(matrix.link))

    def topk(
        self, hidden: Doubles, k: int, eps: float, mask: Mask, dense: bool, threads: int, delta: float = 0.0, seed: int = 0
    ) -> Answer:
        """``logits, ids, log_probs [batch, k], lse, error, proved, rows, bytes, dense [batch]``."""
        answers = []
        for query in self._queries(hidden, mask, dense, k):
            ids = top(query, k)
            values = query.estimate[ids]
            lse, error = normaliser(query, eps)
            log_probs = self.matrix.link(values) - (lse if math.isfinite(lse) else 0.0)
            ranked = (_pad(values, k, -np.inf), _pad(ids, k, -1), _pad(log_probs, k, -np.inf))
            answers.append((*ranked, lse, error, query.proves, *_cost(query)))
        return _columns(answers, ("f", k), ("i", k), ("f", k), ("f",), ("f",), ("?",), *_COST)

    def lse(
        self, hidden: Doubles, eps: float, mask: Mask, dense: bool, threads: int, delta: float = 0.0, seed: int = 0
    ) -> Answer:
        """``lse, error, rows, bytes, dense [batch]``."""
        queries = self._queries(hidden, mask, dense, 0)
        found = ((*normaliser(query, eps), *_cost(query)) for query in queries)
        return _columns(list(found), ("f",), ("f",), *_COST)

    def logits(self, hidden: Doubles, ids: Ids, threads: int) -> Doubles:
        """``[batch, m]``: the exact logits of ``ids [batch, m]``."""
        found = [logits(self.matrix, row, chosen) for row, chosen in zip(hidden, ids, strict=True)]
        return np.array(found, np.float64).reshape(ids.shape)

    def sample(
        self,
        hidden: Doubles,
        n: int,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        seed: int,
        row0: int,
        mask: Mask,
        dense: bool,
        threads: int,
        class0: int = 0,
        delta: float = 0.0,
        chance: int = 0,
    ) -> Answer:
        """``ids, logits, score, proved [batch, n], rows, bytes, dense [batch]``; top_k 0, top_p 1, min_p 0 mean off."""
        answers = []
        classes = np.arange(len(self.matrix.weight), dtype=np.int64)
        for b, query in enumerate(self._queries(hidden, mask, dense, top_k)):
            if top_k:
                query.live = np.isin(classes, top(query, top_k))
            best = query.estimate[top(query, 1)[0]] if min_p > 0 else 0.0
            kept = Nucleus(query, temperature, top_p, min_p, float(best))
            noise = (gumbels(seed, (row0 + b) % 2**64, draw, classes + class0) for draw in range(n))
            won = list(draws(query, noise, temperature, kept))
            ids = np.array([winner for winner, _ in won], np.int64)
            score = np.array([value for _, value in won])
            answers.append((ids, query.estimate[ids], score, np.full(n, query.proves), *_cost(query)))
        return _columns(answers, ("i", n), ("f", n), ("f", n), ("?", n), *_COST)

    def _queries(self, hidden: Doubles, mask: Mask, dense: bool, k: int) -> Iterator[Query]:
        """Each row of the batch after its look at all classes and, under a budget, after the rows that it pays for."""
        plan = self.matrix.plan
        for b, row in enumerate(hidden):
            everything = np.ones(len(self.matrix.weight), bool)
            query = Query(self.matrix, row, everything if mask is None else mask[b % len(mask)] != 0)
            live = np.flatnonzero(query.live)
            if dense or not plan.levels:
                query.score_all()
            else:
                query.look(np.arange(len(everything)))
                if plan.budget is not None:
                    query.score(_largest(query.estimate, live, max(plan.budget, k)))
                    query.trust()
            yield query


_COST = (("i",), ("f",), ("?",))


def _cost(query: Query) -> tuple[int, float, bool]:
    return query.rows, query.bytes, query.dense


def _pad(values: NDArray[Any], count: int, filler: float) -> NDArray[Any]:
    return np.concatenate([values, np.full(count - len(values), filler, values.dtype)])


def _columns(rows: list[tuple[Any, ...]], *columns: tuple[Any, ...]) -> Answer:
    """One array per column from one tuple per query; ``columns`` give the type and the width, for an empty batch too."""
    types = {"f": np.float64, "i": np.int64, "?": np.bool_}
    values = zip(*rows, strict=True) if rows else ([] for _ in columns)
    shapes = ((len(rows), *width) for _, *width in columns)
    return tuple(
        np.array(column, types[kind]).reshape(shape) for column, (kind, *_), shape in zip(values, columns, shapes, strict=True)
    )
