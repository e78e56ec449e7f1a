"""Reads a tree layer, best branch first: exact top-k of the tree's own distribution from the nodes that can matter.

::

    opened nodes = {n : p(n) >= p of the k-th best class}, at most depth / p of it: few where the distribution is peaked

``cost.rows`` says how many rows were read: for two-way trees, nodes opened. ``lse`` is 0 and logits are log-probabilities.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from headlong.engines.reference.descent import Part, Steps
from headlong.engines.structured.base import register_engine
from headlong.engines.structured.branches import WalkingEngine
from headlong.errors import OptionError, named
from headlong.layers.structured import StructuredLayer
from headlong.layers.tree import TreeLayer
from headlong.promise import Promise


@register_engine
class TreeEngine(WalkingEngine):
    """Ids and log-probabilities are proved, up to the rounding that ``error`` states."""

    kind: ClassVar[str] = "tree"

    def __init__(self, layer: StructuredLayer, options: Any, promise: Promise, **about: Any) -> None:
        if not isinstance(layer, TreeLayer):
            raise OptionError(f"layer is {named(layer)}; the tree engine reads a TreeLayer")
        super().__init__(layer, options, promise, **about)


    def _steps(self) -> Steps:
        layer = self.layer
        assert isinstance(layer, TreeLayer)
        starts = layer.branch_starts
        nodes = len(starts) - 1
        first = np.arange(nodes) if layer.two_way else starts[:-1]
        part = Part(layer.weight, layer.bias, None)
        children = np.ascontiguousarray(layer.children.reshape(-1))
        depth = int(layer.depths.max()) + 1
        return Steps((part,), np.zeros(nodes, np.int64), first, starts, children, layer.two_way, depth)
