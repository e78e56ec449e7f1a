"""Layers with a known spectrum, for benchmarks that anyone can run again.

    z_i = <w_i, x>,   w_i = Q (j^(-a/4) g_j),   x = s Q (j^(-a/4) g'_j):   logit energy of coordinate j falls as j^-a

``g`` standard normal, Q a random rotation, ``s`` such that the likeliest class has probability 0.3 in the median. a = 0 is
isotropic, the worst case of every estimate; language models' layers are between 1 and 2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from headlong.bench.measure import Progress
from headlong.bench.oracle import wide_rows
from headlong.errors import OptionError
from headlong.layers.matrix import Layer

MEDIAN_TOP, JUDGES = 0.3, 16
ROWS = 8192


class Synthetic(NamedTuple):
    """``hidden [n, dim]`` is asked, ``calibration [m, dim]`` is drawn from the same law."""

    layer: Layer
    hidden: NDArray[np.float32]
    calibration: NDArray[np.float32]


def shape(text: str) -> tuple[int, int, float]:
    """``"262144,640,1" -> (262144, 640, 1.0)``"""
    try:
        vocab, dim, power = text.split(",")
        found = int(vocab), int(dim), float(power)
    except ValueError:
        found = (0, 0, -1.0)
    if found[0] < 1 or found[1] < 1 or not 0 <= found[2] <= 10:
        raise OptionError(f"--synthetic {text!r}; expected VOCAB,DIM,POWER such as 262144,640,1")
    return found


def synthetic(vocab: int, dim: int, power: float, count: int, seed: int, progress: Progress) -> Synthetic:
    """A bfloat16 layer and float32 vectors, ``count`` to ask and eight per coordinate (4,096 at least) to calibrate."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0].astype(np.float32)
    energy = np.arange(1, dim + 1, dtype=np.float32) ** np.float32(-power / 4)
    rotated = energy[:, None] * turn.T
    weight = np.empty((vocab, dim), ml_dtypes.bfloat16)
    for start in range(0, vocab, ROWS):
        stop = min(start + ROWS, vocab)
        weight[start:stop] = rng.standard_normal((stop - start, dim), np.float32) @ rotated
        progress(stop, vocab)
    layer = Layer(weight)
    vectors = rng.standard_normal((count + max(4096, 8 * dim), dim), np.float32) @ rotated
    vectors *= np.float32(scale(layer, vectors[:JUDGES]))
    return Synthetic(layer, vectors[:count], vectors[count:])


def scale(layer: Layer, vectors: ArrayLike) -> float:
    """The factor of ``vectors`` at which the likeliest class of the median one has a probability of ``MEDIAN_TOP``."""
    wide = np.asarray(vectors, np.float64)
    z = np.concatenate([wide @ rows.T for _, rows in wide_rows(layer)], axis=1)
    bias = 0.0 if layer.bias is None else np.asarray(layer.bias, np.float64)
    low, high = 1e-3, 1e6
    for _ in range(40):  # halves the logarithm
        middle = math.sqrt(low * high)
        f = layer.link(middle * z + bias)
        top = float(np.median(1 / np.exp(f - f.max(1, keepdims=True)).sum(1)))
        low, high = (middle, high) if top < MEDIAN_TOP else (low, middle)
    return low
