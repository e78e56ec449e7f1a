"""From which eps a search over blocks finds normalisers: ``previews/blocks/choice.py``, of the executor that is in use."""

from __future__ import annotations

import math
from typing import Any

from headlong import native
from headlong.arrays import Array
from headlong.engines.reference.block_reach import within
from headlong.engines.reference.blocks import BlockSearch
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.plan import Blocks, Plan
from headlong.previews.blocks.choice import least_eps


def least_found(layer: Layer, plan: Plan, blocks: Blocks, vectors: Doubles, share: float) -> float:
    """The least eps within which searches that are worth their while find most normalisers of ``vectors``; inf: none."""
    kind, *numbers = layer.link.lowered()
    if kind != "affine":
        return math.inf
    affine: Any = tuple(numbers)
    if native.isa() == native.REFERENCE:
        reference = BlockSearch(layer.weight, layer.bias, blocks, share)
        return least_eps(plan, blocks, vectors, lambda row, k, eps: within(reference, None, row, k, None, affine, eps))
    search = native.blocks(layer.weight, layer.bias, blocks, share, native.isa())

    def find(row: Doubles, k: int, eps: float) -> tuple[Array, ...]:
        found: tuple[Array, ...] = search.within(None, row, k, None, 1, *affine, eps)
        return found

    return least_eps(plan, blocks, vectors, find)
