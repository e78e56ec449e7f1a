"""Layers with a known spectrum, and the radii of a plan held against float64."""

from __future__ import annotations

import numpy as np
import pytest

from headlong import native
from headlong.engines.reference.query import Matrix, Query
from headlong.layers.matrix import Layer
from headlong.plan import Plan

DEAR = ("generic", "neon")
"""Levels on which a product of 8-bit codes costs more than one of rows, which many queries share: these are read at once."""
CHEAP = 0.6
"""Of a row's product: a code's, up to which a batch looks at codes first even where a layer is small."""


def as_looks_are_worth(patch: pytest.MonkeyPatch) -> None:
    """Many queries at once are looked at, whatever the processor: by plain loops where its best level prefers rows."""
    if native.isa() != native.REFERENCE and native.code_product() > CHEAP:
        patch.setenv("HEADLONG_ISA", "portable")


def decaying(vocab: int, dim: int, power: float = 1.0, seed: int = 0) -> tuple[Layer, np.ndarray]:
    """A layer whose logits' energy falls as ``j ** -power`` in a hidden basis, and vectors with an offset to match."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    energy = np.arange(1, dim + 1.0) ** (-power / 2)
    weight = (rng.standard_normal((vocab, dim)) * energy) @ turn.T * 2
    hidden = (rng.standard_normal((400, dim)) * energy) @ turn.T + rng.standard_normal(dim)
    return Layer(weight.astype(np.float32), rng.standard_normal(vocab).astype(np.float32)), hidden.astype(np.float32)


def directions(rng: np.random.Generator, count: int, dim: int) -> np.ndarray:
    """Rows or vectors whose coordinates fall in size, as those of trained layers."""
    return (rng.standard_normal((count, dim)) * np.arange(1, dim + 1.0) ** -1.2).astype(np.float32)


def state(layer: Layer, plan: Plan, hidden: np.ndarray) -> Query:
    norms = np.minimum(native.row_norms(layer.weight), np.finfo(np.float32).max)
    matrix = Matrix(layer.weight, layer.bias, norms, layer.link, plan)
    return Query(matrix, hidden.astype(np.float64), np.ones(layer.vocab, bool))


def strangers(dim: int, rng: np.random.Generator) -> np.ndarray:
    """Vectors unlike any that calibrates: none, axes, heavy tails, far and near ones."""
    vectors = [np.zeros((1, dim)), np.eye(dim)[:4], rng.standard_cauchy((4, dim)), rng.standard_normal((4, dim)) * 1e4]
    return np.concatenate([*vectors, rng.standard_normal((4, dim)) * 1e-5, rng.standard_normal((8, dim))]).astype(np.float32)
