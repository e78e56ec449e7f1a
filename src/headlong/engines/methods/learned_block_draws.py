"""What calibration vectors teach of a normaliser that is drawn from blocks: their ``draws``, tried on what will draw.

A query that blocks do not answer is bet on (``csrc/by_blocks/normaliser.cpp``); it counts as one that fails as often as it may.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headlong import native
from headlong.engines.methods.learned_draws import CHOOSERS, CLOSER, JUDGES, as_shares, used
from headlong.engines.reference.blocks import BlockSearch, looks
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.plan import Blocks, Draws, Plan
from headlong.previews.blocks.choice import LESS, look_bytes
from headlong.previews.int8 import logits_of
from headlong.previews.learned_draw_counts import Trial, first_spend, learned_spends
from headlong.promise import Promise

CLOSE = 100
"""How much closer than ``eps`` the normalisers are known that estimates are compared with."""
LEVELS, BEST = 2, 10
"""Levels of a tree that is drawn from, and the classes that its search looks for."""


def taught_by_blocks(
    layer: Layer, plan: Plan, blocks: Blocks, promise: Promise, halves: tuple[Doubles, Doubles], share: float, threads: int
) -> Blocks:
    """``blocks`` with what the vectors teach, one half choosing, one bounding; as they are where they cannot be drawn from,
    or would read too much."""
    chosen_by, bounded_by = halves
    plain = len(blocks.levels) == LEVELS and blocks.rays is None and blocks.factor == 1.0 and blocks.most >= BEST
    if not plain or plan.draws is None or native.isa() == native.REFERENCE or layer.link.lowered()[0] != "affine":
        return blocks
    narrow = typical(layer, blocks, share, chosen_by[:JUDGES], threads)
    blocks = blocks._replace(draws=Draws(promise.eps, first_spend(promise.delta), narrow))
    norms, level = native.row_norms(layer.weight, threads), native.isa()
    teacher = native.executor(layer.weight, layer.bias, norms, layer.link.lowered(), plan, level)
    few = chosen_by[:: -(-len(chosen_by) // CHOOSERS)]
    if _read(layer, teacher, blocks, promise, few[:JUDGES], share) > LESS * look_bytes(plan):  # before thousands are tried
        return blocks._replace(draws=None)
    trial = _trial(teacher, native.blocks(layer.weight, layer.bias, blocks, share, level), promise.eps, threads)
    spends = learned_spends(trial, 1, few, bounded_by, promise.eps, promise.delta, promise.delta)
    if spends is None or blocks.draws is None:
        return blocks._replace(draws=None)
    found = blocks._replace(draws=blocks.draws._replace(spend=spends[0]))
    worth = _read(layer, teacher, found, promise, few[:JUDGES], share) <= LESS * look_bytes(plan)
    return found if worth else blocks._replace(draws=None)


def _trial(teacher: Any, search: Any, eps: float, threads: int) -> Trial:
    """How far estimates are off, NaN where blocks do not answer: they look for the best ids however they are asked, one way."""

    def trial(hidden: Doubles, spends: list[list[float]], tries: int) -> list[Doubles]:
        some = np.ascontiguousarray(hidden)
        exact, error = (part[:, None, None] for part in teacher.lse(some, eps / CLOSE, None, True, threads)[:2])
        found = native.try_block_draws(teacher.capsule, search.capsule, some, eps, spends[0], tries, threads, 0)
        return [np.asarray(error + np.abs(found - exact))]

    return trial


def _read(layer: Layer, teacher: Any, blocks: Blocks, promise: Promise, vectors: Doubles, share: float) -> float:
    """Bytes of an answer, on average of some vectors."""
    search = native.blocks(layer.weight, layer.bias, blocks, share, native.isa())
    delta, k = promise.delta, min(BEST, layer.vocab)
    alone = [
        native.topk_by_block_draws(teacher.capsule, search.capsule, row[None], k, promise.eps, 1, delta, 0)
        for row in np.ascontiguousarray(vectors)
    ]
    return float(np.mean([np.inf if answer is None else answer[7] for answer in alone]))


def typical(layer: Layer, blocks: Blocks, share: float, vectors: Doubles, threads: int) -> tuple[float, ...]:
    """The share of the radii of an open block's classes, and of closer looks, for which ``X`` has a mean square of one."""
    search = BlockSearch(layer.weight, layer.bias, blocks, share)
    there = blocks.order >= 0
    squares: list[list[float]] = [[], []]
    for logits, hidden in zip(logits_of(layer, vectors, threads), vectors, strict=True):
        z, some = logits[blocks.order[there]], np.arange(int(there.sum()))
        for depth, (estimate, radius) in enumerate(looks(search, hidden)):
            estimate, radius = estimate[there][some], radius[there][some]
            square, order = used(layer.link, z[some], estimate, np.maximum(radius, 1e-30))
            squares[depth].append(square)
            some = some[order[:CLOSER]]
    return as_shares(squares)
