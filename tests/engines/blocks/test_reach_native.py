"""Native searches that reach for a normaliser: ids and log-probabilities within what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from headlong import native
from headlong.layers.matrix import Layer
from headlong.plan import Blocks, Plan
from headlong.previews.blocks.boxes import blocks_of
from headlong.previews.blocks.rays import rays_of
from headlong.previews.whitening import whiten
from oracle import check_topk, truth


def reader_by(layer: Layer, blocks: Blocks) -> Any:
    """By blocks wherever these can answer."""
    level, norms = native.isa(), np.zeros(layer.vocab, np.float32)
    rows = native.executor(layer.weight, layer.bias, norms, layer.link.lowered(), Plan(), level)
    always = blocks._replace(max_batch=2**31 - 1, max_k=layer.vocab, min_eps=1e-3)
    return native.reader(rows, None, native.blocks(layer.weight, layer.bias, blocks, 0.25, level), always)


def spread(seed: int, vocab: int, dim: int, nats: float, by: str) -> tuple[Layer, np.ndarray, Blocks | None]:
    """A layer whose logits have a standard deviation of about ``nats``, some rows the same, and blocks of it."""
    rng = np.random.default_rng(seed)
    energy = np.arange(1, dim + 1.0) ** -0.7
    centres = rng.standard_normal((max(1, vocab // 30), dim)) * energy
    weight = centres[rng.integers(0, len(centres), vocab)] + 0.2 * rng.standard_normal((vocab, dim)) * energy
    weight[rng.random(vocab) < 0.1] = weight[0]
    bias = rng.standard_normal(vocab).astype(np.float32) if seed % 2 else None
    layer = Layer(weight.astype(np.float32), bias, hl.Affine(1.5, -2.0) if seed % 3 else None)
    hidden = rng.standard_normal((4, dim)) * energy * nats
    basis = whiten(layer.weight, rng.standard_normal((40, dim)) * energy)
    return layer, hidden, blocks_of(layer, basis) if by == "boxes" else rays_of(layer, basis)


@given(
    seed=st.integers(0, 2**32 - 1),
    vocab=st.sampled_from([1, 2, 15, 17, 33, 300, 900]), dim=st.sampled_from([1, 3, 16, 17, 65]),
    nats=st.sampled_from([0.0, 0.3, 3.0, 30.0, 300.0]), eps=st.sampled_from([1e-3, 0.01, 0.05, 2.0]),
    by=st.sampled_from(["boxes", "rays"]),
)  # fmt: skip
def test_any_layer(seed: int, vocab: int, dim: int, nats: float, eps: float, by: str) -> None:
    layer, hidden, blocks = spread(seed, vocab, dim, nats, by)
    if blocks is None:
        return
    k, affine = min(5, vocab), layer.link.lowered()[1:]
    for mask in (None, (np.random.default_rng(seed).random((1, vocab)) < 0.7).astype(np.uint8)):
        live = None if mask is None else np.broadcast_to(mask[0] != 0, (len(hidden), vocab))
        expected = truth(layer, hidden, live)
        logits, ids, log_probs, lse, error, *_, dense = reader_by(layer, blocks).topk(hidden, k, eps, mask, 1)
        done = ~dense
        off = np.abs(lse[done] - expected.lse[done])
        assert (off <= error[done] + 8 * expected.rounding[done] * affine[0]).all()
        assert (error[done] <= eps).all()
        best = -np.sort(-expected.log_probs, axis=1)[:, :k]
        there = done[:, None] & np.isfinite(best)
        assert (np.abs(log_probs[there] - best[there]) <= eps + 1e-9 * (1 + np.abs(best[there]))).all()
        for row in np.flatnonzero(done):
            check_topk(expected.logits[row], ids[row], logits[row], float(expected.rounding[row]))
