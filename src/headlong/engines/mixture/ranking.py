"""Which class of a mixture comes before which, when normalisers are known within a box.

::

    d_k = pi_k (e^f(z_kx) - e^f(z_kx')) e^-L_k             x before x' for every L within r of the middle
    iff  sum_k d_k exp(-r_k sign d_k) >= 0                 which is so, to first order, where sum |d_k| r_k <= sum d_k

Plain arithmetic on one query's classes; what is read to get them is the engine's business (``engine.py``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headlong.dtypes import Doubles, Flags, Ids


class Normalisers(NamedTuple):
    """``lse [components]`` within ``radius``."""

    lse: Doubles
    radius: Doubles


class Ranking(NamedTuple):
    """Classes by their probability at the middle of the box, equals by id.

    ``order [m]`` of the columns that came, ``total [m]`` their log-probabilities in it; ``pairs [components, m]`` the ``d_k``
    of neighbours among the first k, then of the k-th and every later class, and last of the k-th and one that is not there;
    each pair in units of its own larger side, so that none is too small for a float.
    """

    order: Ids
    total: Doubles
    pairs: Doubles


class Doubts(NamedTuple):
    """``pairs``: one may stand the other way round; ``unseen``: a class that is not there may come before the k-th, and
    ``hopeless``: even with normalisers at the middle.
    """

    pairs: bool
    unseen: bool
    hopeless: bool


def ranked(exponents: Doubles, edge: Doubles, ids: Ids, k: int) -> Ranking:
    """``exponents [components, m]``: ``f(z) + log pi - L`` at the middle; ``edge [components]``: the most of other classes."""
    total = added(exponents)
    order = np.asarray(np.lexsort((ids, -total)))
    ordered = np.concatenate([exponents[:, order], edge[:, None]], axis=1)
    last = min(k, len(order)) - 1
    before = np.minimum(np.arange(len(order)), last)
    first, second = ordered[:, before], ordered[:, 1:]
    unit = np.maximum(first.max(axis=0), second.max(axis=0))
    unit[unit == -np.inf] = 0.0
    return Ranking(order, total[order], np.exp(first - unit) - np.exp(second - unit))


def doubts(pairs: Doubles, radius: Doubles) -> Doubts:
    """What the box leaves open of :attr:`Ranking.pairs`."""
    sure = ahead(pairs, radius)
    if sure.all():
        return Doubts(False, False, False)
    return Doubts(not sure[:-1].all(), not bool(sure[-1]), bool(pairs[:, -1].sum() < 0))


def ahead(gap: Doubles, radius: Doubles) -> Flags:
    """Column by column of ``gap [components, m]``: its sum is 0 or more wherever in the box the normalisers lie."""
    with np.errstate(over="ignore", invalid="ignore"):
        worst = np.where(gap > 0, np.exp(-radius)[:, None], np.exp(radius)[:, None]) * gap
    if not np.isfinite(worst).all():
        worst = np.where(gap == 0, 0.0, worst)
    return np.asarray(worst.sum(axis=0) >= 0)


def added(exponents: Doubles) -> Doubles:
    """``log p`` of each column of ``exponents [components, m]``, however small."""
    peak = exponents.max(axis=0)
    peak[peak == -np.inf] = 0.0
    with np.errstate(divide="ignore"):
        return np.asarray(peak + np.log(np.exp(exponents - peak).sum(axis=0)))
