"""The same plan for another layer: one some of whose classes are others now.

A basis of blocks holds for any rows and any hidden vector, so no calibration vectors are needed.
"""

from __future__ import annotations

import numpy as np

from headlong.layers.matrix import Layer
from headlong.plan import Plan
from headlong.previews.blocks.boxes import blocks_of
from headlong.previews.blocks.choice import look_bytes, stand_ins
from headlong.previews.blocks.rays import rays_of
from headlong.previews.int8 import int8_plan, mean_row
from headlong.previews.whitening import whiten


def plan_again(plan: Plan, layer: Layer, threads: int) -> Plan:
    """``plan`` over ``layer``: int8 codes, and blocks where it had them."""
    together = bool(plan.levels) and any(term.together > 0 for term in plan.levels[0].terms)
    again = int8_plan(layer, plan.dense, None if plan.centre is None else mean_row(layer.weight), threads, together)
    if plan.blocks is None:
        return again
    basis = whiten(layer.weight, stand_ins(layer))
    rays = None if plan.blocks.rays is None else rays_of(layer, basis, threads)
    blocks = blocks_of(layer, basis, threads) if rays is None else rays
    every = plan.blocks.most >= int(np.count_nonzero(plan.blocks.order >= 0))
    most = layer.vocab if every else plan.blocks.most
    old, trial = plan.blocks, plan.blocks.trial * look_bytes(again) / look_bytes(plan)
    blocks = blocks._replace(batch=old.batch, most=most, together=old.together, least=old.least, samples=old.samples)
    return again._replace(blocks=blocks._replace(trial=trial))
