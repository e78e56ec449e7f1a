"""Which calls go by blocks: as far as the clock finds them sooner, given up where queries find nothing, and behind shards."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong as hl
from bounded import clustered
from headlong import native
from headlong.answers import named_fields
from headlong.arrays import Array
from headlong.encode import basis
from headlong.engines import contest
from headlong.engines.base import Engine
from headlong.engines.method import Making, Running
from headlong.engines.methods import blocks as block_choice
from headlong.engines.methods.blocks import EVERY, MANY_UNASKED, limited
from headlong.plan import MOST_SCORED, Plan
from headlong.promise import Promise
from made_layers import decaying
from thinned import NATIVE

K, LEADING = 10, 3
TRIED, SELDOM = 8, 512  # searches after which a trial may be over, and calls of which one still searches: csrc/blocks/search.h


def rows(dim: int = 40) -> Array:
    """Near each other in three coordinates, far from each other in all others, where they are short."""
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(MANY_UNASKED, dim))
    weight[:, LEADING:] *= 0.05
    return weight.astype(np.float32)


def plan_of(engine: hl.Engine) -> Plan:
    plan: Plan = engine.plan
    return plan


def right(weight: Array, hidden: Array, ids: Array) -> bool:
    logits = hidden.astype(np.float64) @ weight.T.astype(np.float64)
    return bool((np.argsort(-logits, axis=1, kind="stable")[:, : ids.shape[1]] == ids).all())


@pytest.fixture
def by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that tells the bytes that an answer took, each of a search, which lie here and there, counting two."""

    def read(asks: Any, vectors: Array, batches: Any) -> np.ndarray:
        starts = range(0, len(vectors) - max(batches), 4)
        each = [[np.mean([ask(vectors[at : at + batch]).bytes.sum() for at in starts]) for batch in batches] for ask in asks]
        return np.array(each) * [[1], [2]]

    monkeypatch.delenv(contest.VARIABLE, raising=False)
    monkeypatch.setattr(block_choice, "timed", read)


@pytest.mark.usefixtures("by_bytes")
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


@pytest.mark.usefixtures("by_bytes")
@NATIVE
def test_searches_in_vain_are_soon_no_longer_made(level: str) -> None:
    """Queries that look where no rows are near each other open nearly everything."""
    weight = rows()
    engine = hl.compile(hl.Layer(weight), "codes", eps=math.inf, delta=0.0)
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


@pytest.mark.usefixtures("by_bytes")
@NATIVE
def test_searches_under_masks_are_on_a_trial_of_their_own(level: str) -> None:
    """They may be harder than those of all classes: neither ends the other's."""
    weight = rows()
    plan = plan_of(hl.compile(hl.Layer(weight), "codes", eps=math.inf, delta=0.0))
    easy, hard = np.zeros((2, weight.shape[1])), np.random.default_rng(5).normal(size=(TRIED, weight.shape[1]))
    easy[:, 0], hard[:, :LEADING] = (1, -1), 0
    most = np.ones((1, len(weight)), np.uint8)
    most[0, :5] = 0
    for first, then in ((most, None), (None, most)):
        search = native.blocks(weight, None, plan.blocks, MOST_SCORED, level)
        search.topk(hard, K, first, 1)
        assert (search.topk(hard, K, first, 1).bytes == 0).all()
        assert search.topk(easy, K, then, 1).done.all()


@pytest.mark.usefixtures("by_bytes")
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


@pytest.mark.usefixtures("by_bytes")
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


@pytest.mark.parametrize("ask", ["topk", "masked", "top_k"])
def test_what_was_searched_in_vain_is_counted(ask: str) -> None:
    weight = np.random.default_rng(8).normal(size=(6_000, 128)).astype(np.float32)
    hidden = np.random.default_rng(9).normal(size=(1, 128))

    def cost(blocks: bool) -> hl.Cost:
        engine = hl.compile(hl.Layer(weight), "codes", blocks=blocks, eps=math.inf)
        if ask == "top_k":
            return engine.sample(hidden, seed=1, top_k=9).cost
        return engine.topk(hidden, K, allowed=np.arange(5_990) if ask == "masked" else None).cost

    assert cost(True).bytes[0] > 1.05 * cost(False).bytes[0]


@pytest.mark.usefixtures("by_bytes")
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


VOCAB, DIM, ASKED = 9001, 48, 40


@pytest.fixture(scope="module")
def case() -> tuple[hl.Layer, np.ndarray]:
    layer, hidden = decaying(VOCAB, DIM, 2.0, seed=3)
    return hl.Layer(layer.weight, np.zeros(VOCAB, np.float32)), hidden


def by_blocks(layer: hl.Layer, hidden: np.ndarray, **more: Any) -> Engine:
    engine = hl.compile(layer, "codes", calibration=hidden[ASKED:], blocks=True, threads=2, **more)
    assert isinstance(engine, Engine)
    assert engine.plan.blocks is not None
    return engine


def test_codes_answer_what_they_alone_can_behind_blocks_too(case: tuple[hl.Layer, np.ndarray]) -> None:
    """Entropies, and draws of each row by a rule of its own, cost what they do without blocks, and are the same."""
    layer, hidden = case
    engine, rows = by_blocks(layer, hidden), hidden[:9]
    without = Engine(layer, engine.method, engine.plan._replace(blocks=None), engine.norms, engine.promise, Running(2))
    rules = {"seed": np.arange(9), "top_p": np.linspace(0.3, 0.9, 9), "eps": math.inf}
    for ask in (lambda one: one.entropy(rows / 40), lambda one: one.sample(rows, **rules)):
        mine, theirs = ask(engine), ask(without)
        for name in list(named_fields(mine))[:3]:
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
        np.testing.assert_array_equal(mine.cost.bytes, theirs.cost.bytes)
    each = engine.sample(rows, seed=np.arange(9), top_k=5, eps=math.inf)  # a search answers that sooner
    lone = engine.sample(rows[8:], seed=8, position=8, top_k=5, eps=math.inf)
    assert each.cost.bytes[8] == lone.cost.bytes[0] and (each.ids[8] == lone.ids[0]).all()
    assert each.cost.bytes[8] < without.sample(rows[8:], seed=8, position=8, top_k=5, eps=math.inf).cost.bytes[0]


def searching() -> tuple[Engine, np.ndarray]:
    """An engine with blocks, which are asked whatever they are for, and vectors to ask."""
    layer, hidden = clustered(6000, 64, count=600)
    made = hl.compile(hl.Layer(layer.weight), "codes", eps=math.inf, calibration=hidden[:400], blocks=True)
    assert isinstance(made, Engine)
    return made, hidden[400:464]


SOON, LATE = [0.5] * 3, [2, 0.5, 0.5]
TIMED = {
    "for as many classes as a search is sooner": ((SOON, SOON, SOON, [0.99] * 3), (64, EVERY, 64)),
    "for fewer of them in a batch": ((SOON, [0.5, 0.5, 2], [0.5, 0.5, 2], LATE), (64, 2, 1)),
    "and alone": ((SOON, [0.5, 2, 2], LATE), (16, 1, 1)),
    "or never": (([1.0, 0.5, 0.5],), None),
}
"""The share that a search takes of the time of what is behind, for 1, 16, 64, 256 classes, of 1, 2 and 8 queries; limits."""


@pytest.mark.skipif(native.isa() == native.REFERENCE, reason="the reference has no blocks")
@pytest.mark.parametrize(("shares", "limits"), TIMED.values(), ids=TIMED)
def test_blocks_answer_what_the_clock_finds_them_sooner_for(shares: Any, limits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict follows the times: here they are planted."""
    engine, vectors = searching()
    left = iter(shares)

    def planted(asks: Any, vectors: Array, batches: Any) -> np.ndarray:
        return np.array([np.ones(len(batches)), (next(left) if len(batches) == 3 else [0.5, 0.99])[: len(batches)]])

    monkeypatch.setattr(block_choice, "timed", planted)
    assert engine.plan.blocks is not None
    making = Making(engine.layer, None, 1, Promise(math.inf, 0.0))
    found = limited(engine.plan, engine.plan.blocks, making, vectors.astype(float)).blocks
    assert next(left, None) is None
    if limits is None:
        assert found is None
        return
    assert found is not None and (found.max_k, found.max_batch, found.max_k_of_batches) == limits
    assert not found.samples  # of two draws at once they are hardly sooner
    few = min(16, found.max_k)
    always = engine.with_plan(engine.plan, engine.promise, "")
    read = np.mean([always.topk(row[None], few).cost.bytes[0] for row in contest.some_of(vectors, block_choice.JUDGES)])
    assert found.trial == pytest.approx(2 * (read - few * engine.layer.row_bytes))  # where it takes as long as codes


def test_a_batch_is_searched_for_up_to_as_many_classes_as_are_worth_it() -> None:
    made, asked = searching()
    plan = made.plan._replace(blocks=made.plan.blocks._replace(max_k=64, max_batch=2, max_k_of_batches=16))  # type: ignore[union-attr]
    engine = Engine(made.layer, made.method, plan, made.norms, made.promise)
    few, more = engine.topk(asked, 16), engine.topk(asked, 17)
    without = Engine(made.layer, made.method, plan._replace(blocks=None), made.norms, made.promise)
    assert (few.cost.bytes != without.topk(asked, 16).cost.bytes).all()
    np.testing.assert_array_equal(more.cost.bytes, without.topk(asked, 17).cost.bytes)  # codes answer
    np.testing.assert_array_equal(few.ids[:, 0], more.ids[:, 0])
    fewer = engine.topk(asked, 16, exclude=np.arange(40))
    assert (fewer.cost.bytes != without.topk(asked, 16, exclude=np.arange(40)).cost.bytes).all()
    assert (engine.sample(asked, top_k=10, seed=1).cost.bytes != without.sample(asked, top_k=10, seed=1).cost.bytes).all()


@pytest.mark.parametrize("size", [1e-40, 1e20, 3e38])
def test_vectors_that_stand_in_beside_biases_of_any_size(rng: np.random.Generator, size: float) -> None:
    """Products with rows vary as biases do, where squares of these are beyond float32, too."""
    layer = hl.Layer(rng.standard_normal((300, 8), dtype=np.float32), np.float32(size) * rng.random(300, dtype=np.float32))
    assert layer.bias is not None
    varied = np.std(basis.stand_ins(layer) @ layer.weight.T.astype(float))
    assert varied > 0.4 * basis.BESIDE_BIAS * np.std(layer.bias.astype(float)) and np.isfinite(varied)
