"""The basis of rotated codes, and what an error of each of its coordinates costs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headlong.arrays import Array
from headlong.dtypes import Doubles
from headlong.encode.whitening import Directions, directions
from headlong.layers.matrix import Layer
from headlong.randomness import stream

LEAST_DIM = 16
"""Coordinates of the shortest segment: the error of fewer strays far."""
ROWS_AT_ONCE = 4096
STAND_INS = 4096
"""Rows of the layer that stand in for hidden vectors, and those of which so many tell how much their products vary."""
VARIED = 256
NOISE = 0.7
"""The length of what is added to a row of length one."""
BESIDE_BIAS = 4.0
"""How many times as much as biases do the products of stand-ins with rows vary."""


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


def mean_row(weight: Array) -> Doubles:
    """The mean of all rows, streamed."""
    total = np.zeros(weight.shape[1])
    for start in range(0, len(weight), ROWS_AT_ONCE):
        total += weight[start : start + ROWS_AT_ONCE].astype(np.float64).sum(axis=0)
    return np.asarray(total / len(weight))


def stand_ins(layer: Layer) -> Array:
    """Directions of rows of the layer, less their mean, evenly spread, and :data:`NOISE` in every direction.

    A vector that predicts a class leans towards its row, and is more than that: without the noise all of the others' energy
    would be thought to lie in the layer's leading directions, and looks would come out too short for real queries. How long
    hidden vectors are is not known either. Biases matter beside products of unit length only: so vectors are long enough for
    products that vary :data:`BESIDE_BIAS` times as much as biases do.
    """
    rows = layer.weight[:: -(-layer.vocab // STAND_INS)].astype(np.float64)
    rows -= rows.mean(axis=0)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    rows = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    noise = stream("stand-ins", 0).standard_normal(rows.shape)
    found = rows + NOISE / math.sqrt(layer.dim) * noise
    if layer.bias is None:
        return np.asarray(found)
    some = slice(None, None, -(-len(found) // VARIED))
    varied = float(np.std(found[some] @ layer.weight[:: -(-layer.vocab // STAND_INS)].astype(np.float64).T))
    wanted = BESIDE_BIAS * float(np.std(layer.bias, dtype=np.float64))  # squares of large ones are beyond float32
    return np.asarray(found * max(1.0, wanted / varied) if varied > 0 else found)
