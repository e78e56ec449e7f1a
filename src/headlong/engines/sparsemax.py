"""Sparse distributions of a finished layer, exact from its top-k alone: the support is a prefix of the ranking.

::

    sparsemax   p = max(f - tau, 0)            1 + j f_(j) > sum_{i <= j} f_(i)  for the support;  tau = (sum - 1) / size
    entmax-1.5  p = max(f / 2 - tau, 0)^2      tau_j = m_j - sqrt((1 - S_j) / j) <= f_(j) / 2,  m_j, S_j mean and scatter

``f = link(z)`` in descending order. No other family of normalisers needs no sum over all classes: once the k-th logit is
not in the support, no class behind it is, so the answer of a top-k that is proved is the whole distribution. Sparsemax:
Martins and Astudillo 2016; entmax: Peters, Niculae and Martins 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headlong.arrays import Array, answer_as, form_of
from headlong.engines.adapting import Adapting
from headlong.engines.base import Engine
from headlong.errors import InputError, named
from headlong.native import Doubles
from headlong.number_checks import whole


class Sparse(NamedTuple):
    """``probs, ids [batch, width]`` in descending order, rows that end early filled with 0 and -1; ``tau, proved [batch]``."""

    probs: Any
    ids: Any
    tau: Any
    proved: Any


def sparsemax(engine: Engine, hidden: Any, k: int = 32) -> Sparse:
    """The sparsemax of ``link(z)`` of each row of ``hidden [batch, dim]``; ``k``: how many classes are read first."""
    return _sparse(engine, hidden, k, sparsemax_of)


def entmax15(engine: Engine, hidden: Any, k: int = 32) -> Sparse:
    """The same with entmax-1.5."""
    return _sparse(engine, hidden, k, entmax15_of)


def sparsemax_of(f: Doubles) -> tuple[Doubles, Doubles]:
    """``p [batch, k], tau [batch]`` of ``f [batch, k]`` in descending order, as if nothing came behind."""
    count = np.arange(1, f.shape[1] + 1)
    sums = np.cumsum(f - f[:, :1], axis=1)  # sparsemax does not see a shift; sums of huge logits would lose their digits
    inside = (1 + count * (f - f[:, :1]) > sums).sum(axis=1)
    tau = (np.take_along_axis(sums, inside[:, None] - 1, 1)[:, 0] - 1) / inside
    return np.maximum(f - f[:, :1] - tau[:, None], 0.0), tau + f[:, 0]


def entmax15_of(f: Doubles) -> tuple[Doubles, Doubles]:
    """``p [batch, k], tau [batch]``, tau in units of ``f / 2``."""
    x = (f - f[:, :1]) / 2
    count = np.arange(1, f.shape[1] + 1)
    mean, square = np.cumsum(x, axis=1) / count, np.cumsum(x * x, axis=1) / count
    taus = mean - np.sqrt(np.maximum((1 - count * (square - mean * mean)) / count, 0.0))
    inside = np.maximum((taus <= x).sum(axis=1), 1)
    tau = np.take_along_axis(taus, inside[:, None] - 1, 1)[:, 0]
    return np.maximum(x - tau[:, None], 0.0) ** 2, tau + f[:, 0] / 2


def _sparse(engine: Engine, hidden: Any, k: int, rule: Callable[[Doubles], tuple[Doubles, Doubles]]) -> Sparse:
    if not isinstance(engine, (Engine, Adapting)):
        raise InputError(f"engine is {named(engine)}; expected one over a single matrix, from headlong.compile")
    k = min(whole(k, "k", 1, 2**62), engine.layer.vocab)
    rows = np.asarray(hidden).astype(np.float64)
    while True:
        top = engine.topk(rows, k, eps=np.inf)
        probs, tau = rule(engine.layer.link(top.logits)) if len(rows) else (np.zeros((0, k)), np.zeros(0))
        if k == engine.layer.vocab or not (probs[:, -1:] > 0).any():
            break
        k = min(2 * k, engine.layer.vocab)  # the support may go on: look further
    width = max(1, int((probs > 0).sum(axis=1).max(initial=1)))
    ids: Array = np.where(probs[:, :width] > 0, top.ids[:, :width], -1)
    return answer_as(Sparse(np.ascontiguousarray(probs[:, :width]), ids, tau, top.proved), form_of(hidden))
