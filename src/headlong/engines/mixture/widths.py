"""What a look's own normalisers are worth, learned from calibration vectors: it decides most rankings of a mixture.

::

    e_k = L_k - L^_k - shift_k                        L^_k: exact rows of component k's list, estimates of all other classes
    |e_k| <= radius_k for all k at once, but for ``rate``                            what log-probabilities may be off
    a pair x, x' stands as L^ + shift has it wherever   |sum_k d_k| > margin * sum_k |d_k|,         but for ``rate``

The estimate of a sum of 30,000 terms is a hundred times better than the sum of their radii says, but only queries can say
so. ``margin`` is learned in the decision's own units: a query's score is the largest relative margin of a pair that the
exact normalisers turn round, 0 where they turn none, and the ``ceil((n + 1) (1 - rate))``-th smallest score of n held-out
queries bounds that of the next (split conformal prediction, as in ``previews/calibrated_radii.py``); twice that is the
margin. Errors that components share turn nothing round, nor do those of components without weight: a box around the
normalisers would charge for both.

All pairs count whose first class is among the first :data:`LARGEST_K`: the margin holds for every k up to that.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headlong.engines.mixture.parts import MixtureParts, QueryCost
from headlong.engines.mixture.ranking import Normalisers, added
from headlong.native import Doubles
from headlong.previews.calibrated_radii import PLENTY
from headlong.previews.failure_rates import conformal, enough

CLOSE = 1e-3
"""Within which normalisers of calibration vectors are computed: by a dense pass in float32."""
TRIED = 256
"""Vectors that shift and scale are taken from."""
LARGEST_K = 16
"""The largest k that a margin is learned for."""
SPARE = 2.0
"""The margin is as many times the bound: the bound alone fails as often as promised, and a wider one costs few dense reads."""
SMALLEST = 1e-6
"""A scale below which a component's errors are all alike."""


class LearnedWidths(NamedTuple):
    """``shift``, ``radius [components]``, ``margin``, and the length of the lists that they were learned with."""

    shift: Doubles
    radius: Doubles
    margin: float
    listed: int

    def around(self, look: Normalisers) -> Normalisers:
        """The look's normalisers where they are likely, and how far they may be off."""
        return Normalisers(look.lse + self.shift, self.radius)


class Rates(NamedTuple):
    """How often the margin and the radii may fail."""

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
    reordered = []
    for n in range(TRIED, len(made)):
        (contexts, prior), (ids, cut, look) = made[n], lists[n]
        box = Normalisers(look.lse + shift, look.radius)
        exponents = parts.exponents(parts.logits(contexts, ids, QueryCost()), prior, box)
        order, edge = np.argsort(-added(exponents), kind="stable"), parts.exponents(cut[:, None], prior, box)
        reordered.append(reordered_by(np.concatenate([exponents[:, order], edge], axis=1), errors[n], unsure[n]))
    return LearnedWidths(shift, conformal(far, rates.values) * scale, SPARE * conformal(np.array(reordered), rates.ids), count)


def reordered_by(exponents: Doubles, errors: Doubles, unsure: Doubles) -> float:
    """The largest relative margin of a pair that normalisers off by ``errors``, give or take ``unsure``, turn round.

    ``exponents [components, m]``  of classes in the order that the look has them in, the edge of its lists last
    """
    first, last = exponents[:, :LARGEST_K, None], exponents[:, None, :]
    unit = np.maximum(first, last).max(axis=0)
    unit[unit == -np.inf] = 0.0
    gaps = np.exp(first - unit) - np.exp(last - unit)
    low, high = (np.exp(-errors + sign * unsure)[:, None, None] for sign in (-1, 1))
    least = np.where(gaps > 0, low * gaps, high * gaps).sum(axis=0)
    size = np.maximum(np.abs(gaps).sum(axis=0), 1e-300)
    later = np.arange(gaps.shape[2]) > np.arange(gaps.shape[1])[:, None]
    return float(np.max((gaps.sum(axis=0) / size)[later & (least < 0)], initial=0.0))
