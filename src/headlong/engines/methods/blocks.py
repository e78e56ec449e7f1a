"""Whether a plan gets blocks: asked for, or shown to read less by calibration vectors, or by rows in their place."""

from __future__ import annotations

import math

from headlong import native
from headlong.dtypes import Doubles
from headlong.layers.matrix import Layer
from headlong.plan import MOST_SCORED, Plan
from headlong.previews.blocks.boxes import blocks_of
from headlong.previews.blocks.choice import EVERY, stand_ins, worth, worth_sampling
from headlong.previews.blocks.trial import CLASSES, on_trial
from headlong.previews.whitening import Directions, whiten
from headlong.promise import Promise

MOST_DIM = 8192
"""Beyond, the basis of blocks is a large matrix to decompose and to read."""
MANY = 1024
"""Classes below which a scan of all of them is short."""


def with_blocks(
    plan: Plan,
    layer: Layer,
    directions: Directions,
    calibration: Doubles | None,
    threads: int,
    wanted: Promise,
    asked: bool | None,
) -> Plan:
    """The plan with blocks, where that was ``asked`` for or vectors, whose ``directions`` these are, show that they read less;
    searches are native alone.
    """
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
    basis = whiten(layer.weight, vectors) if calibration is None else directions.basis()
    blocks = worth(layer, plan, blocks_of(layer, basis, threads), vectors, MOST_SCORED)
    if asked:
        batch = EVERY if blocks.max_k_of_batches >= layer.vocab else 2
        blocks = blocks._replace(max_k=layer.vocab, max_batch=batch, trial=math.inf)
    elif not blocks.max_k:
        return plan
    samples = worth_sampling(layer, plan, blocks, vectors, MOST_SCORED, bool(asked))
    return plan._replace(blocks=blocks._replace(samples=samples))
