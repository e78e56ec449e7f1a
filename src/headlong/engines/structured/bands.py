"""Reads a bands layer: the short list always, a band only while its token beats the k-th best class.

::

    p(class in band j) <= p(token j), so a band whose token is below the k-th best class found so far stays closed

A band that is opened is read whole: its normaliser is part of every one of its classes. ``lse`` is 0 and logits are
log-probabilities; a sample reads the short list and at most one band.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from headlong.engines.reference.descent import Part, Steps
from headlong.engines.structured.base import register_engine
from headlong.engines.structured.branches import WalkingEngine
from headlong.errors import OptionError, named
from headlong.layers.bands import BandsLayer
from headlong.layers.structured import StructuredLayer
from headlong.promise import Promise


@register_engine
class BandsEngine(WalkingEngine):
    """Ids and log-probabilities are proved, up to the rounding that ``error`` states."""

    kind: ClassVar[str] = "bands"

    def __init__(self, layer: StructuredLayer, options: Any, promise: Promise, **about: Any) -> None:
        if not isinstance(layer, BandsLayer):
            raise OptionError(f"layer is {named(layer)}; the bands engine reads a BandsLayer")
        super().__init__(layer, options, promise, **about)

    def _steps(self) -> Steps:
        layer = self.layer
        assert isinstance(layer, BandsLayer)
        parts = [Part(layer.head.weight, layer.head.bias, None)]
        parts += [Part(band.layer.weight, band.layer.bias, band.projection) for band in layer.bands]
        sizes = [len(part.weight) for part in parts]
        order = np.arange(layer.vocab) if layer.order is None else layer.order
        tokens = np.arange(1, len(parts))
        children = np.concatenate([~order[: layer.short], tokens, ~order[layer.short :]])
        starts = np.concatenate([[0], np.cumsum(sizes)])
        nodes = len(parts)
        return Steps(tuple(parts), np.arange(nodes), np.zeros(nodes, np.int64), starts, children, False, 2)
