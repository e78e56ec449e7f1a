"""The native search that reaches for a normaliser, and its NumPy twin: the same ids, and both within their own errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from headlong import native
from headlong.engines.by_blocks import BlockReader
from headlong.engines.reference.block_reach import Reach, reach_for, reached, within
from headlong.engines.reference.blocks import BlockSearch
from headlong.layers.matrix import Layer
from headlong.plan import Blocks
from headlong.previews.blocks.boxes import blocks_of
from headlong.previews.blocks.choice import EVERY
from headlong.previews.blocks.rays import rays_of
from headlong.previews.whitening import whiten
from oracle import truth

compiled_code = pytest.mark.skipif(native.isa() == native.REFERENCE, reason="two executors are compared")
SHARE = 0.25


def searches(layer: Layer, blocks: Blocks) -> tuple[BlockSearch, Any]:
    reference = BlockSearch(layer.weight, layer.bias, blocks, SHARE)
    return reference, native.blocks(layer.weight, layer.bias, blocks, SHARE, native.isa())


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


def affine_of(layer: Layer) -> Any:
    return layer.link.lowered()[1:]


@compiled_code
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
    reference, compiled = searches(layer, blocks)
    k, affine = min(5, vocab), affine_of(layer)
    for mask in (None, (np.random.default_rng(seed).random((1, vocab)) < 0.7).astype(np.uint8)):
        live = None if mask is None else np.broadcast_to(mask[0] != 0, (len(hidden), vocab))
        expected = truth(layer, hidden, live)
        mine = within(reference, None, hidden, k, mask, affine, eps)
        theirs = compiled.within(None, hidden, k, mask, 1, *affine, eps)
        for _, _, log_probs, lse, error, done, *_ in (mine, theirs):
            off = np.abs(lse[done] - expected.lse[done])
            assert (off <= error[done] + 8 * expected.rounding[done] * affine[0]).all()
            assert (error[done] <= eps).all()
            best = -np.sort(-expected.log_probs, axis=1)[:, :k]
            there = done[:, None] & np.isfinite(best)
            assert (np.abs(log_probs[there] - best[there]) <= eps + 1e-9 * (1 + np.abs(best[there]))).all()
        both = mine[5] & theirs[5]
        np.testing.assert_array_equal(mine[1][both], theirs[1][both])
        np.testing.assert_allclose(mine[0][both], theirs[0][both], rtol=1e-12, atol=1e-12)


@compiled_code
@given(
    seed=st.integers(0, 2**32 - 1), vocab=st.sampled_from([1, 17, 300, 900]), nats=st.sampled_from([3.0, 30.0, 300.0]),
    scale=st.sampled_from([0.2, 1.0, 4.0]),
)  # fmt: skip
def test_both_reach_every_class_of_so_much_mass(seed: int, vocab: int, nats: float, scale: float) -> None:
    layer, hidden, blocks = spread(seed, vocab, 17, nats, "boxes")
    assert blocks is not None
    reference, compiled = searches(layer, blocks)
    reach = Reach(scale, reach_for(0.01, scale, vocab).depth)
    logits = truth(layer, hidden).logits
    for row, z in zip(hidden, logits, strict=True):
        lse = z.max() * scale + math.log(np.exp((z - z.max()) * scale).sum())
        wanted = np.flatnonzero(z * scale >= lse - reach.depth + 1e-9 * (1 + abs(lse)))
        mine, theirs = reached(reference, row[None], None, reach), compiled.reached(row[None], None, 1, *reach)
        for ids, own, floor, *_, done in (mine, theirs):
            if done:
                assert np.isin(wanted, ids).all()
                np.testing.assert_allclose(own, z[ids], rtol=1e-9, atol=1e-9)
                assert (z[np.setdiff1d(np.arange(vocab), ids)] <= floor + 1e-9 * (1 + np.abs(z).max())).all()


def test_the_reference_goes_by_blocks_and_not_by_all_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cost says so, for ids with their normaliser, for the normaliser alone, and under top_p."""
    monkeypatch.setenv("HEADLONG_ISA", native.REFERENCE)
    layer, hidden, _ = spread(1, 4000, 32, 30.0, "boxes")
    engine = hl.compile(layer, "codes", eps=0.01, calibration=np.repeat(hidden, 20, axis=0), blocks=True)
    assert isinstance(engine, hl.Engine)
    blocks = engine.plan.blocks
    assert blocks is not None and blocks.least <= 0.01
    always = engine.plan._replace(blocks=blocks._replace(batch=EVERY, most=layer.vocab))
    engine = hl.Engine(layer, engine.method, always, engine.norms, engine.promise)
    assert isinstance(engine.executor, BlockReader)
    expected, looked_at = truth(layer, hidden).lse, layer.vocab * float(blocks.levels[-1].records.shape[1]) / 16
    for found in (engine.topk(hidden, 5), engine.lse(hidden)):
        assert (np.abs(found.lse - expected) <= found.error).all()
        assert (found.cost.rows < layer.vocab / 8).all()
        assert (found.cost.bytes < looked_at).all()
    full = hl.compile(layer, "full")
    for more in ({"top_p": 0.7}, {"top_p": 0.97}, {"top_p": 0.9, "temperature": 2.0}, {"top_p": 0.95, "min_p": 0.1}):
        drawn, theirs = (one.sample(hidden, 40, seed=2, eps=math.inf, **more) for one in (engine, full))
        assert drawn.proved.all()
        wide = more["top_p"] > 0.96 or "temperature" in more  # such nuclei are left to a full scan
        assert wide or (drawn.cost.rows < layer.vocab / 8).all()
        np.testing.assert_array_equal(drawn.ids, theirs.ids)
    assert max(len(np.unique(row)) for row in drawn.ids) > 2  # nuclei of several classes
