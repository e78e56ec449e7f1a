"""What a look's own normalisers are worth, learned from calibration vectors: it decides most rankings of a mixture.

::

    e_k = L_k - L^_k - shift_k                        L^_k: exact rows of component k's list, estimates of all other classes
    |e_k| <= radius_k for all k at once, but for ``rate``                            what log-probabilities may be off
    the k best stand as L^ + shift has them where its closest pair has     |sum_k d_k| >= margin_k * sum_k |d_k|
    loss(q, k, margin) = they stand, and are not the k best of the exact normalisers in their order
    margin_k = the least that keeps the loss at ``rate``                   (conformal_bounds.controlled)

The estimate of a sum of 30,000 terms is a hundred times better than the sum of their radii says, but only queries can say
so. Margins are learned in the decision's own units, from the answer: a held-out query's score is the margin of the closest pair
of its k best where these are wrong, and 0 where they are right. Errors that components share turn nothing round, nor do
those of components without weight: a box around the normalisers would charge for both.

Each k up to :data:`LARGEST_K` has a margin of its own, and the rate holds for each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headlong.engines.mixture.parts import MixtureParts, QueryCost
from headlong.engines.mixture.ranking import Normalisers, added
from headlong.native import Doubles
from headlong.previews.conformal_bounds import conformal, enough, least_margin

CLOSE = 1e-3
"""Within which normalisers of calibration vectors are computed: by a dense pass in float32."""
TRIED = 256
"""Vectors that shift and scale are taken from."""
LARGEST_K = 16
"""The largest k that margins are learned for."""
PLENTY = 4
"""Times the fewest queries that the rates take: each reads the layer."""
SMALLEST = 1e-6
"""A scale below which a component's errors are all alike."""


class LearnedWidths(NamedTuple):
    """``shift``, ``radius [components]``, ``margins [LARGEST_K]``, and the length of the lists that they were learned with."""

    shift: Doubles
    radius: Doubles
    margins: Doubles
    listed: int

    def around(self, look: Normalisers) -> Normalisers:
        """The look's normalisers where they are likely, and how far they may be off."""
        return Normalisers(look.lse + self.shift, self.radius)


class Rates(NamedTuple):
    """How often margins and the radii may fail."""

    ids: float
    values: float

    @property
    def fewest(self) -> int:
        """Held-out vectors that this takes, those for shift and scale included."""
        return max(enough(self.ids), enough(self.values)) + TRIED

    @property
    def plenty(self) -> int:
        """More of them hardly narrow anything."""
        return PLENTY * max(enough(self.ids), enough(self.values)) + TRIED


def learned_widths(parts: MixtureParts, held: Doubles, rates: Rates, count: int) -> LearnedWidths:
    """From looks at ``held [n, dim]``, whose lists are of ``count`` classes, beside exact normalisers."""
    made = [parts.contexts(row) for row in held]
    lists = [parts.rankings(contexts, count, np.inf, 0.0, QueryCost()) for contexts, _ in made]
    exact = parts.densely(np.concatenate([contexts for contexts, _ in made]), CLOSE)
    errors = exact.lse.reshape(len(made), -1) - np.stack([look.lse for _, _, look in lists])
    unsure = exact.radius.reshape(errors.shape)
    shift = np.median(errors[:TRIED], axis=0)
    errors -= shift
    scale = np.maximum(np.quantile(np.abs(errors[:TRIED]), 0.9, axis=0), SMALLEST)
    far = ((np.abs(errors) + unsure) / scale).max(axis=1)[TRIED:]
    scores = np.zeros((len(made) - TRIED, LARGEST_K))
    for n in range(TRIED, len(made)):
        (contexts, prior), (ids, cut, look) = made[n], lists[n]
        box = Normalisers(look.lse + shift, look.radius)
        exponents = parts.exponents(parts.logits(contexts, ids, QueryCost()), prior, box)
        order, edge = np.argsort(-added(exponents), kind="stable"), parts.exponents(cut[:, None], prior, box)
        scores[n - TRIED] = wrong_by(np.concatenate([exponents[:, order], edge], axis=1), errors[n], unsure[n])
    margins = np.array([least_margin(column, rates.ids) for column in scores.T])
    return LearnedWidths(shift, conformal(far, rates.values) * scale, margins, count)


def wrong_by(exponents: Doubles, errors: Doubles, unsure: Doubles) -> Doubles:
    """``[LARGEST_K]``: the relative margin of the closest pair that the k best rest on, where normalisers off by ``errors``,
    give or take ``unsure``, turn any pair of theirs round; 0 where they turn none.

    ``exponents [components, m]``  of classes in the order that the look has them in, the edge of its lists last
    """
    first, last = exponents[:, :LARGEST_K, None], exponents[:, None, :]
    unit = np.maximum(first, last).max(axis=0)
    unit[unit == -np.inf] = 0.0
    gaps = np.exp(first - unit) - np.exp(last - unit)
    low, high = (np.exp(-errors + sign * unsure)[:, None, None] for sign in (-1, 1))
    least = np.where(gaps > 0, low * gaps, high * gaps).sum(axis=0)
    margin = gaps.sum(axis=0) / np.maximum(np.abs(gaps).sum(axis=0), 1e-300)
    later = np.arange(gaps.shape[2]) > np.arange(gaps.shape[1])[:, None]
    wrong = np.logical_or.accumulate((later & (least < 0)).any(axis=1))
    nearest = np.where(later, margin, np.inf).min(axis=1)  # of the k-th and all later ones
    next_one = np.minimum.accumulate(np.append(np.inf, np.diagonal(margin, 1)))[: len(wrong)]  # of neighbours before it
    found = np.zeros(LARGEST_K)
    found[: len(wrong)] = np.where(wrong, np.maximum(np.minimum(nearest, next_one), 0.0), 0.0)
    return found
