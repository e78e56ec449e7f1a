"""The cascade's plan as a device reads it: int8 codes of whole coordinates, and boxes around sixteen classes.

All bounds hold for every query. Launches cost more than a pass over the codes of a layer that is not very large, so a device
searches by blocks from :data:`MANY` classes on, where calibration vectors show that searches open few of them; or where that is
asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from headlong.engines.methods.cascade import Cascade
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.plan import DENSE_SHARE, Plan
from headlong.previews.blocks.boxes import blocks_of
from headlong.previews.blocks.choice import worth
from headlong.previews.encode import Encoded
from headlong.previews.whitening import Basis, whiten
from headlong.promise import Promise

MANY = 1 << 19
"""Classes from which a pass over all codes, some 64 bytes a class, takes longer than the launches of a search; not measured."""


@dataclass(frozen=True)
class PlacedCascade(Cascade):
    """As a device reads it."""

    few_bits: ClassVar[bool] = False

    def plan(self, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        return self._looks(layer, calibration, threads, promise)

    def _taught(self, layer: Layer, plan: Plan, calibration: Doubles, threads: int, promise: Promise) -> Plan:
        return plan

    def _stood_in(self, layer: Layer, promise: Promise) -> bool:
        return False

    def _tries_blocks(self, layer: Layer, calibration: Doubles | None, promise: Promise) -> bool:
        if self.blocks is not None:
            return self.blocks
        return calibration is not None and math.isinf(promise.eps) and layer.vocab >= MANY

    def _with_blocks(
        self, layer: Layer, plan: Plan, basis: Basis | None, vectors: Doubles, calibration: Doubles | None, threads: int,
        promise: Promise, coded: Encoded | None,
    ) -> Plan:  # fmt: skip
        blocks = blocks_of(layer, whiten(layer.weight, vectors) if basis is None else basis, threads, found=coded)
        most = layer.vocab if self.blocks else worth(layer, plan, blocks, vectors, DENSE_SHARE)[0]
        return plan._replace(blocks=blocks._replace(most=most)) if most else plan
