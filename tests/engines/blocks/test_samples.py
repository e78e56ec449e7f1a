"""Plain samples by blocks: the class with the largest key of all, and what a pass over all classes draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from adversarial import CASES, build
from bounded import IDS, LEVELS, clustered
from headlong import native
from headlong.engines.base import Engine
from headlong.engines.reference.gumbel import gumbels
from headlong.layers.matrix import Layer
from headlong.plan import Blocks
from headlong.previews.blocks.boxes import blocks_of
from headlong.previews.blocks.choice import EVERY
from headlong.previews.blocks.rays import rays_of
from headlong.previews.whitening import whiten
from oracle import truth

compiled_code = pytest.mark.skipif(native.isa() == native.REFERENCE, reason="NumPy looks at one query after the other")
TEMPERATURES = (0.1, 0.7, 1.0, 3.0, 10.0)


def through(layer: Layer, blocks: Blocks) -> Engine:
    """An engine whose samples come from ``blocks``, whatever the batch."""
    plain = hl.compile(layer, "codes", eps=math.inf, delta=0.0, blocks=False)
    assert isinstance(plain, Engine)
    always = blocks._replace(max_batch=EVERY, max_k=layer.vocab, samples=True)
    return Engine(layer, plain.method, plain.plan._replace(blocks=always), plain.norms, plain.promise)


def keys(layer: Layer, hidden: np.ndarray, temperature: float, seed: int, row0: int, draw: int, class0: int = 0) -> np.ndarray:
    """``link(z) / T + g [batch, vocab]`` in float64."""
    ids = np.arange(layer.vocab) + class0
    noise = [gumbels(seed, row0 + row, draw, ids) for row in range(len(hidden))]
    return layer.link(truth(layer, hidden).logits) / temperature + np.stack(noise)


def check(
    engine: Any, layer: Layer, hidden: np.ndarray, temperature: float = 1.0, n: int = 1, live: Any = None, **more: Any
) -> None:
    """Every draw has the largest key of all, and its own logit and key."""
    drawn = engine.sample(hidden, n=n, temperature=temperature, seed=11, position=4 + np.arange(len(hidden)), **more)
    assert drawn.proved.all()
    for draw in range(n):
        all_ = keys(layer, hidden, temperature, 11, 4, draw, more.get("class0", 0))
        if live is not None:
            all_ = np.where(live, all_, -np.inf)
        near = 1e-9 * (1 + np.abs(all_.max(axis=1)))
        own = np.take_along_axis(all_, drawn.ids[:, draw : draw + 1], axis=1)[:, 0]
        assert (own >= all_.max(axis=1) - near).all()
        assert (np.abs(own - drawn.score[:, draw]) <= near).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_sample_has_the_largest_key_of_all(level: str, temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADLONG_ISA", level)
    layer, hidden = clustered(1000, 40)
    engine = through(layer, blocks_of(layer, whiten(layer.weight, hidden.astype(np.float64))))
    live = np.zeros((1, 1000), bool)
    live[0, 300:900] = True
    for rows in (hidden[:1], hidden[:3]):
        check(engine, layer, rows, temperature, n=2)
        check(engine, layer, rows, temperature, class0=7)
        check(engine, layer, rows, temperature, live=live, allowed=np.arange(300, 900))
    each = np.stack([np.roll(live[0], 100 * row) for row in range(3)])
    gone = np.stack([np.flatnonzero(~row) for row in each])
    check(engine, layer, hidden[:3], temperature, live=each, exclude=gone)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_on_layers_that_break_careless_bounds(name: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADLONG_ISA", level)
    case = build(name, "float32")
    engine = hl.compile(case.layer, calibration=case.hidden, **IDS)
    full = hl.compile(case.layer, "full", eps=math.inf)
    for temperature in (0.5, 4.0):
        mine, theirs = (one.sample(case.hidden, n=3, temperature=temperature, seed=2) for one in (engine, full))
        np.testing.assert_array_equal(mine.ids, theirs.ids)


@given(
    seed=st.integers(0, 2**32 - 1),
    vocab=st.sampled_from([1, 2, 15, 17, 33, 300, 700]), dim=st.sampled_from([1, 3, 16, 17, 65]),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0]), temperature=st.sampled_from([1e-3, 0.3, 1.0, 5.0, 1e4]),
    by=st.sampled_from(["boxes", "rays"]),
)  # fmt: skip
def test_any_layer(seed: int, vocab: int, dim: int, scale: float, temperature: float, by: str) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((vocab, dim)) * np.exp(rng.normal(0, 1, (vocab, 1)))
    weight[rng.random(vocab) < 0.3] = weight[0]
    bias = rng.standard_normal(vocab).astype(np.float32) if seed % 2 else None
    layer = Layer((scale * weight).astype(np.float32), bias, hl.Affine(0.5, 3.0) if seed % 3 else None)
    hidden = rng.standard_normal((4, dim)) * np.array([0, 1e-3, 1, 20])[:, None]
    basis = whiten(layer.weight, rng.standard_normal((40, dim)))
    blocks = blocks_of(layer, basis) if by == "boxes" else rays_of(layer, basis)
    if blocks is not None:
        engine, live = through(layer, blocks), np.zeros((1, vocab), bool)
        check(engine, layer, hidden, temperature, n=2)
        live[0, rng.choice(vocab, int(rng.integers(1, vocab + 1)), replace=False)] = True
        check(engine, layer, hidden, temperature, live=live, allowed=np.flatnonzero(live))


@compiled_code
def test_a_long_way_and_queries_together() -> None:
    layer, hidden = clustered(300_001, 16)
    blocks = blocks_of(layer, whiten(layer.weight, hidden.astype(np.float64)))
    engine, full = through(layer, blocks), hl.compile(layer, "full", eps=math.inf)
    for temperature in (0.5, 2.0):
        for threads in (1, 3):
            fewer = Engine(layer, engine.method, engine.plan, engine.norms, engine.promise, threads=threads)
            for rows in (hidden[:1], hidden[:20]):
                mine, theirs = (one.sample(rows, temperature=temperature, seed=3) for one in (fewer, full))
                np.testing.assert_array_equal(mine.ids, theirs.ids)


@compiled_code
def test_few_rows_are_read_and_what_no_bound_tells_apart_is_given_up() -> None:
    layer, hidden = clustered(20_000, 48)
    cost = hl.compile(layer, calibration=hidden, **IDS).sample(hidden[:20], seed=1).cost
    assert cost.rows.mean() < 200 and cost.bytes.mean() < 0.1 * layer.weight.nbytes
    rng = np.random.default_rng(0)
    alike = Layer((rng.standard_normal(48) + 1e-6 * rng.standard_normal((5000, 48))).astype(np.float32))
    vectors = 1e5 * rng.standard_normal((40, 48))
    engine = through(alike, blocks_of(alike, whiten(alike.weight, vectors)))
    rows = []
    for row in vectors:
        check(engine, alike, row[None], temperature=0.01)
        rows.append(int(engine.sample(row[None], temperature=0.01, seed=11, position=4).cost.rows[0]))
    assert max(rows) > 5000 and min(rows) < 100


def test_other_links_look_at_all_classes() -> None:
    layer, hidden = clustered(3000, 40)
    capped = Layer(layer.weight, layer.bias, hl.SoftCap(3.0))
    engine = hl.compile(capped, calibration=hidden, **IDS)
    assert engine.plan.blocks is not None and not engine.plan.blocks.samples
    check(engine, capped, hidden[:3])
