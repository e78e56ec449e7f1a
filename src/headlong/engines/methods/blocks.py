"""Whether a plan gets blocks: asked for, or shown to read less by calibration vectors, or by rows in their place."""

from __future__ import annotations

import math
from typing import Any

from headlong import native
from headlong.arrays import Array
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.plan import MOST_SCORED, Blocks, Plan
from headlong.previews.blocks.boxes import blocks_of
from headlong.previews.blocks.choice import at_once, least_eps, stand_ins, tighter, worth, worth_sampling
from headlong.previews.blocks.trial import CLASSES, on_trial
from headlong.previews.whitening import whiten
from headlong.promise import Promise

MOST_DIM = 8192
"""Beyond, the basis of blocks is a large matrix to decompose and to read."""
MANY = 1024
"""Classes below which a scan of all of them is short."""


def with_blocks(
    plan: Plan, layer: Layer, calibration: Doubles | None, threads: int, wanted: Promise, asked: bool | None
) -> Plan:
    """The plan with blocks, where that was ``asked`` for or vectors show that they read less; searches are native alone."""
    if native.isa() == native.REFERENCE:
        return plan
    if asked is None:
        many = layer.vocab >= MANY if calibration is not None else layer.vocab >= CLASSES and math.isinf(wanted.eps)
        tried = many and layer.dim <= MOST_DIM
    else:
        tried = asked
    if not tried:
        return plan
    if calibration is None and not asked:
        return on_trial(layer, plan, threads)
    vectors = stand_ins(layer) if calibration is None else calibration
    basis = whiten(layer.weight, vectors)
    blocks = tighter(layer, plan, blocks_of(layer, basis, threads), basis, vectors, MOST_SCORED, threads)
    most, pair, together, trial = worth(layer, plan, blocks, vectors, MOST_SCORED)
    if most < 1 and not asked:
        return plan
    blocks = blocks._replace(least=least_found(layer, plan, blocks, vectors, MOST_SCORED))
    samples = worth_sampling(layer, plan, blocks, vectors, MOST_SCORED, bool(asked))
    most, pair, trial = (layer.vocab, layer.vocab, math.inf) if asked else (most, pair, trial)
    batch = at_once(most, pair, together)
    return plan._replace(blocks=blocks._replace(samples=samples, most=most, batch=batch, together=together, trial=trial))


def least_found(layer: Layer, plan: Plan, blocks: Blocks, vectors: Doubles, share: float) -> float:
    """The least eps within which searches that are worth their while find most normalisers of ``vectors``; inf: none."""
    kind, *numbers = layer.link.lowered()
    if kind != "affine":
        return math.inf
    affine: Any = tuple(numbers)
    search = native.blocks(layer.weight, layer.bias, blocks, share, native.isa())

    def find(row: Doubles, k: int, eps: float) -> tuple[Array, ...]:
        found: tuple[Array, ...] = search.within(None, row, k, None, 1, *affine, eps)
        return found

    return least_eps(layer, plan, blocks, vectors, find)
