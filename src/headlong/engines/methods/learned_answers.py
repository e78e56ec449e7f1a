"""How narrow a search's radii may be made when only the answer has to be right, learned from queries: blocks and races.

    loss(q, k, f) = any of the k best that the search with radii times f finds is wrong
    for each k of ASKED the least f before the first, from the largest on, whose losses do not show a rate of at most delta
    (conformal_bounds.controlled)

Bounds that are too low for some class do no harm where the class is not among the best, or is found beside another. A call for
another k is answered by the next larger k of ASKED: its first k are right where all of them are. Some queries choose which
factors are tried, others bound how often each is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headlong import native
from headlong.arrays import Array
from headlong.engines.promise_failures import tied
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.previews.conformal_bounds import allowed, controlled, enough
from headlong.previews.int8 import logits_of

ASKED = (1, 10, 64)
FACTORS = (1.0, 0.8, 0.7, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1)
"""Factors that are tried on the vectors that choose."""
AROUND = (1.5, 1.2, 1.1, 1.0, 0.93, 0.87)
"""Factors that are tried on those that bound, in units of what was chosen."""
CHOOSERS, PLENTY, LEAST = 500, 4, 3000
"""Vectors that choose; of those that bound: so many times the fewest, and no fewer than these where they are there."""

Find = Callable[[Doubles, int, float], tuple[Array, Array]]
"""``(hidden, k, factor) -> the logits found [n, k], whether the search was not given up [n]``; at 1 stands the proof."""
Learned = tuple[tuple[int, float], ...]
"""``(k, factor)`` with k rising."""


def answer_factors(layer: Layer, find: Find, chosen_by: Doubles, bounded_by: Doubles, delta: float, threads: int) -> Learned:
    """``(k, f)`` for each k of ASKED, f at most 1."""
    few = choosers(chosen_by)
    least = 0 if native.isa() == native.REFERENCE else LEAST  # it is asked for to be read, not to be fast
    many = np.ascontiguousarray(bounded_by[-max(least, PLENTY * enough(delta)) :])
    asked = tuple(k for k in ASKED if k <= layer.vocab)
    exact = [best(layer, find, hidden, asked[-1], threads) for hidden in (few, many)]
    found = []
    for k in asked:
        likely = likely_factor(find, few, exact[0][:, :k], k, allowed(len(many), delta))
        found.append((k, _kept(find, many, exact[1][:, :k], k, likely, delta)))
    return tuple(found)


def choosers(vectors: Doubles) -> Doubles:
    """Some of the vectors, evenly."""
    return np.ascontiguousarray(vectors[:: -(-len(vectors) // CHOOSERS)])


def likely_factor(find: Find, few: Doubles, truth: Array, k: int, rate: float) -> float:
    """About the least of :data:`FACTORS` that fails at this rate, by halving: a guess of where to look."""
    low, high = 0, len(FACTORS)
    while high - low > 1:
        middle = (low + high) // 2
        if missed(find, few, truth, k, FACTORS[middle]).mean() <= rate:
            low = middle
        else:
            high = middle
    return FACTORS[low]


def _kept(find: Find, many: Doubles, truth: Array, k: int, likely: float, delta: float) -> float:
    """The least factor around ``likely`` that shows a rate of at most delta, the safest tried first; 1 where none does."""
    losses: list[Array] = []
    least = 1.0
    for factor in sorted({min(1.0, likely * part) for part in AROUND}, reverse=True):
        losses.append(missed(find, many, truth, k, factor))
        if controlled(np.stack(losses, axis=1), delta) != len(losses) - 1:
            break  # what is narrower has these losses, too
        least = factor
    return least


def best(layer: Layer, find: Find, hidden: Doubles, k: int, threads: int) -> Array:
    """``[n, k]``: the largest logits of each vector, the first one first."""
    truth, sure = find(hidden, k, 1.0)
    for start in np.flatnonzero(~sure):
        z = logits_of(layer, hidden[start : start + 1], threads)[0]
        truth[start] = -np.sort(-np.partition(z, -k)[-k:])
    return truth


def missed(find: Find, hidden: Doubles, truth: Array, k: int, factor: float) -> Array:
    """``[n]`` in 0..1: whether any of the k best logits that are found is below that of the k best there are, ``truth [n, k]``.

    Roundings and ties apart: of equal logits either class is right. All of them are compared: where many tie with the k-th, a
    better one may be missed and the k-th be the same.
    """
    found, done = find(hidden, k, factor)
    return np.asarray(done & (found < truth - tied(truth)).any(axis=1), np.float64)


def factor_for(learned: Learned, k: int) -> float | None:
    """The factor that a call for ``k`` classes takes; None where nothing was learned for so many."""
    return next((factor for most, factor in learned if k <= most), None) if k else None
