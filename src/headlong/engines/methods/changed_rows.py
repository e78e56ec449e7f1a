"""The same looks at another layer: one some of whose classes are others now.

A basis holds for any rows and any hidden vector, so that of the plan before is as good as it was when few rows have changed:
no calibration vectors are needed.
"""

from __future__ import annotations

import itertools

import numpy as np

from headlong.layers.matrix import Layer
from headlong.plan import Level, Plan
from headlong.previews.blocks.boxes import blocks_of
from headlong.previews.blocks.choice import look_bytes, stand_ins
from headlong.previews.blocks.rays import rays_of
from headlong.previews.few_bits import Planes, planes_plan
from headlong.previews.int8 import int8_plan, mean_row
from headlong.previews.prefix import prefix_plan
from headlong.previews.whitening import Basis, basis_of, whiten


def plan_again(plan: Plan, layer: Layer, threads: int) -> Plan:
    """``plan`` over ``layer``: levels of the same widths and bits, blocks where it had them."""
    basis = basis_in(plan)
    again = _levels(plan, layer, basis, threads)
    if plan.blocks is None:
        return again
    if basis is None or plan.levels[0].layout[0][1] == layer.dim:  # none, or one whose coordinates are all alike
        basis = whiten(layer.weight, stand_ins(layer))
    rays = None if plan.blocks.rays is None else rays_of(layer, basis, threads)
    blocks = blocks_of(layer, basis, threads) if rays is None else rays
    every = plan.blocks.most >= int(np.count_nonzero(plan.blocks.order >= 0))
    most = layer.vocab if every else plan.blocks.most
    old, trial = plan.blocks, plan.blocks.trial * look_bytes(again) / look_bytes(plan)
    blocks = blocks._replace(batch=old.batch, most=most, together=old.together, least=old.least, samples=old.samples)
    return again._replace(blocks=blocks._replace(trial=trial))


def basis_in(plan: Plan) -> Basis | None:
    """The basis that the levels of a plan are in; None where rows are coded as they are."""
    if plan.rotation is None:
        return None
    assert plan.mean is not None
    assert plan.centre is not None
    return basis_of(plan.mean, plan.centre, plan.rotation, 1.0)


def _levels(plan: Plan, layer: Layer, basis: Basis | None, threads: int) -> Plan:
    together = bool(plan.levels) and any(term.together > 0 for term in plan.levels[0].terms)
    if basis is None:
        return int8_plan(layer, plan.dense, None if plan.centre is None else mean_row(layer.weight), threads, together)
    first, deeper = plan.levels[0], len(plan.levels) > 1
    if first.planes == 2:  # codes of few bits are multiplied with one plane of the query
        width = max(stop for _, stop, _ in first.layout)
        return prefix_plan(layer, basis, width, plan.dense, threads, deeper=deeper, together=together)
    planes = Planes(_groups(first, layer.dim), sum(bits for *_, bits in plan.levels[1].layout) if deeper else 0)
    return planes_plan(layer, basis, planes, plan.dense, threads)


def _groups(level: Level, dim: int) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Runs of coordinates and the bits that each is coded in, one plane after the other; none behind the last."""
    runs = itertools.groupby(level.layout, key=lambda one: one[:2])
    groups = [(start, stop, tuple(bits for *_, bits in planes)) for (start, stop), planes in runs]
    last = groups[-1][1]
    return (*groups, (last, dim, ())) if last < dim else tuple(groups)
