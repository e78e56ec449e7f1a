"""Blocks that no vectors recommended: built where rows of the layer are found by them, given up where queries are not."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.arrays import Array
from headlong.plan import MOST_SCORED, Plan
from headlong.previews.blocks.trial import CLASSES

K, LEADING = 10, 3
TRIED, SELDOM = 8, 512  # searches after which a trial may be over, and calls of which one still searches: csrc/blocks/search.h


def rows(dim: int = 40) -> Array:
    """Near each other in three coordinates, far from each other in all others, where they are short."""
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(CLASSES, dim))
    weight[:, LEADING:] *= 0.05
    return weight.astype(np.float32)


def plan_of(engine: hl.Engine) -> Plan:
    plan: Plan = engine.plan
    return plan


def right(weight: Array, hidden: Array, ids: Array) -> bool:
    logits = hidden.astype(np.float64) @ weight.T.astype(np.float64)
    return bool((np.argsort(-logits, axis=1, kind="stable")[:, : ids.shape[1]] == ids).all())


def test_rows_that_are_found_by_blocks_recommend_them(tmp_path: Path) -> None:
    weight = rows()
    hidden = np.random.default_rng(4).normal(size=(30, weight.shape[1]))
    hidden[:, LEADING:] *= 0.1
    engine = hl.compile(hl.Layer(weight), "codes", eps=math.inf, delta=0.0)
    beside = hl.compile(hl.Layer(weight), "codes", eps=math.inf, delta=0.0, blocks=False)
    blocks = plan_of(engine).blocks
    assert blocks is not None and math.isfinite(blocks.trial) and plan_of(beside).blocks is None
    engine.save(tmp_path / "engine.safetensors")
    for one in (engine, hl.load(tmp_path / "engine.safetensors")):
        top = [one.topk(row[None], K) for row in hidden]
        assert all(right(weight, row[None], each.ids) and each.proved.all() for row, each in zip(hidden, top, strict=True))
        read = np.mean([each.cost.bytes[0] for each in top])
        assert read < 0.2 * beside.topk(hidden[:1], K).cost.bytes[0]
    assert plan_of(hl.load(tmp_path / "engine.safetensors")).blocks.trial == blocks.trial


@pytest.mark.parametrize("level", native.levels()[1:])
def test_searches_in_vain_are_soon_no_longer_made(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries that look where no rows are near each other open nearly everything."""
    weight = rows()
    engine = hl.compile(hl.Layer(weight), "codes", eps=math.inf, delta=0.0)
    monkeypatch.setenv("HEADLONG_ISA", level)
    plan = plan_of(engine)
    assert plan.blocks is not None
    easy, hard = np.zeros((2, weight.shape[1])), np.random.default_rng(5).normal(size=(TRIED, weight.shape[1]))
    easy[:, 0], hard[:, :LEADING] = (1, -1), 0
    search = native.blocks(weight, None, plan.blocks, MOST_SCORED, level)
    assert search.topk(easy, K, None, 1).done.all()
    found = search.topk(hard, K, None, 1)
    assert ((found.bytes > plan.blocks.trial) | ~found.done).all()  # all of them in vain
    again = search.topk(easy, K, None, 1)
    assert not again.done.any() and (again.bytes == 0).all()  # not even what is easy is searched for
    vain = [float(search.topk(hard[:1], K, None, 1).bytes[0]) for _ in range(4 * SELDOM)]
    assert 0 < np.count_nonzero(vain) < 20
    made = [bool(search.topk(easy, K, None, 1).done.all()) for _ in range(2 * SELDOM)]
    assert sum(made) > SELDOM // 2 and all(made[-100:])  # a few calls search still, and bring searches back


def test_an_engine_that_gave_up_answers_as_one_without_blocks() -> None:
    weight = rows()
    engine, beside = (hl.compile(hl.Layer(weight), "codes", eps=math.inf, delta=0.0, **how) for how in ({}, {"blocks": False}))
    assert plan_of(engine).blocks is not None
    hard = np.random.default_rng(6).normal(size=(3 * TRIED, weight.shape[1]))  # a later call searches again
    hard[:, :LEADING] = 0
    top = [engine.topk(row[None], K) for row in hard]
    assert all(right(weight, row[None], each.ids) and each.proved.all() for row, each in zip(hard, top, strict=True))
    last, plain = top[-1].cost, beside.topk(hard[-1:], K).cost
    assert last.bytes[0] == plain.bytes[0] and last.rows[0] == plain.rows[0]
    drawn = engine.sample(hard, n=2, top_k=5, seed=3)
    assert (drawn.ids == beside.sample(hard, n=2, top_k=5, seed=3).ids).all()


def test_calibrated_blocks_are_on_trial_when_other_queries_come() -> None:
    """Calibration vectors open few blocks, those that are asked open nearly all of them."""
    weight = rows()
    easy = np.random.default_rng(11).normal(size=(600, weight.shape[1]))
    easy[:, LEADING:] *= 0.5
    hard = np.random.default_rng(12).normal(size=(20 * TRIED, weight.shape[1]))
    hard[:, :LEADING] = 0
    engine, beside, always = (
        hl.compile(hl.Layer(weight), "codes", calibration=easy, eps=math.inf, delta=0.0, segments=[[0, 40, 8]], **how)
        for how in ({}, {"blocks": False}, {"blocks": True})
    )
    assert math.isfinite(plan_of(engine).blocks.trial) and math.isinf(plan_of(always).blocks.trial)
    for batch in (1, 64):
        top = [engine.topk(hard[at : at + batch], K) for at in range(0, len(hard), batch)]
        assert all(each.proved.all() for each in top)
        assert (top[-1].cost.bytes <= beside.topk(hard[-len(top[-1].ids) :], K).cost.bytes).all()
    few = engine.topk(easy[:1], K).cost.bytes[0]  # searches are no longer made
    for at in range(2 * SELDOM):
        engine.topk(easy[at % len(easy)][None], K)
    assert engine.topk(easy[:1], K).cost.bytes[0] < few / 2


@pytest.mark.parametrize("ask", ["topk", "masked", "top_k", "min_p"])
def test_what_was_searched_in_vain_is_counted(ask: str) -> None:
    weight = np.random.default_rng(8).normal(size=(6_000, 128)).astype(np.float32)
    hidden = np.random.default_rng(9).normal(size=(1, 128))
    how = {"top_k": {"top_k": 9}, "min_p": {"min_p": 0.9}}.get(ask, {})

    def cost(blocks: bool) -> hl.Cost:
        engine = hl.compile(hl.Layer(weight), "codes", blocks=blocks, eps=math.inf)
        if how:
            return engine.sample(hidden, seed=1, **how).cost
        return engine.topk(hidden, K, allowed=np.arange(5_990) if ask == "masked" else None).cost

    assert cost(True).bytes[0] > 1.05 * cost(False).bytes[0]


@pytest.mark.parametrize(("vocab", "dim", "k"), [(1024, 64, 1), (3000, 32, 10)])
def test_a_flat_layer_costs_at_most_a_tenth_more(vocab: int, dim: int, k: int) -> None:
    """Two queries at once, too, which share what a pass reads."""
    rng = np.random.default_rng(0)
    layer = hl.Layer(rng.standard_normal((vocab, dim)).astype(np.float32))
    vectors, hidden = rng.standard_normal((600, dim)), rng.standard_normal((200, dim))
    engines = [hl.compile(layer, "codes", calibration=vectors, eps=math.inf, **how) for how in ({}, {"blocks": False})]
    for batch in (1, 2):
        chosen, plain = (
            np.mean([one.topk(hidden[at : at + batch], k).cost.bytes for at in range(0, 200, batch)]) for one in engines
        )
        assert chosen <= 1.1 * plain
