"""Coarse to fine, everything proved: int8 codes of all rows with deterministic radii, then the rows that matter.

A query's top-k takes the codes (a quarter of float32's bytes) and a few exact rows. The normaliser takes as many exact
rows as ``eps`` asks for beyond what the codes leave open; a query for which that is dear is finished densely.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from headlong.answers import Promise
from headlong.engines.base import register
from headlong.engines.options import flag, real
from headlong.kernels import Doubles
from headlong.layers.matrix import Layer
from headlong.plan import Dense, Plan
from headlong.previews.bits import better_centred, int8_plan, mean_row


@register
@dataclass(frozen=True)
class Cascade:
    """``share``   a query with more than this share of the classes as candidates is finished densely
    ``batch``   larger batches are read densely from the start
    ``centre``  code the rows less their mean; None: only where calibration vectors say that it brings codes closer
    """

    share: float = 0.25
    batch: float = math.inf
    centre: bool | None = None

    name: ClassVar[str] = "cascade"

    def __post_init__(self) -> None:
        real(self.share, "share", 0.0, 1.0)
        real(self.batch, "batch", 0.0, math.inf)
        if self.centre is not None:
            flag(self.centre, "centre")

    def plan(self, layer: Layer, calibration: Doubles | None, threads: int) -> Plan:
        centred = self.centre
        if centred is None:
            centred = calibration is not None and better_centred(layer, calibration)
        centre = mean_row(layer.weight) if centred else None
        return int8_plan(layer, Dense(self.batch, self.share), centre, threads)

    def promise(self, eps: float) -> Promise:
        return Promise(eps, 0.0, 0.0)
