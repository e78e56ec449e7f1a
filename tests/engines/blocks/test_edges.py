"""Any layer, through blocks alone: every answer is float64's, whatever the sizes, rows, masks and changes, and after a file."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from headlong.engines.base import Engine
from headlong.layers.matrix import Layer
from headlong.plan import Blocks
from headlong.previews.blocks.boxes import blocks_of
from headlong.previews.blocks.choice import EVERY
from headlong.previews.blocks.rays import rays_of
from headlong.previews.whitening import whiten
from oracle import Truth, check_topk, check_within, truth

DIMS = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100)
VOCABS = (1, 2, 15, 16, 17, 31, 33, 255, 257, 300)
KINDS = (np.float32, np.float16, ml_dtypes.bfloat16)


def rows_of(what: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    rows = rng.standard_normal(shape)
    match what:
        case "equal":
            rows[:] = rows[0]
        case "zero":
            rows[:] = 0
        case "half zero":
            rows[rng.random(shape[0]) < 0.5] = 0
        case "few":
            rows = rows[rng.integers(0, min(3, shape[0]), shape[0])]
        case "far":
            rows *= np.exp(rng.normal(0, 3, (shape[0], 1)))
        case "one huge":
            rows[rng.integers(shape[0])] *= 1000
        case "constant":
            rows[:, rng.random(shape[1]) < 0.7] = 1
    return rows


@st.composite
def cases(draw: st.DrawFn) -> tuple[Layer, np.ndarray, np.random.Generator]:
    """A layer, hidden vectors of very different lengths, and a source of random numbers."""
    shape = draw(st.sampled_from(VOCABS)), draw(st.sampled_from(DIMS))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    whats = ("random", "equal", "zero", "half zero", "few", "far", "one huge", "constant")
    rows = rows_of(draw(st.sampled_from(whats)), shape, rng).astype(draw(st.sampled_from(KINDS)))
    bias = draw(st.sampled_from([None, 0.0, 1.0, 30.0]))
    hidden = rng.standard_normal((6, shape[1])) * np.array([0, 1e-6, 1, 1, 3, 100])[:, None]
    return Layer(rows, None if bias is None else (bias * rng.standard_normal(shape[0])).astype(np.float32)), hidden, rng


def through(layer: Layer, blocks: Blocks) -> Engine:
    """An engine whose ids come from ``blocks`` whatever is asked, normalisers too."""
    plain = hl.compile(layer, "codes", eps=0.01, delta=0.0, blocks=False)
    assert isinstance(plain, Engine)
    all_of_it = blocks._replace(min_eps=1e-3, max_batch=EVERY, max_k=layer.vocab)
    return Engine(layer, plain.method, plain.plan._replace(blocks=all_of_it), plain.norms, plain.promise)


def check(engine: Any, expected: Truth, hidden: np.ndarray, k: int, **which: Any) -> None:
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


@pytest.mark.parametrize("by", ["boxes", "rays"])
@given(case=cases(), data=st.data())
def test_any_question_of_any_layer(by: str, case: tuple[Layer, np.ndarray, np.random.Generator], data: st.DataObject) -> None:
    layer, hidden, rng = case
    basis = whiten(layer.weight, rng.standard_normal((40, layer.dim)))
    blocks = blocks_of(layer, basis) if by == "boxes" else rays_of(layer, basis)
    if blocks is None:
        return  # rows out of the reach of rays
    engine = through(layer, blocks)
    k = data.draw(st.sampled_from(sorted({1, min(3, layer.vocab), layer.vocab})))
    check(engine, truth(layer, hidden), hidden, k)
    some = rng.choice(layer.vocab, int(rng.integers(1, layer.vocab + 1)), replace=False)
    check(engine, truth(layer, hidden, live_of(some, layer.vocab)), hidden, k, allowed=some)
    with tempfile.TemporaryDirectory() as folder:
        engine.save(Path(folder) / "engine.safetensors")
        again = hl.load(Path(folder) / "engine.safetensors")
        for mine, theirs in zip(engine.topk(hidden, k)[:-1], again.topk(hidden, k)[:-1], strict=True):
            np.testing.assert_array_equal(mine, theirs)


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
        check(engine, expected, hidden, min(3, len(weight)))


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
