"""SVD-softmax as published: measured, not trusted.

A preview of ``width`` columns for all classes, the ``rows`` best of them exactly, one softmax over both. Without
calibration vectors the columns are the layer's singular directions; with them, those that predict its logits best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from headlong.dtypes import Doubles
from headlong.engines.method import Method, register
from headlong.layers.matrix import Layer
from headlong.number_checks import whole
from headlong.plan import Plan
from headlong.previews.svd import svd_plan
from headlong.promise import Promise


@register
@dataclass(frozen=True)
class Svd(Method):
    """``width``  columns of the preview; None: ceil(dim / 8)
    ``rows``   classes scored exactly; None: ceil(vocab / 16)
    """

    width: int | None = None
    rows: int | None = None

    name: ClassVar[str] = "svd"

    def __post_init__(self) -> None:
        for name in ("width", "rows"):
            if getattr(self, name) is not None:
                whole(getattr(self, name), name, 1, 2**31)

    def plan(self, layer: Layer, calibration: Doubles | None, threads: int, wanted: Promise) -> Plan:
        width = -(-layer.dim // 8) if self.width is None else whole(self.width, "width", 1, layer.dim)
        rows = -(-layer.vocab // 16) if self.rows is None else whole(self.rows, "rows", 1, layer.vocab)
        return svd_plan(layer, width, rows, calibration)

    def promise(self, wanted: Promise, plan: Plan) -> Promise:
        return Promise(math.inf, 1.0)
