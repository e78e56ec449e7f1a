"""How far the estimates of many classes are off together: the NumPy twin of ``csrc/normaliser/joint_error.cpp``.

    q_i = exp(est_i),  ‖errors of all classes as one vector‖ <= A,  |what else class i is off| <= β_i,  |both| <= r_i:
    -F <= sum exp z_i - sum q_i <= F + G,   F = ‖q‖ A + sum q_i β_i,   G = max(q_i φ(r_i)) (A + ‖β‖)²

with ``φ(r) = (e^r - 1 - r) / r²``, for any set of classes of which only level 0 was read: here the
lightest ones, as many of them as make the bounds closest.
"""

from __future__ import annotations

import math

import numpy as np

from headlong.engines.reference.query import Doubles, Ids, Query, query_half
from headlong.plan import slack_rows

WIDEST = 60.0
"""Classes that may be off by more are read further."""
CUTS = 64
"""Numbers of heaviest classes that are tried to be left out."""


def closest(query: Query, ids: Ids, low: Doubles, high: Doubles, shift: float) -> tuple[float, float]:
    """No more and no less than ``sum exp(z - shift)`` over ``ids``, whose ends are ``low`` and ``high``, class by class."""
    bottom, top = float(low.sum()), float(high.sum())
    link, plan = query.matrix.link, query.matrix.plan
    known = plan.levels and any(term.together > 0 for term in plan.levels[0].terms)
    form, slope = link.lowered()[:2]
    among = np.flatnonzero((query.depth[ids] == 1) & (query.radius[ids] * slope < WIDEST))
    if not known or form != "affine" or not len(among):
        return bottom, top
    with np.errstate(over="ignore"):
        mass = np.exp(link(query.estimate[ids[among]]) - shift)
    order = among[np.argsort(-high[among], kind="stable")]
    mass = mass[np.argsort(-high[among], kind="stable")]
    length, others = apart(query, ids[order])
    length, others, reach = length * slope, others * slope, query.radius[ids[order]] * slope
    for out in np.unique(np.geomspace(1, len(order), CUTS).astype(np.int64)) - 1:
        q, b, r = mass[out:], others[out:], reach[out:]
        first = math.sqrt(float(q @ q)) * length + float(q @ b)
        with np.errstate(over="ignore"):
            bent = float((q * _phi(r)).max()) * (length + float(np.linalg.norm(b))) ** 2
        rest_low, rest_high = float(low[order[out:]].sum()), float(high[order[out:]].sum())
        total, rounding = float(q.sum()), 1e-12 * float(q.sum())
        bottom = max(bottom, float(low.sum()) - rest_low + total - first - rounding)
        top = min(top, float(high.sum()) - rest_high + total + first + bent + rounding)
    return bottom, top


def apart(query: Query, ids: Ids) -> tuple[float, Doubles]:
    """``A``, and what each class may be off beside: the radius without the terms that A is for."""
    level, halves = query.matrix.plan.levels[0], query.halves
    assert level.slack is not None
    length, sums = 0.0, np.zeros(len(level.slack))
    split = {term[1:3] for term in level.terms if term.kind == "rest" and term.together > 0}
    for term, row in zip(level.terms, slack_rows(level.terms), strict=True):
        if term.together > 0:
            length += term.together * float(np.linalg.norm(halves.x[term.start : term.stop]))
        elif term.kind != "peaks" or term[1:3] not in split:
            sums[row] += term.factor * query_half(term, halves)
    others = np.zeros(len(ids))
    for slack, half in zip(level.slack, sums, strict=True):
        if half > 0:  # an infinite slack times nothing is nothing
            others += slack[ids].astype(np.float64) * half
    return length, others + query.rounding[ids]


def _phi(radius: Doubles) -> Doubles:
    """``(e^r - 1 - r) / r²``, and no less where float64 could not tell."""
    series = 0.5 + radius * (1 / 6 + radius / 24) + radius**3 / 120 * np.exp(radius)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(radius < 0.1, series, (np.expm1(radius) - radius) / radius**2 * (1 + 1e-9))
