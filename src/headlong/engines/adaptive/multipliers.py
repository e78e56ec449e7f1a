"""The published multipliers of variances, fitted on calibration vectors, and answers judged by the paper's rule.

    success = the argmax is right and |p^ - p| / p <= eps
    f       = the smallest of 10^-6 .. 1 with   #failures(f) <= floor(delta n)           bisection in log10 f, to 0.01

The published guarantee is for f = 1; the published gains are for fitted multipliers, which is calibration without its
correction (``clopper_pearson.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headlong import native
from headlong.engines.adaptive.columns import Arrays
from headlong.engines.adaptive.published import Rules
from headlong.engines.adaptive.reader import PublishedReader
from headlong.engines.few_allowed_classes import lse_of
from headlong.engines.method import EngineParts
from headlong.engines.reference.executor import Executor as Reference
from headlong.engines.reference.query import Doubles, Ids, Matrix
from headlong.layers.matrix import Layer
from headlong.plan import Dense, Plan
from headlong.promise import Promise

TUNED_ON = 400
"""The most queries that multipliers are fitted on. The paper has 200, which cannot show a failure rate of 1 %."""
NOTHING = 1e-20
"""A multiplier with which every variance is small enough."""
LOWEST, STEP = -6.0, 0.01
"""Of log10 f: where it starts, and how closely it is found."""


def failed(values: Doubles, ids: Ids, lse: Doubles, exact: Doubles, eps: float | None) -> NDArray[np.bool_]:
    """Rows whose argmax is wrong or, with ``eps``, whose probability is off by more than that, relatively: the paper's rule."""
    best = exact.argmax(axis=1)
    wrong = ids[:, 0] != best
    if eps is None:
        return np.asarray(wrong)
    true = exact.max(axis=1) - lse_of(exact)
    with np.errstate(over="ignore"):
        return np.asarray(wrong | (np.abs(np.expm1(values[:, 0] - lse - true)) > eps))


def parts_for(layer: Layer, arrays: Arrays) -> EngineParts:
    """An engine's parts before there is an engine."""
    plan = Plan(None, None, None, None, (), None, Dense(), arrays)
    norms, level = native.row_norms(layer.weight), native.isa()
    rows: native.Executor = (
        Reference(Matrix(layer.weight, layer.bias, norms, layer.link, plan))
        if level == native.REFERENCE
        else native.executor(layer.weight, layer.bias, norms, layer.link.lowered(), plan, level)
    )
    return EngineParts(layer, plan, norms, Promise(math.inf, 1.0, 1.0), 0, rows)


def fit_multipliers(
    parts: EngineParts, calibration: Doubles, rules: Rules, given: tuple[float | None, float | None], share: float = 1.0
) -> tuple[float, float]:
    """``(arm, sum)`` on the first 400 calibration vectors: for the argmax first, then for the whole search given that.

    The argmax's multiplier is fitted on a race of its own: a warm-up that any variance satisfies ends where a race starts.
    ``share`` of the failures that are allowed is what the argmax may use up; the paper's 1 often leaves none for the rest.
    """
    hidden = np.ascontiguousarray(calibration[:TUNED_ON])
    reader = PublishedReader(parts, rules)
    layer = parts.layer
    every = np.broadcast_to(np.arange(layer.vocab), (len(hidden), layer.vocab))
    exact = np.asarray(layer.link(parts.rows.logits(hidden, np.ascontiguousarray(every), native.threads(None))))
    allowed = math.floor(rules.delta * len(hidden))

    def failures(arm: float, total: float | None, eps: float | None) -> int:
        how = rules._replace(arm=arm, sum=NOTHING, warm=1.0) if total is None else rules._replace(arm=arm, sum=total)
        values, ids, lse, *_ = reader.search(hidden, 1, None, native.threads(None), how)
        return int(failed(values, ids, lse, exact, eps).sum())

    arm = fitted(lambda f: failures(f, None, None), math.floor(share * allowed)) if given[0] is None else given[0]
    total = fitted(lambda f: failures(arm, f, rules.eps), allowed) if given[1] is None else given[1]
    return arm, total


def fitted(failures: Callable[[float], int], allowed: int) -> float:
    """The smallest multiplier with at most ``allowed`` failures; 1 where even that has more."""
    low, high = LOWEST, 0.0
    if failures(10.0**low) <= allowed:
        return float(10.0**low)
    if failures(1.0) > allowed:
        return 1.0
    while high - low > STEP:
        middle = (low + high) / 2
        if failures(10.0**middle) <= allowed:
            high = middle
        else:
            low = middle
    return float(10.0**high)
