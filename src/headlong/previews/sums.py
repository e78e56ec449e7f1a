"""Sums over all rows of a layer: the mean row, and every logit of a few vectors."""

from __future__ import annotations

import numpy as np

from headlong.arrays import Array
from headlong.dtypes import Doubles
from headlong.layers.matrix import Layer
from headlong.native import products

ROWS_AT_ONCE = 4096


def mean_row(weight: Array) -> Doubles:
    """The mean of all rows, streamed."""
    total = np.zeros(weight.shape[1])
    for start in range(0, len(weight), ROWS_AT_ONCE):
        total += weight[start : start + ROWS_AT_ONCE].astype(np.float64).sum(axis=0)
    return np.asarray(total / len(weight))


def logits_of(layer: Layer, hidden: Doubles, threads: int = 1) -> Doubles:
    """All logits of a few vectors, ``[n, vocab]``, in float64."""
    logits = products(layer.weight, hidden, threads)
    if layer.bias is not None:
        logits += layer.bias
    return logits
