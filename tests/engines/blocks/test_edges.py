"""Any layer, through blocks alone: rankings, normalisers and samples are float64's, after changes and files, too."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from bounded import IDS, clustered, through
from headlong import native
from headlong.answers import named_fields
from headlong.encode.blocks.boxes import blocks_of
from headlong.encode.whitening import whiten
from headlong.engines.base import Engine
from headlong.engines.method import Running
from headlong.engines.reference.gumbel import gumbels
from headlong.layers.matrix import Layer
from layers import DTYPES, SHAPES, shaped
from oracle import Truth, check_topk, check_within, truth
from thinned import NATIVE

DIMS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100)
VOCABS = (1, 2, 15, 16, 17, 31, 33, 255, 257, 300)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Layer, np.ndarray, np.random.Generator]:
    """A layer, hidden vectors of very different lengths, and a source of random numbers."""
    shape = draw(st.sampled_from(VOCABS)), draw(st.sampled_from(DIMS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = shaped(draw(st.sampled_from([*SHAPES])), shape, rng).astype(draw(st.sampled_from([*DTYPES.values()])))
    bias = draw(st.sampled_from([None, 0.0, 1.0, 30.0]))
    hidden = rng.standard_normal((6, shape[1])) * np.array([0, 1e-6, 1, 1, 3, 100])[:, None]
    return Layer(rows, None if bias is None else (bias * rng.standard_normal(shape[0])).astype(np.float32)), hidden, rng


def check_ranking(engine: Any, expected: Truth, hidden: np.ndarray, k: int, **which: Any) -> None:
    for batch in (1, 4):
        for start in range(0, len(hidden), batch):
            part = slice(start, start + batch)
            tops = [engine.topk(hidden[part], k, eps=eps, **which) for eps in (math.inf, 0.01)]
            for row, at in enumerate(range(part.start, min(part.stop, len(hidden)))):
                for top in tops:
                    assert top.proved.all()
                    check_topk(expected.logits[at], top.ids[row], top.logits[row], float(expected.rounding[at]))
            check_within(tops[1].lse, expected.lse[part], tops[1].error, 1e-9 * (1 + np.abs(expected.lse[part])))


def live_of(some: np.ndarray, vocab: int) -> np.ndarray:
    live = np.zeros(vocab, bool)
    live[some] = True
    return live


@given(case=cases(), data=st.data())
def test_any_question_of_any_layer(case: tuple[Layer, np.ndarray, np.random.Generator], data: st.DataObject) -> None:
    layer, hidden, rng = case
    engine = through(layer, blocks_of(layer, whiten(layer.weight, rng.standard_normal((40, layer.dim)))))
    k = data.draw(st.sampled_from(sorted({1, min(3, layer.vocab), layer.vocab})))
    check_ranking(engine, truth(layer, hidden), hidden, k)
    some = rng.choice(layer.vocab, int(rng.integers(1, layer.vocab + 1)), replace=False)
    check_ranking(engine, truth(layer, hidden, live_of(some, layer.vocab)), hidden, k, allowed=some)
    with tempfile.TemporaryDirectory() as folder:
        engine.save(Path(folder) / "engine.safetensors")
        again = hl.load(Path(folder) / "engine.safetensors")
        mine, theirs = (named_fields(one.topk(hidden, k)) for one in (engine, again))
        for name in mine.keys() - {"cost"}:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)


@given(case=cases(), steps=st.lists(st.sampled_from(["out", "in", "back"]), max_size=4))
def test_classes_go_until_none_is_left(case: tuple[Layer, np.ndarray, np.random.Generator], steps: list[str]) -> None:
    layer, hidden, rng = case
    engine: Any = through(layer, blocks_of(layer, whiten(layer.weight, rng.standard_normal((40, layer.dim)))))
    weight, alive = layer.weight.copy(), np.ones(layer.vocab, bool)
    bias = np.zeros(layer.vocab, np.float32) if layer.bias is None else layer.bias.copy()
    for step in steps:
        if step == "out":
            some = rng.choice(len(weight), int(rng.integers(1, len(weight) + 1)), replace=False)
            engine, alive[some] = engine.without(some), False
            continue
        rows = (rng.standard_normal((int(rng.integers(1, 20)), layer.dim))).astype(weight.dtype)
        if step == "in":
            engine = engine.with_rows(rows)
            weight, bias = np.concatenate([weight, rows]), np.append(bias, np.zeros(len(rows), np.float32))
            alive = np.append(alive, np.ones(len(rows), bool))
        else:
            ids = rng.choice(len(weight), min(len(rows), len(weight)), replace=False)
            engine = engine.with_rows(rows[: len(ids)], ids=ids)
            weight[ids], bias[ids], alive[ids] = rows[: len(ids)], 0, True
    for left in (alive, np.zeros_like(alive)):
        engine = engine if left is alive else engine.without(np.arange(len(weight)))
        expected = truth(Layer(weight, bias), hidden, left)
        check_ranking(engine, expected, hidden, min(3, len(weight)))


@pytest.mark.parametrize("seed", range(6))
def test_bounds_that_float32_cannot_hold_are_left_to_other_levels(seed: int) -> None:
    """Some rows are so long that their logits pass float32: a product of them is infinite, or no number."""
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((1000, 64))
    weight[rng.choice(1000, 50, replace=False)] *= 1e12
    hidden = (rng.standard_normal((3, 64)) * 10.0 ** rng.uniform(26, 27.5)).astype(np.float32)
    layer = Layer(weight.astype(np.float32))
    expected = truth(layer, hidden)
    for calibration in (None, rng.standard_normal((200, 64))):
        top = hl.compile(layer, "codes", calibration=calibration, blocks=True, eps=math.inf).topk(hidden, 10)
        for row in range(len(hidden)):
            check_topk(expected.logits[row], top.ids[row], top.logits[row], float(expected.rounding[row]))


def test_smooth_links_are_drawn_by_their_table_everywhere() -> None:
    """Scores of the same draws, by blocks and by a look at all classes."""
    rng = np.random.default_rng(0)
    weight = np.repeat(rng.standard_normal((40, 32)), 40, axis=0) + 1e-4 * rng.standard_normal((1600, 32))
    layer, hidden = Layer(weight.astype(np.float32), None, hl.Gss(0.5, 3.0)), rng.standard_normal((20, 32))
    engines = [hl.compile(layer, "codes", blocks=way, eps=math.inf) for way in (True, False)]
    ways: tuple[dict[str, Any], ...] = ({"top_k": 50}, {"min_p": 0.1}, {"allowed": np.arange(40)})
    for how in ways:
        drawn = [engine.sample(hidden, 5, 0.01, seed=3, **how) for engine in engines]
        assert (drawn[0].ids == drawn[1].ids).all()
        np.testing.assert_allclose(drawn[0].score, drawn[1].score, rtol=1e-13, atol=1e-9)


compiled_code = pytest.mark.skipif(native.isa() == native.REFERENCE, reason="NumPy looks at one query after the other")
TEMPERATURES = (0.1, 0.7, 1.0, 3.0, 10.0)


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


@NATIVE
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_sample_has_the_largest_key_of_all(level: str, temperature: float) -> None:
    layer, hidden = clustered(1000, 40)
    engine = through(layer, blocks_of(layer, whiten(layer.weight, hidden.astype(np.float64))), math.inf)
    live = np.zeros((1, 1000), bool)
    live[0, 300:900] = True
    for rows in (hidden[:1], hidden[:3]):
        check(engine, layer, rows, temperature, n=2)
        check(engine, layer, rows, temperature, class0=7)
        check(engine, layer, rows, temperature, live=live, allowed=np.arange(300, 900))
    each = np.stack([np.roll(live[0], 100 * row) for row in range(3)])
    gone = np.stack([np.flatnonzero(~row) for row in each])
    check(engine, layer, hidden[:3], temperature, live=each, exclude=gone)


@given(
    seed=st.integers(0, 2**32 - 1),
    vocab=st.sampled_from([1, 2, 15, 17, 33, 300, 700]), dim=st.sampled_from([1, 3, 16, 17, 65]),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0]), temperature=st.sampled_from([1e-3, 0.3, 1.0, 5.0, 1e4]),
)  # fmt: skip
def test_any_layer(seed: int, vocab: int, dim: int, scale: float, temperature: float) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((vocab, dim)) * np.exp(rng.normal(0, 1, (vocab, 1)))
    weight[rng.random(vocab) < 0.3] = weight[0]
    bias = rng.standard_normal(vocab).astype(np.float32) if seed % 2 else None
    layer = Layer((scale * weight).astype(np.float32), bias, hl.Affine(0.5, 3.0) if seed % 3 else None)
    hidden = rng.standard_normal((4, dim)) * np.array([0, 1e-3, 1, 20])[:, None]
    blocks = blocks_of(layer, whiten(layer.weight, rng.standard_normal((40, dim))))
    engine, live = through(layer, blocks, math.inf), np.zeros((1, vocab), bool)
    check(engine, layer, hidden, temperature, n=2)
    live[0, rng.choice(vocab, int(rng.integers(1, vocab + 1)), replace=False)] = True
    check(engine, layer, hidden, temperature, live=live, allowed=np.flatnonzero(live))


@compiled_code
def test_a_long_way_and_queries_together() -> None:
    layer, hidden = clustered(300_001, 16)
    blocks = blocks_of(layer, whiten(layer.weight, hidden.astype(np.float64)))
    engine, full = through(layer, blocks, math.inf), hl.compile(layer, "full", eps=math.inf)
    for temperature in (0.5, 2.0):
        for threads in (1, 3):
            fewer = Engine(layer, engine.method, engine.plan, engine.norms, engine.promise, Running(threads))
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
    engine = through(alike, blocks_of(alike, whiten(alike.weight, vectors)), math.inf)
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
