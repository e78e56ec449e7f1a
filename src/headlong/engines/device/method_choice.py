"""Which method "auto" stands for on a GPU, and from which size on."""

from __future__ import annotations

import math

from headlong.layers.matrix import Layer

WORTH_A_LOOK = 8_000_000
"""Weights below which one pass takes no longer than the launches that looking first adds."""


def device_choice(layer: Layer, calibrated: bool = False, eps: float = math.inf) -> tuple[str, str]:
    """The method that "auto" stands for on a GPU, and why: looking first pays where ids are wanted and a prefix says where."""
    size = layer.vocab * layer.dim
    if calibrated and math.isinf(eps) and size >= WORTH_A_LOOK:
        return "cascade", f"{size:,} weights, ids alone are promised, and calibration vectors choose the first look"
    return "full", "one pass over all rows proves ids and log-probabilities at once"
