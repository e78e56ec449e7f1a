"""How narrow the bounds of blocks may be made when only the answer has to be right, learned from queries.

    loss(q, k, f) = any of the k best that a search with tails times f finds is wrong
    for each k of ASKED the least f before the first, from the largest on, whose losses do not show a rate of at most delta
    (failure_rates.controlled)

Bounds that are too low for some class do no harm where the class is not among the best, or is found beside another. A call for
another k is answered by the next larger k of ASKED: its first k are right where all of them are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from headlong import native
from headlong.arrays import Array
from headlong.engines.checking import tied
from headlong.engines.reference.blocks import BlockSearch
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.plan import Blocks
from headlong.previews.failure_rates import controlled, enough
from headlong.previews.int8 import logits_of

ASKED = (1, 10, 64)
FACTORS = (1.0, 0.8, 0.7, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1)
"""Factors that are tried on the vectors that choose."""
AROUND = (1.5, 1.2, 1.1, 1.0, 0.93, 0.87)
"""Factors that are tried on those that bound, in units of what was chosen."""
CHOOSERS, PLENTY, LEAST = 500, 4, 3000
"""Vectors that choose; of those that bound: so many times the fewest, and no fewer than these where they are there."""
TINY = 1e-300
AT_ONCE = 1 << 22

Find = Callable[[Doubles, int, float], tuple[Array, Array]]
"""``(hidden, k, factor) -> the logits found [n, k], whether the search was not given up [n]``."""


def answer_factors(
    layer: Layer, blocks: Blocks, share: float, chosen_by: Doubles, bounded_by: Doubles, delta: float, threads: int
) -> tuple[tuple[int, float], ...]:
    """``(k, f)`` for each k of ASKED, f at most 1, where the proof is."""
    find = _finder(layer, blocks, share, threads)
    few = np.ascontiguousarray(chosen_by[:: -(-len(chosen_by) // CHOOSERS)])
    least = 0 if native.isa() == native.REFERENCE else LEAST  # it is asked for to be read, not to be fast
    many = np.ascontiguousarray(bounded_by[-max(least, PLENTY * enough(delta)) :])
    asked = tuple(k for k in ASKED if k <= layer.vocab)
    exact = [best(layer, find, hidden, asked[-1], threads) for hidden in (few, many)]
    found = []
    for k in asked:
        likely = _likely(find, few, exact[0][:, :k], k, delta)
        found.append((k, _kept(find, many, exact[1][:, :k], k, likely, delta)))
    return tuple(found)


def learned_blocks(
    layer: Layer, blocks: Blocks, share: float, chosen_by: Doubles, bounded_by: Doubles, delta: float, threads: int
) -> Blocks:
    """``blocks`` with the factors that keep ``delta``, and with typical lengths behind the head where those will do."""
    for some in (typical(blocks, chosen_by), blocks):
        answers = answer_factors(layer, some, share, chosen_by, bounded_by, delta, threads)
        widest = max(factor for _, factor in answers)
        if widest < 1:  # at 1 stands the proof, which takes the lengths as they are
            return some._replace(answers=answers, factor=widest)
    return blocks._replace(answers=answers, factor=widest)


def guessed(layer: Layer, blocks: Blocks, share: float, vectors: Doubles, delta: float, threads: int) -> Blocks:
    """``blocks`` with about the factor that they will have, as the vectors that choose see it: for the choice among bounds."""
    some = typical(blocks, vectors)
    find = _finder(layer, some, share, threads)
    few = np.ascontiguousarray(vectors[:: -(-len(vectors) // CHOOSERS)])
    k = min(ASKED[1], layer.vocab)
    return some._replace(factor=_likely(find, few, best(layer, find, few, k, threads), k, delta))


def typical(blocks: Blocks, vectors: Doubles) -> Blocks:
    """``‖x_s‖ = c_s ‖x[:width]‖`` for the segments behind the head, ``c_s`` as it is on average of the squares.

    Nothing has to be rotated for them then, and rotating is half of what a search reads. What a length lacks, the factor has.
    """
    if blocks.back is None or blocks.rest is None or blocks.rest_scale is None:
        return blocks
    centred = vectors - blocks.mean
    x, width = centred @ blocks.head.astype(np.float64).T, len(blocks.head)
    tails = (centred - x @ blocks.back.astype(np.float64)) @ blocks.rest.astype(np.float64) * blocks.rest_scale
    shares = tails**2 / np.maximum((x**2).sum(axis=1), TINY)[:, None]
    edges = [edge - width for edge in blocks.edges if edge >= width]
    lengths = [math.sqrt(shares[:, start:stop].sum(axis=1).mean()) for start, stop in itertools.pairwise(edges)]
    return blocks._replace(back=None, rest=None, rest_scale=None, rest_lost=np.array([[0.0, 0.0, one] for one in lengths]))


def _likely(find: Find, few: Doubles, truth: Array, k: int, delta: float) -> float:
    """About the least of :data:`FACTORS` that fails at a rate of delta, by halving: a guess of where to look."""
    low, high = 0, len(FACTORS)
    while high - low > 1:
        middle = (low + high) // 2
        if missed(find, few, truth, k, FACTORS[middle]).mean() <= delta:
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


def _finder(layer: Layer, blocks: Blocks, share: float, threads: int) -> Find:
    level = native.isa()

    def find(hidden: Doubles, k: int, factor: float) -> tuple[Array, Array]:
        narrow = blocks._replace(factor=factor)
        search: Any = (
            BlockSearch(layer.weight, layer.bias, narrow, share)
            if level == native.REFERENCE
            else native.blocks(layer.weight, layer.bias, narrow, share, level)
        )
        _, logits, *_, done = search.topk(hidden, k, None, threads)
        return logits, done

    return find
