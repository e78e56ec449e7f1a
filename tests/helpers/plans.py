"""Layers with a known spectrum."""

from __future__ import annotations

import numpy as np

from headlong.layers.matrix import Layer


def decaying(vocab: int, dim: int, power: float = 1.0, seed: int = 0) -> tuple[Layer, np.ndarray]:
    """A layer whose logits' energy falls as ``j ** -power`` in a hidden basis, and vectors with an offset to match."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    energy = np.arange(1, dim + 1.0) ** (-power / 2)
    weight = (rng.standard_normal((vocab, dim)) * energy) @ turn.T * 2
    hidden = (rng.standard_normal((400, dim)) * energy) @ turn.T + rng.standard_normal(dim)
    return Layer(weight.astype(np.float32), rng.standard_normal(vocab).astype(np.float32)), hidden.astype(np.float32)
