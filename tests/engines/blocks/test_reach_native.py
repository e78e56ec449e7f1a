"""Native searches that reach for a normaliser: ids, log-probabilities and every class of so much mass, within what they say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from headlong import native
from headlong.layers.matrix import Layer
from headlong.plan import Blocks
from headlong.previews.blocks.boxes import blocks_of
from headlong.previews.blocks.rays import rays_of
from headlong.previews.whitening import whiten
from oracle import check_topk, truth


def search_of(layer: Layer, blocks: Blocks) -> Any:
    return native.blocks(layer.weight, layer.bias, blocks, 0.25, native.isa())


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
        logits, ids, log_probs, lse, error, done, *_ = search_of(layer, blocks).within(None, hidden, k, mask, 1, *affine, eps)
        off = np.abs(lse[done] - expected.lse[done])
        assert (off <= error[done] + 8 * expected.rounding[done] * affine[0]).all()
        assert (error[done] <= eps).all()
        best = -np.sort(-expected.log_probs, axis=1)[:, :k]
        there = done[:, None] & np.isfinite(best)
        assert (np.abs(log_probs[there] - best[there]) <= eps + 1e-9 * (1 + np.abs(best[there]))).all()
        for row in np.flatnonzero(done):
            check_topk(expected.logits[row], ids[row], logits[row], float(expected.rounding[row]))


@given(
    seed=st.integers(0, 2**32 - 1), vocab=st.sampled_from([1, 17, 300, 900]), nats=st.sampled_from([3.0, 30.0, 300.0]),
    scale=st.sampled_from([0.2, 1.0, 4.0]),
)  # fmt: skip
def test_every_class_of_so_much_mass_is_reached(seed: int, vocab: int, nats: float, scale: float) -> None:
    layer, hidden, blocks = spread(seed, vocab, 17, nats, "boxes")
    assert blocks is not None
    search, depth = search_of(layer, blocks), math.log(vocab) - math.log(math.expm1(0.018))
    for row, z in zip(hidden, truth(layer, hidden).logits, strict=True):
        lse = z.max() * scale + math.log(np.exp((z - z.max()) * scale).sum())
        wanted = np.flatnonzero(z * scale >= lse - depth + 1e-9 * (1 + abs(lse)))
        ids, own, floor, *_, done = search.reached(row[None], None, 1, scale, depth)
        if done:
            assert np.isin(wanted, ids).all()
            np.testing.assert_allclose(own, z[ids], rtol=1e-9, atol=1e-9)
            assert (z[np.setdiff1d(np.arange(vocab), ids)] <= floor + 1e-9 * (1 + np.abs(z).max())).all()
