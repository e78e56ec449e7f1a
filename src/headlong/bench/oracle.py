"""The truth that answers are compared with, in float64 over all classes and by no engine under test.

::

    log p = f(z) - log sum_i exp(f(z_i))                                          ties by id
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headlong.dtypes import Doubles
from headlong.layers.matrix import Layer

BLOCK = 1 << 23
"""Weights made float64 at a time."""


def wide_rows(layer: Layer) -> Iterator[tuple[slice, Doubles]]:
    """The rows in float64, a block of classes at a time, and which they are."""
    step = max(1, BLOCK // layer.dim)
    for start in range(0, layer.vocab, step):
        yield slice(start, start + step), np.asarray(layer.weight[start : start + step], np.float64)


class Truth(NamedTuple):
    """By float64: the normaliser ``[queries]`` and the k likeliest ids with their log-probabilities ``[queries, k]``."""

    lse: Doubles
    ids: NDArray[np.int64]
    log_probs: Doubles

    @classmethod
    def of(cls, layer: Layer, hidden: ArrayLike, k: int) -> Truth:
        wide = np.asarray(hidden, np.float64)
        lse = np.full(len(wide), -np.inf)
        best, ids = np.empty((len(wide), 0)), np.empty((len(wide), 0), np.int64)
        for some, rows in wide_rows(layer):
            z = wide @ rows.T
            f = layer.link(z if layer.bias is None else z + layer.bias[some])
            top = f.max(1)
            lse = np.logaddexp(lse, top + np.log(np.exp(f - top[:, None]).sum(1)))
            classes = np.broadcast_to(np.arange(some.start, some.start + f.shape[1]), f.shape)
            best, ids = _best(np.concatenate([best, f], 1), np.concatenate([ids, classes], 1), k)
        return cls(lse, ids, best - lse[:, None])


def _best(values: Doubles, ids: NDArray[np.int64], k: int) -> tuple[Doubles, NDArray[np.int64]]:
    """The k largest of each row, largest first, equal ones by id."""
    k = min(k, values.shape[1])
    least = np.partition(values, -k, axis=1)[:, -k]
    rows = []
    for row, named, floor in zip(values, ids, least, strict=True):
        among = np.flatnonzero(row >= floor)
        rows.append(among[np.lexsort((named[among], -row[among]))][:k])
    chosen = np.stack(rows)
    return np.take_along_axis(values, chosen, 1), np.take_along_axis(ids, chosen, 1)


def true_log_probs(layer: Layer, hidden: ArrayLike, ids: NDArray[np.int64], lse: Doubles) -> Doubles:
    """``log p`` of ``ids [queries, k]`` in float64; -inf for id -1."""
    rows = np.asarray(layer.weight[ids], np.float64)
    z = np.einsum("qkd,qd->qk", rows, np.asarray(hidden, np.float64))
    f = layer.link(z if layer.bias is None else z + layer.bias[ids])
    return np.where(ids < 0, -np.inf, f - lse[:, None])
