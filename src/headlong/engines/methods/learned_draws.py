"""What calibration vectors teach of the rows that a normaliser takes: a plan's ``draws``, tried on what will draw.

Both ways to ask are tried on every vector: for the normaliser alone, and for the best ids too, which are scored before anything
is drawn. Each has a number of its own, and the rate holds for each by itself: who only ever asks one way has that one. Fewer
ids than were tried take the larger number of the two. Beside ids it is no smaller than alone: where hardly any query draws
beside them, next to nothing would keep the rate, and those that do draw would be far off.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.engines.reference.executor import Executor as Reference
from headlong.engines.reference.query import Matrix, Query
from headlong.layers.matrix import Layer
from headlong.links import Link
from headlong.native import Doubles
from headlong.plan import TAUGHT, Draws, Plan
from headlong.previews.int8 import logits_of
from headlong.previews.learned_draw_counts import Trial, first_spend, learned_spends
from headlong.promise import Promise

JUDGES, CHOOSERS = 8, 256
"""Vectors that say what is typical of a radius, and that say which spends are worth trying."""
CLOSER = 1024
"""Classes that a deeper level is judged by."""
START, LEAST = 0.1, 1e-4
"""Of a radius: the first guess at what is typical, and the least."""


def taught(layer: Layer, plan: Plan, promise: Promise, chosen_by: Doubles, bounded_by: Doubles, threads: int) -> Plan:
    """``plan`` with what the vectors teach about its normaliser; as it is where nothing tried would hold, or one came."""
    if not len(chosen_by):
        return plan
    norms = native.row_norms(layer.weight, threads)
    matrix = Matrix(layer.weight, layer.bias, norms, layer.link, plan)
    narrow = typical(matrix, logits_of(layer, chosen_by[:JUDGES], threads), chosen_by[:JUDGES])
    draws = Draws(promise.eps, first_spend(promise.delta), narrow)
    matrix = matrix._replace(plan=plan._replace(draws=draws))
    level = native.isa()
    teacher: native.Teacher = (
        Reference(matrix)
        if level == native.REFERENCE
        else native.executor(layer.weight, layer.bias, norms, layer.link.lowered(), matrix.plan, level)
    )
    few = chosen_by[:: -(-len(chosen_by) // CHOOSERS)]
    ways = [0, min(TAUGHT, layer.vocab)]
    trial = _trial(teacher, ways, promise.eps, threads)
    spends = learned_spends(trial, len(ways), few, bounded_by, promise.eps, promise.delta)
    return plan if spends is None else plan._replace(draws=draws._replace(spend=spends[0], beside=max(spends)))


def _trial(teacher: native.Teacher, ways: list[int], eps: float, threads: int) -> Trial:
    """How far the executor's estimates are off, asked in either way."""

    def trial(hidden: Doubles, spends: list[list[float]], tries: int) -> list[Doubles]:
        found = teacher.try_draws(np.ascontiguousarray(hidden), ways, eps, spends, tries, threads, 0)
        return np.split(found, np.cumsum([len(some) for some in spends])[:-1], axis=1)

    return trial


def typical(matrix: Matrix, logits: Doubles, vectors: Doubles) -> tuple[float, ...]:
    """The share of each level's radius for which ``X = (term - middle) / gap`` has a mean square of one."""
    found = np.full(len(matrix.plan.levels), START)
    live = np.ones(len(matrix.weight), bool)
    squares: list[list[float]] = [[] for _ in found]
    for z, hidden in zip(logits, vectors, strict=True):
        query, some = Query(matrix, hidden, live), np.arange(len(live))
        for depth in range(len(found)):
            query.look(some)
            estimate, radius = query.estimate[some], query.radius[some]
            usable = np.isfinite(radius) & (radius > 0)
            some, estimate, radius = some[usable], estimate[usable], radius[usable]
            if not len(some):
                break
            square, order = used(matrix.link, z[some], estimate, radius)
            squares[depth].append(square)
            some = some[order[:CLOSER]]
    return as_shares(squares)


def used(link: Link, z: Doubles, estimate: Doubles, radius: Doubles) -> tuple[float, NDArray[np.int64]]:
    """``mean ((z - estimate) / radius)^2`` of classes drawn in proportion to their gaps, and all of them by falling gaps."""
    f, g = link(z), link(estimate)
    gap = np.exp(np.minimum(g - f.max(), 50.0)) * np.expm1(np.minimum(START * radius, 50.0))
    order = np.argsort(-gap)
    tail = order[min(len(order) // 8, 4 * TAUGHT) :]  # the widest are scored, not drawn
    share = gap[tail] / max(float(gap[tail].sum()), 1e-300)
    return float((share * ((z - estimate)[tail] / radius[tail]) ** 2).sum()), order


def as_shares(squares: list[list[float]]) -> tuple[float, ...]:
    """The root of the mean of each list, where there is anything in it."""
    return tuple(float(np.clip(np.sqrt(np.mean(each or [START**2])), LEAST, 1.0)) for each in squares)
