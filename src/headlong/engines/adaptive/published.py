"""AdaptiveSoftmax as published (Baharav, Tiwari, Singh, Zhang, NeurIPS 2024), one query, counted by its own rule.

::

    1  warm-up     all classes together to variance 1 / (17 L), at most ``warm`` of the coordinates      L = ln(6 V / delta')
    2  best arm    goes on from there, in rounds of half the variance; a class stays while
                   estimate + ci >= best estimate - its ci,  ci = sqrt(2 var ln(6 V ln(D) / delta'))
    3  its logit   exactly, or to variance eps'^2 / (32 ln(2 / delta'))
    4  normaliser  every class to the variance that its weight asks for; logsumexp of the estimates

    delta' = delta / 2 (exact) or delta / 3;  eps' = eps or eps / 4

One state of samples for a query: no stage starts anew. The weights of 4 come from the samples as they are after 3, so
beside a winner that was scored exactly all others weigh what the lower ends of their intervals say.

Coordinates are read in one order per query, ``descending ln(share) + Gumbel``, and a class's estimate is that of its
prefix. Measured, not trusted: variances are estimated from the same few draws without an allowance, and ranks 2..k are
whatever was left. ``arm`` and ``sum`` are the published multipliers on all variances, fitted until the failure rate is
met (``multipliers.py``); 1 is the theory. The paper ignores a bias; here it joins the estimates, which costs nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.engines.adaptive.variance import chances
from headlong.engines.reference.gumbel import gumbels
from headlong.native import Doubles

Ids = NDArray[np.int64]
FIRST_SAMPLES, GROWTH = 16, 1.5
DRAW = 0
"""The draw number of the noise that orders coordinates; the row number is the query's content."""


class Rules(NamedTuple):
    """``eps`` relative; ``warm`` f0; ``exact``: score the winners; ``importance``: read heavy columns first.

    ``arm``, ``sum``  the multipliers;  ``bound``  the variance of a pull, where it is known (no importance sampling)
    """

    eps: float = 0.3
    delta: float = 0.1
    warm: float = 0.1
    exact: bool = True
    importance: bool = True
    arm: float = 1.0
    sum: float = 1.0
    bound: float = 0.0


class Outcome(NamedTuple):
    """``ids`` by estimate, their ``values``, ``lse``; ``pulls`` of all classes, and how many a full read takes."""

    ids: Ids
    values: Doubles
    lse: float
    pulls: int
    full: int
    estimates: Doubles


def order_of(x: Doubles, weights: Doubles, seed: int, row: int) -> tuple[Ids, Doubles, Doubles]:
    """``(coordinates, their log shares, their keys)`` by descending key; coordinates of no weight are left out."""
    heavy = weights * np.abs(x)
    live = np.flatnonzero(heavy > 0)
    if not len(live):
        return live, np.empty(0), np.empty(0)
    shares = np.log(heavy[live]) - math.log(heavy[live].sum())
    keys = shares + gumbels(seed, row, DRAW, live)
    order = np.argsort(-keys, kind="stable")
    return live[order], shares[order], keys[order]


class PublishedSearch:
    """The state of one query: of every class the length of its prefix, its estimate and its variance.

    ``columns [dim, vocab]``; ``x [dim]`` holds the temperature already; ``base [vocab]`` joins every estimate.
    """

    def __init__(self, columns: NDArray[np.float32], base: Doubles, x: Doubles, order: tuple[Ids, Doubles, Doubles]) -> None:
        self.columns, self.base, self.x = columns, base, x
        self.ids, self.shares, self.keys = order
        vocab = columns.shape[1]
        self.size = len(self.ids)
        """Coordinates that can be drawn: D_eff."""
        self.bound = 0.0
        self.pulls, self.estimate = np.zeros(vocab, np.int64), base.copy()
        self.variance = np.full(vocab, np.inf if self.size else 0.0)

    def pull(self, arms: Ids, m: int) -> None:
        """The first ``m`` coordinates of ``arms``."""
        part = self.ids[:m]
        terms = self.columns[np.ix_(part, arms)].astype(np.float64) * self.x[part, None]
        if self.bound:
            total = self.size / m * terms.sum(axis=0)
            variance = np.full(len(arms), self.bound / m if m < self.size else 0.0)
        else:
            q = chances(self.shares[:m], self.keys[m] if m < self.size else -math.inf)
            total = (terms / q[:, None]).sum(axis=0)
            variance = (terms * terms).T @ ((1 - q) / q**2)
        self.estimate[arms] = self.base[arms] + total
        self.variance[arms] = variance
        self.pulls[arms] = m

    def together(self, arms: Ids, target: float, multiplier: float, most: int) -> None:
        """All of ``arms`` to the same prefix, until each one's variance is at most ``target``."""
        m = int(self.pulls[arms].max(initial=0))
        while m < most and multiplier * float(self.variance[arms].max()) > target:
            m = following(m, most)
            self.pull(arms, m)

    def each(self, arms: Ids, targets: Doubles, multiplier: float) -> None:
        """Each of ``arms`` to its own target."""
        while True:
            short = (multiplier * self.variance[arms] > targets) & (self.pulls[arms] < self.size)
            if not short.any():
                return
            m = int(self.pulls[arms[short]].min())
            self.pull(arms[short & (self.pulls[arms] == m)], following(m, self.size))


def following(m: int, most: int) -> int:
    """The next prefix: 16, then half as much again."""
    return min(most, max(FIRST_SAMPLES, math.ceil(GROWTH * m)))


def answer(search: PublishedSearch, rules: Rules, k: int, exact: Doubles | None, live: Ids, width: float) -> Outcome:
    """The four stages. ``exact [vocab]``: the logits the winners are scored from; ``width``: the first variance tried."""
    stage = rules.delta / (2 if rules.exact else 3)
    eps = rules.eps if rules.exact else rules.eps / 4
    search.bound = rules.bound
    log_classes = math.log(6 * len(live) / stage)
    most = min(search.size, max(1, int(rules.warm * search.size)))
    search.together(live, 1 / (17 * log_classes), rules.sum, most)
    best = best_arms(search, rules, k, live, width, stage)
    if rules.exact:
        assert exact is not None
        search.estimate[best], search.variance[best], search.pulls[best] = exact[best], 0.0, search.size
    else:
        search.together(best, eps**2 / (32 * math.log(2 / stage)), rules.sum, search.size)
    refine(search, rules, live, log_classes, stage)
    best = best[np.argsort(-search.estimate[best], kind="stable")]
    peak = float(search.estimate[live].max())
    lse = peak + math.log(float(np.exp(search.estimate[live] - peak).sum()))
    pulls = int(search.pulls[live].sum())
    return Outcome(best, search.estimate[best], lse, pulls, len(live) * search.size, search.estimate)


def best_arms(search: PublishedSearch, rules: Rules, k: int, live: Ids, width: float, stage: float) -> Ids:
    """Round-based elimination (Hillel et al., 2013) against the best class's lower end; ``k`` of the last survivors."""
    logs = math.log(6 * len(live) * max(math.log(max(search.size, 2)), 1.0) / stage)
    target = (rules.bound or width) / 4
    while len(live) > k:
        search.together(live, target, rules.arm, search.size)
        half = np.sqrt(2 * rules.arm * search.variance[live] * logs)
        best = int(np.argmax(search.estimate[live]))
        keep = search.estimate[live] + half >= search.estimate[live[best]] - half[best]
        if keep.sum() <= k or search.pulls[live].min() >= search.size:
            break
        if keep.all() and not search.variance[live].any():  # ties, of rows that are 0 so far
            break
        live = live[keep]
        target /= 2
    return live[np.argsort(-search.estimate[live], kind="stable")[:k]]


def refine(search: PublishedSearch, rules: Rules, live: Ids, log_classes: float, stage: float) -> None:
    """Every class to ``min(sum(gamma) / (c1 gamma_i), sum(alpha) / (c2 alpha_i))``, weights from lower ends as they are now."""
    low = search.estimate[live] - np.sqrt(2 * log_classes * rules.sum * search.variance[live])
    low = low - low.max()
    alpha, gamma = np.exp(low), np.exp(low / 2)
    second = 16 * math.sqrt(2) * log_classes / rules.eps * gamma.sum() ** 2 / alpha.sum()
    first = 16 * math.log(12 / stage) / rules.eps**2
    with np.errstate(divide="ignore", over="ignore"):  # next to no mass: no limit on its variance
        targets = np.minimum(gamma.sum() / (second * gamma), alpha.sum() / (first * alpha))
    search.each(live, targets, rules.sum)
