"""Normalisers by blocks: classes that no search scored have next to no mass, and the error says how much."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from adversarial import CASES, build
from headlong import native
from headlong.engines.base import Engine
from headlong.layers.matrix import Layer
from headlong.previews.blocks.choice import EVERY
from oracle import check_topk, check_within, truth

LEVELS = native.levels()[1:]
EPS = 0.01


def peaked(vocab: int = 6000, dim: int = 32, scale: float = 40.0) -> tuple[Layer, np.ndarray]:
    """Classes whose logits spread over many nats: a few of them have all the mass."""
    rng = np.random.default_rng(4)
    energy = np.arange(1, dim + 1.0) ** -0.8
    centres = rng.standard_normal((vocab // 40, dim)) * energy
    weight = centres[rng.integers(0, len(centres), vocab)] + 0.2 * rng.standard_normal((vocab, dim)) * energy
    hidden = rng.standard_normal((80, dim)) * energy * scale
    return Layer(weight.astype(np.float32), rng.standard_normal(vocab).astype(np.float32)), hidden.astype(np.float32)


def by_blocks(layer: Layer, hidden: Any, **options: Any) -> Engine:
    """An engine whose normalisers go by blocks, whether they are worth their while or not."""
    engine = hl.compile(layer, "codes", eps=EPS, calibration=hidden, blocks=True, **options)
    blocks = engine.plan.blocks._replace(min_eps=1e-3, max_batch=EVERY, max_k=layer.vocab)
    plan = engine.plan._replace(blocks=blocks)
    return Engine(layer, engine.method, plan, engine.norms, engine.promise, threads=engine.threads)


def check(engine: Engine, layer: Layer, hidden: Any, k: int, eps: float) -> None:
    """By the native call, by the steps in Python (which a mask takes), and for the normaliser alone."""
    expected = truth(layer, hidden)
    for top in (engine.topk(hidden, k, eps=eps), engine.topk(hidden, k, eps=eps, exclude=[-1])):
        check_within(top.lse, expected.lse, top.error, 4 * expected.rounding)
        fine = 4 * expected.rounding < eps  # where float64 cannot say a logit within eps, no executor can
        assert (top.error <= eps)[fine & ~top.cost.dense].all()
        for row in range(len(hidden)):
            check_topk(expected.logits[row], top.ids[row], top.logits[row], expected.rounding[row])
    found = engine.lse(hidden, eps=eps)
    check_within(found.lse, expected.lse, found.error, 4 * expected.rounding)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_errors_hold_on_layers_that_break_careless_bounds(name: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADLONG_ISA", level)
    case = build(name, "float32")
    engine = by_blocks(case.layer, case.hidden, delta=0)
    for k in {1, min(10, case.layer.vocab), case.layer.vocab}:
        check(engine, case.layer, case.hidden, k, EPS)


@given(st.integers(0, 2**32), st.integers(1, 900), st.integers(1, 40), st.floats(0.1, 30), st.sampled_from([0.001, 0.05, 2.0]))
def test_errors_hold_for_any_spread(seed: int, vocab: int, dim: int, spread: float, eps: float) -> None:
    rng = np.random.default_rng(seed)
    layer = Layer((rng.standard_normal((vocab, dim)) / np.sqrt(dim)).astype(np.float32), None, hl.Affine(1.5, -2.0))
    hidden = (rng.standard_normal((5, dim)) * spread).astype(np.float32)
    check(by_blocks(layer, hidden, delta=0), layer, hidden, min(3, vocab), eps)


def test_a_peaked_layer_reads_a_few_blocks_and_proves_its_normaliser() -> None:
    layer, hidden = peaked()
    engine = hl.compile(layer, "codes", eps=EPS, calibration=hidden[20:], blocks=True)
    other = hl.compile(layer, "codes", eps=EPS, calibration=hidden[20:], blocks=False)
    assert engine.plan.blocks.min_eps <= EPS
    mine, theirs = ([one.topk(row[None], 10) for row in hidden[:20]] for one in (engine, other))
    assert np.mean([top.cost.bytes for top in mine]) < 0.5 * np.mean([top.cost.bytes for top in theirs])
    check(engine, layer, hidden[:20], 10, EPS)
    check(engine, layer, hidden[:20], 10, 0.2)
    top, lone = engine.topk(hidden[:9], 10), [engine.topk(row[None], 10) for row in hidden[:9]]
    assert (top.ids == np.concatenate([one.ids for one in lone])).all()


def test_a_nucleus_is_decided_by_the_classes_that_were_scored() -> None:
    layer, hidden = peaked()
    engine, other = by_blocks(layer, hidden), hl.compile(layer, "full", eps=EPS)
    live = np.random.default_rng(2).random(layer.vocab) < 0.5
    for more in ({}, {"temperature": 0.6}, {"min_p": 0.2}, {"exclude": np.flatnonzero(~live)}, {"temperature": 4.0}):
        mine, theirs = (
            one.sample(hidden[:20], 5, top_p=0.8, seed=3, position=9 + np.arange(20), eps=math.inf, **more)
            for one in (engine, other)
        )
        np.testing.assert_array_equal(mine.ids, theirs.ids)
        np.testing.assert_allclose(mine.score, theirs.score, rtol=1e-9)
    lone = engine.sample(hidden[:1], 5, top_p=0.8, seed=3, eps=math.inf)
    assert lone.proved.all()
    assert lone.cost.rows[0] < layer.vocab / 8
