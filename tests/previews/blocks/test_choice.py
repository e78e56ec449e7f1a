"""Which calls go by blocks: what searches and looks read, priced by what the machine costs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.costs import BUILT_IN, Costs, settled
from headlong.engines.base import Engine
from headlong.plan import Blocks, Plan
from headlong.previews.blocks import choice as block_choice
from headlong.previews.blocks.choice import BATCH, looked, searched, worth
from headlong.previews.blocks.search_costs import Asked, Counted, fetched, of_dense_pass, of_look, sooner

SHARE = 0.25
SCANS_ARE_DEAR = BUILT_IN._replace(memory=1.0, cache=1.0, product=1.0)


def around_centres(vocab: int = 6000, dim: int = 64) -> tuple[hl.Layer, np.ndarray]:
    """Classes near a few centres of falling energy, and hidden vectors to match."""
    rng = np.random.default_rng(0)
    energy = np.arange(1, dim + 1.0) ** -0.7
    centres = rng.standard_normal((150, dim)) * energy
    weight = centres[rng.integers(0, len(centres), vocab)] + 0.2 * rng.standard_normal((vocab, dim)) * energy
    return hl.Layer(weight.astype(np.float32)), ((rng.standard_normal((600, dim)) * energy + 0.3) * 4).astype(np.float32)


@pytest.fixture(scope="module")
def subject() -> tuple[hl.Layer, Plan, Blocks, np.ndarray]:
    if native.isa() == native.REFERENCE:
        pytest.skip("the reference does not choose")
    layer, hidden = around_centres()
    engine: Any = hl.compile(layer, "cascade", eps=math.inf, calibration=hidden, blocks=True)
    return layer, engine.plan, engine.plan.blocks, hidden.astype(np.float64)


def test_what_a_search_and_a_look_read_is_counted(subject: Any) -> None:
    layer, plan, blocks, hidden = subject
    search, look = searched(layer, blocks, hidden, SHARE, 10), looked(layer, plan, hidden, 10)
    assert search.every >= blocks.head.nbytes + blocks.levels[0].records.nbytes
    assert search.opened > 0 and search.rows >= 10 and search.again == 0
    assert look.every == block_choice.look_bytes(plan) and look.rows >= 10
    assert searched(layer, blocks, hidden, SHARE, 256).opened > search.opened


def test_dear_places_speak_for_the_look_and_dear_scans_for_blocks(subject: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, plan, blocks, hidden = subject

    def taken(costs: Costs) -> tuple[int, int, int]:
        monkeypatch.setattr(block_choice, "here", lambda: costs)
        return worth(layer, plan, blocks, hidden, SHARE)

    assert taken(SCANS_ARE_DEAR)[0] >= 64
    assert taken(SCANS_ARE_DEAR)[2] >= 16
    assert taken(BUILT_IN._replace(row=1e4, gathered=50.0, level=0.0, product=1e-4))[0] == 0


def test_one_search_is_one_threads(subject: Any) -> None:
    layer, plan, *_ = subject
    costs, search = BUILT_IN._replace(level=0.0), Counted(0.0, 2e5, 100.0)
    spent = {threads: costs._replace(threads=threads) for threads in (1, 64)}
    one, look = Asked(layer, 10), Counted(8e5, 0.0, 10.0)
    assert sooner(one, plan, search, look, spent[1]) and not sooner(one, plan, search, look, spent[64])
    many = one._replace(batch=BATCH)
    assert sooner(many, plan, search, look, spent[1]) == sooner(many, plan, search, look, spent[64])


def test_dear_looks_at_all_classes_are_no_dear_dense_pass(subject: Any) -> None:
    layer, plan, *_ = subject
    plan = plan._replace(dense=plan.dense._replace(batch=4))  # more queries share a dense pass over a layer as small
    asked, look = Asked(layer, 10, BATCH), Counted(1e9, 1e9, 10.0)
    dense = of_dense_pass(asked, plan, BUILT_IN)
    assert dense > BUILT_IN.product * layer.weight.size / plan.dense.code_product
    assert sooner(asked, plan, Counted(0.0, 0.1 * dense / BUILT_IN.gathered, 0.0), look, BUILT_IN)
    assert not sooner(asked, plan, Counted(0.0, 2 * dense / BUILT_IN.gathered, 0.0), look, BUILT_IN)


def test_a_larger_k_has_more_candidates_in_every_look(subject: Any) -> None:
    layer, plan, *_ = subject
    look, per_row = Counted(8e5, 0.0, 300.0), BUILT_IN.row
    for batch in (1, BATCH):
        one, many = (Asked(layer, k, batch) for k in (1, 256))
        more = of_look(many, plan, look, BUILT_IN) - of_look(one, plan, look, BUILT_IN)
        assert more > 256 * per_row
        assert of_dense_pass(many, plan, BUILT_IN) - of_dense_pass(one, plan, BUILT_IN) > more  # which reads k rows, too


def test_records_that_caches_hold_are_cheaper_than_others() -> None:
    cold = BUILT_IN._replace(cache=BUILT_IN.memory)
    assert fetched(0.0, BUILT_IN) == 0.0
    assert 0.5 * fetched(1e5, cold) < fetched(1e5, BUILT_IN) < fetched(1e5, cold)
    assert fetched(1e9, BUILT_IN) > 0.99 * fetched(1e9, cold)


def test_a_batch_over_a_small_layer_is_searched_for_where_one_query_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_choice, "here", lambda: SCANS_ARE_DEAR)
    layer, hidden = around_centres()
    made: Any = hl.compile(layer, "cascade", eps=math.inf, calibration=hidden[:400])
    blocks, dense = made.plan.blocks._replace(most=64, batch=2, together=16), made.plan.dense._replace(batch=4)
    plan = made.plan._replace(blocks=blocks, dense=dense)
    engine, asked = Engine(layer, made.method, plan, made.norms, made.promise), hidden[400:464]
    few, more = engine.topk(asked, 16), engine.topk(asked, 17)
    assert not few.cost.dense.any() and more.cost.dense.all()
    np.testing.assert_array_equal(few.ids[:, 0], more.ids[:, 0])
    assert not engine.topk(asked, 16, exclude=np.arange(40)).cost.dense.any()
    assert not engine.sample(asked, top_k=10, seed=1).cost.dense.any()
    other = engine.reading_densely(4)
    assert other.topk(asked, 16).cost.dense.all() and other.sample(asked, top_k=10, seed=1).cost.dense.all()


def test_layers_of_two_thousand_classes_may_have_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_choice, "here", lambda: SCANS_ARE_DEAR)
    layer, hidden = around_centres(2000)
    engine: Any = hl.compile(layer, "cascade", eps=math.inf, calibration=hidden)
    assert engine.plan.blocks is not None


def test_searches_that_are_given_up_count_for_the_look(subject: Any) -> None:
    layer, plan, blocks, hidden = subject
    search, look, asked = searched(layer, blocks, hidden, SHARE, 10), Counted(1e7, 0.0, 10.0), Asked(layer, 10)
    assert sooner(asked, plan, search, look, BUILT_IN)
    assert not sooner(asked, plan, search._replace(again=1.0), look, BUILT_IN)


def test_a_flat_layer_has_no_blocks() -> None:
    rng = np.random.default_rng(0)
    layer = hl.Layer(rng.standard_normal((6000, 64)).astype(np.float32))
    engine: Any = hl.compile(layer, "cascade", eps=math.inf, calibration=rng.standard_normal((600, 64)).astype(np.float32))
    assert native.isa() == native.REFERENCE or engine.plan.blocks is None


def test_costs_know_the_threads_that_they_are_of() -> None:
    measured = dict(zip(BUILT_IN._fields[:8], BUILT_IN[:8], strict=True))
    assert settled(measured, "measured", 16).threads == 16
    assert BUILT_IN.threads == 2


@pytest.mark.parametrize("size", [1e-40, 1e20, 3e38])
def test_vectors_that_stand_in_beside_biases_of_any_size(rng: np.random.Generator, size: float) -> None:
    """Products with rows vary as biases do, where squares of these are beyond float32, too."""
    layer = hl.Layer(rng.standard_normal((300, 8), dtype=np.float32), np.float32(size) * rng.random(300, dtype=np.float32))
    assert layer.bias is not None
    varied = np.std(block_choice.stand_ins(layer) @ layer.weight.T.astype(float))
    assert varied > 0.4 * block_choice.BESIDE_BIAS * np.std(layer.bias.astype(float)) and np.isfinite(varied)
