"""Numerical ranks of a layer's log-probabilities, in float64.

::

    A[j, i]   = log p(class i | hidden vector j)               rank(A) <= dim + 1 for a softmax (+ 1 for a bias), any for a link
    press     = #{s_i > s_1 2^-24 sqrt(m + n + 1)}               A is m x n with the singular values s, falling
    effective = min{r: sum_{i <= r} s_i^2 >= (1 - eps) sum s^2}

The press rank counts what noise of float32's size leaves (Press et al., Numerical Recipes). Ganea et al. (2019) and its
replications compare heads by these; they say nothing of a model's quality.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from headlong.arrays import evenly, hidden64
from headlong.bench.measure import Progress, silent
from headlong.bench.oracle import exponents
from headlong.engines.few_allowed_classes import lse_of
from headlong.errors import ShapeError
from headlong.layers.matrix import Layer
from headlong.layers.mixture import MixtureLayer
from headlong.native import Doubles

EFFECTIVE = (1e-3, 1e-4, 1e-5)
CLASSES = 1 << 14
"""Columns of the matrix whose rank is taken: these many, evenly spread over the classes."""
QUERIES = 256
"""Hidden vectors whose log-probabilities are made at a time."""


class Ranks(NamedTuple):
    """Of the ``[queries, classes]`` log-probabilities; ``dim`` counts the bias, if there is one, as a dimension more."""

    queries: int
    classes: int
    dim: int
    press: int
    effective: dict[float, int]
    singular: Doubles

    @property
    def most(self) -> int:
        """What a plain softmax of this dimension cannot exceed."""
        return min(self.dim + 1, self.queries, self.classes)


def log_probs(layer: Layer | MixtureLayer, hidden: Any) -> Doubles:
    """``log p [queries, vocab]`` in float64, by a plain product over all classes."""
    wide = hidden64(hidden, layer.dim)
    if isinstance(layer, Layer):
        f = exponents(layer, wide)
        return f - lse_of(f)[:, None]
    made = np.tanh(wide @ layer.project.T.astype(np.float64) + layer.offset)
    contexts = made.reshape(len(wide), layer.components, layer.latent)
    prior = wide @ layer.prior.T.astype(np.float64)
    prior -= lse_of(prior)[:, None]
    if layer.pooled:
        return log_probs(layer.matrix, np.einsum("qk,qkd->qd", np.exp(prior), contexts))
    parts = [log_probs(layer.matrix, contexts[:, k]) + prior[:, k : k + 1] for k in range(layer.components)]
    return np.asarray(np.logaddexp.reduce(parts, axis=0))


def ranks(layer: Layer | MixtureLayer, hidden: Any, progress: Progress = silent) -> Ranks:
    """Ranks of the log-probabilities of ``hidden [queries, dim]``; raises ShapeError for fewer than two vectors."""
    wide = hidden64(hidden, layer.dim)
    if len(wide) < 2:
        raise ShapeError(f"{len(wide)} hidden vectors; expected two or more, and better more than the {layer.dim} dimensions")
    chosen = evenly(np.arange(layer.vocab), CLASSES)
    matrix = np.empty((len(wide), len(chosen)))
    for start in range(0, len(wide), QUERIES):
        matrix[start : start + QUERIES] = log_probs(layer, wide[start : start + QUERIES])[:, chosen]
        progress(min(start + QUERIES, len(wide)), len(wide) + QUERIES)
    singular = np.asarray(np.linalg.svd(matrix, compute_uv=False), np.float64)
    progress(1, 1)
    read = layer if isinstance(layer, Layer) else layer.matrix
    dim = read.dim + (read.bias is not None)
    effective = {eps: effective_rank(singular, eps) for eps in EFFECTIVE}
    return Ranks(*matrix.shape, dim, press_rank(singular, sum(matrix.shape)), effective, singular)


def press_rank(singular: Doubles, sides: int) -> int:
    """``#{s_i > s_1 2^-24 sqrt(m + n + 1)}``, ``sides = m + n``: half of float32's spacing."""
    return int(np.sum(singular > singular[0] * 2.0**-24 * math.sqrt(sides + 1)))


def effective_rank(singular: Doubles, eps: float) -> int:
    """The least r with ``sum_{i <= r} s_i^2 >= (1 - eps) sum s^2``."""
    energy = np.cumsum(singular**2)
    return int(np.searchsorted(energy, (1 - eps) * energy[-1])) + 1
