"""The basis of rotated codes, and what an error of each of its coordinates costs."""

from __future__ import annotations

from typing import Any

import numpy as np

from headlong.dtypes import Doubles
from headlong.layers.matrix import Layer
from headlong.previews.blocks.choice import stand_ins
from headlong.previews.sums import mean_row
from headlong.previews.whitening import Directions, directions

LEAST_DIM = 16
"""Coordinates of the shortest segment: the error of fewer strays far."""


def basis_for(layer: Layer, calibration: Doubles | None) -> Directions:
    """The whitened basis for hidden vectors like these; without any, the coordinates as they are.

    Directions of rows in the place of vectors would squeeze what real ones have most of, and widen every radius.
    """
    if calibration is not None:
        return directions(layer.weight, calibration)
    none: Any = np.eye(layer.dim, dtype=np.float32)  # exact in half of float64's memory
    return Directions(np.zeros(layer.dim), mean_row(layer.weight), none, none, 1.0)


def energy(layer: Layer, basis: Directions, calibration: Doubles | None) -> Doubles:
    """What an error of one part of a coordinate costs: mean squares of hidden vectors times those of rows; made to fall."""
    vectors = stand_ins(layer) if calibration is None else calibration
    some = layer.weight[:: max(1, layer.vocab // 4096)].astype(np.float64) - basis.centre
    x = ((vectors[:: max(1, len(vectors) // 4096)] - basis.mean) @ basis.rotation) ** 2
    rows = (some @ basis.back.astype(np.float64)) ** 2
    return np.asarray(np.maximum.accumulate((x.mean(axis=0) * rows.mean(axis=0))[::-1])[::-1])
