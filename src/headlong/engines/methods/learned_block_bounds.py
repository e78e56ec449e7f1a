"""How narrow the bounds of blocks may be made when only the answer has to be right: ``learned_answers.py`` with theirs.

A factor is one of all lengths behind the head. Where typical lengths will do for those, the head alone has to be turned.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from headlong import native
from headlong.arrays import Array
from headlong.engines.methods.learned_answers import ASKED, Find, answer_factors, best, choosers, likely_factor
from headlong.engines.reference.blocks import BlockSearch
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.plan import Blocks

TINY = 1e-300


def learned_blocks(
    layer: Layer, blocks: Blocks, share: float, chosen_by: Doubles, bounded_by: Doubles, delta: float, threads: int
) -> Blocks:
    """``blocks`` with the factors that keep ``delta``, and with typical lengths behind the head where those will do.

    The vectors that choose say which lengths, so that those that bound judge one sequence of factors. A second one, tried where
    the first shows nothing, would make up for its bad luck.
    """
    some, sure = typical(blocks, chosen_by), finder(layer, blocks, share, threads)
    narrow = finder(layer, some, share, threads)

    def find(hidden: Doubles, k: int, factor: float) -> tuple[Array, Array]:
        return (sure if factor == 1.0 else narrow)(hidden, k, factor)  # at 1 stands the proof, by the lengths as they are

    if not _will_do(layer, find, chosen_by, delta, threads):
        some, narrow = blocks, sure
    answers = answer_factors(layer, find, chosen_by, bounded_by, delta, threads)
    widest = max(factor for _, factor in answers)
    if widest == 1 and some is not blocks:
        return blocks._replace(answers=tuple((k, 1.0) for k, _ in answers), factor=1.0)
    return some._replace(answers=answers, factor=widest)


def _will_do(layer: Layer, find: Find, chosen_by: Doubles, delta: float, threads: int) -> bool:
    """Whether some factor below 1 seems to keep ``delta``, for each number of classes."""
    few = choosers(chosen_by)
    asked = [k for k in ASKED if k <= layer.vocab]
    truth = best(layer, find, few, asked[-1], threads)
    return all(likely_factor(find, few, truth[:, :k], k, delta) < 1 for k in asked)


def guessed(layer: Layer, blocks: Blocks, share: float, vectors: Doubles, delta: float, threads: int) -> Blocks:
    """``blocks`` with about the factor that they will have, as the vectors that choose see it: for the choice among bounds."""
    some = typical(blocks, vectors)
    find, few = finder(layer, some, share, threads), choosers(vectors)
    k = min(ASKED[1], layer.vocab)
    return some._replace(factor=likely_factor(find, few, best(layer, find, few, k, threads), k, delta))


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


def finder(layer: Layer, blocks: Blocks, share: float, threads: int) -> Find:
    """The search by these blocks with a factor on their lengths."""
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
