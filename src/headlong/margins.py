"""Is a flipped class a fault or a tie: the gap between first and second, and which roundings could close it.

::

    gap       = z_first - z_second                                                      exact, in float64
    decided   iff  z_first - bound_first > z_i + bound_i  for every other class i       proved: no such rounding turns it over

    bf16 output       z rounded to 8 bits, after sums in float32
    bf16 weights      |dz_i| <= 2^-8 sum_j |h_j w_ij|                (hidden vectors in bf16 move a logit by as much)
    int8 weights      |dz_i| <= max_j |w_ij| / 254 * |h|_1           a scale for each row
    Q6_K weights      |dz_i| <= sum over blocks of 16: (largest / 31 + largest of 256 / 254) * |h_block|_1

A row that is open under a rounding may still come out right with it; a row that is decided and comes out otherwise is a fault.
"""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from headlong import native
from headlong.arrays import pieces
from headlong.dtypes import Doubles, Flags
from headlong.engines.arguments import checked_hidden
from headlong.errors import ShapeError
from headlong.layers.matrix import Layer
from headlong.progress import stage

ROUNDINGS = ("bf16 output", "bf16 weights", "int8 weights", "Q6_K weights")
CLASSES = 4096
"""Rows of the weight whose magnitudes are held in float64."""
SMALL, LARGE = 16, 256
"""Weights that share a scale in Q6_K, and scales' own."""


class Margins(NamedTuple):
    """``first, second [n]`` ids, ``gap [n]`` of their logits, and ``decided[rounding] [n]``."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    gap: Doubles
    decided: dict[str, Flags]


def margins(layer: Layer, hidden: ArrayLike, threads: int = 1) -> Margins:
    """The margin of each row of ``hidden [n, dim]``; every row of the layer is read, in float64."""
    rows = checked_hidden(hidden, layer.dim, vocab=layer.vocab)
    if layer.vocab < 2:
        raise ShapeError("the layer has one class; a margin is between two")
    parts, move = [], stage("margins")
    for part in pieces(max(1, len(rows)), layer.vocab):
        parts.append(_margins(layer, rows[part], threads))
        move(min(part.stop, len(rows)), len(rows))
    first, second, gap = (np.concatenate(part) for part in list(zip(*parts, strict=True))[:3])
    return Margins(first, second, gap, {name: np.concatenate([part.decided[name] for part in parts]) for name in ROUNDINGS})


def _margins(layer: Layer, rows: Doubles, threads: int) -> Margins:
    logits = native.logits(layer.weight, layer.bias, rows, threads)
    every = np.arange(len(rows))
    first = np.argmax(logits, axis=1)
    best = logits[every, first]
    others = logits.copy()
    others[every, first] = -np.inf
    second = np.argmax(others, axis=1)
    bounds = bounds_of(layer, rows)
    exact = bounds.pop("sums in float32")
    decided = {}
    for name, bound in bounds.items():
        reach = others + bound
        reach[every, first] = -np.inf
        decided[name] = best - bound[every, first] > reach.max(axis=1)
    low, high = best - exact[every, first], others + exact
    high[every, first] = -np.inf
    decided["bf16 output"] = _bf16(low) > _bf16(high.max(axis=1))
    return Margins(first, second, best - others[every, second], {name: decided[name] for name in ROUNDINGS})


def _bf16(values: Doubles) -> Doubles:
    return values.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64)


def bounds_of(layer: Layer, rows: Doubles) -> dict[str, Doubles]:
    """``[n, vocab]``: how far each rounding can move a logit, and how far sums in float32 can be off."""
    size, blocks = np.abs(rows), -(-layer.dim // SMALL)
    length = np.zeros((len(rows), blocks * SMALL))
    length[:, : layer.dim] = size
    of_block = length.reshape(len(rows), blocks, SMALL).sum(axis=2)
    found: dict[str, list[Doubles]] = {name: [] for name in ("bf16 weights", "int8 weights", "Q6_K weights", "sums in float32")}
    for start in range(0, layer.vocab, CLASSES):
        weight = np.abs(np.asarray(layer.weight[start : start + CLASSES], np.float64))
        terms = size @ weight.T
        wide = np.zeros((len(weight), blocks * SMALL))
        wide[:, : layer.dim] = weight
        largest = wide.reshape(len(weight), blocks, SMALL).max(axis=2)
        shared = np.repeat(np.maximum.reduceat(largest, np.arange(0, blocks, LARGE // SMALL), axis=1), LARGE // SMALL, axis=1)
        float32 = (layer.dim + 2) * 2.0**-24 * terms
        found["sums in float32"].append(float32)
        found["bf16 weights"].append(2.0**-8 * terms + float32)
        found["int8 weights"].append(size.sum(axis=1)[:, None] * weight.max(axis=1) / 254 + float32)
        found["Q6_K weights"].append(of_block @ (largest / 31 + shared[:, :blocks] / 254).T + float32)
    return {name: np.concatenate(parts, axis=1) for name, parts in found.items()}
