"""Searches by blocks behind whoever asks, shards or an index in the style of FAISS: the answers of a pass over all rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.engines.base import Engine
from headlong.engines.shards import here
from oracle import check_topk, check_within, truth
from plans import decaying

VOCAB, DIM, CUT, ASKED = 9001, 48, 4500, 40
FILTERS: list[dict[str, Any]] = [
    {"top_k": 7, "n": 3}, {"min_p": 0.05}, {"top_p": 0.7, "temperature": 0.7}, {"n": 2},
    {"top_k": 50, "top_p": 0.7, "min_p": 0.01},
]  # fmt: skip


@pytest.fixture(params=[level for level in native.levels() if level in ("portable", native.levels()[-1])])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HEADLONG_ISA", request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def case() -> tuple[hl.Layer, np.ndarray]:
    layer, hidden = decaying(VOCAB, DIM, 2.0, seed=3)
    weight = layer.weight.copy()
    weight[8000:8020] = weight[100:120]  # ties across shards: the smaller id first
    return hl.Layer(weight, np.zeros(VOCAB, np.float32)), hidden


def by_blocks(layer: hl.Layer, hidden: np.ndarray, **more: Any) -> Engine:
    engine = hl.compile(layer, "codes", calibration=hidden[ASKED:], blocks=True, threads=2, **more)
    assert isinstance(engine, Engine)
    assert engine.plan.blocks is not None
    return engine


@pytest.mark.usefixtures("level")
def test_shards_answer_as_one_layer_does(case: tuple[hl.Layer, np.ndarray]) -> None:
    whole, hidden = case
    rows, parts = hidden[:9], [slice(0, CUT), slice(CUT, VOCAB)]
    shards = here([by_blocks(hl.Layer(whole.weight[part], whole.bias[part]), hidden, eps=math.inf) for part in parts])
    plain, true = hl.compile(whole, "full", eps=0.01, threads=2), truth(whole, rows)
    for k in (1, 10, 64):
        for some in (rows[:1], rows):
            found = shards.topk(some, k)
            for b in range(len(some)):
                check_topk(true.logits[b], found.ids[b], found.logits[b], float(true.rounding[b]))
            assert found.proved.all()
    masks: list[dict[str, Any]] = [{"exclude": list(range(3000))}, {"allowed": list(range(4000, 5000))}]
    for limits in masks:
        np.testing.assert_array_equal(shards.topk(rows, 10, **limits).ids, plain.topk(rows, 10, **limits).ids)
    for filters in FILTERS:
        places = 3 + np.arange(len(rows))
        drawn, expected = (engine.sample(rows, seed=5, position=places, **filters) for engine in (shards, plain))
        np.testing.assert_array_equal(drawn.ids, expected.ids, err_msg=str(filters))
    within = shards.topk(rows, 10, eps=0.05)
    check_within(within.lse, true.lse, within.error, 0.0)
    assert (within.error <= 0.05).all()


def test_codes_answer_what_they_alone_can_behind_blocks_too(case: tuple[hl.Layer, np.ndarray]) -> None:
    """Entropies, and draws of each row by a rule of its own, cost what they do without blocks, and are the same."""
    layer, hidden = case
    engine, rows = by_blocks(layer, hidden), hidden[:9]
    without = Engine(layer, engine.method, engine.plan._replace(blocks=None), engine.norms, engine.promise, threads=2)
    rules = {"seed": np.arange(9), "top_p": np.linspace(0.3, 0.9, 9), "eps": math.inf}
    for ask in (lambda one: one.entropy(rows / 40), lambda one: one.sample(rows, **rules)):
        mine, theirs = ask(engine), ask(without)
        for name in mine._fields[:3]:
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
        np.testing.assert_array_equal(mine.cost.bytes, theirs.cost.bytes)
    each = engine.sample(rows, seed=np.arange(9), top_k=5, eps=math.inf)  # a search answers that sooner, and proves it
    lone = engine.sample(rows[8:], seed=8, position=8, top_k=5, eps=math.inf)
    assert each.proved.all() and each.cost.bytes[8] == lone.cost.bytes[0] and (each.ids[8] == lone.ids[0]).all()
