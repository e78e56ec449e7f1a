"""A search by blocks on a device, against float64 and against the NumPy twin: ids, bounds, what is read, the way out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headlong as hl
from adversarial import CASES, build
from devices import PLACE, tensor, torch
from headlong.engines.device import reader as device_reader
from headlong.engines.reference.blocks import BlockSearch, halves_of
from headlong.plan import DENSE_SHARE
from oracle import check_topk, truth
from thinned import every

pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.usefixtures("plain_interpreter")]


def clustered(rng: np.random.Generator, vocab: int, dim: int, dtype: Any = np.float32, falls: float = 0.5) -> hl.Layer:
    """Classes that have near neighbours, in coordinates whose energy falls."""
    near = rng.standard_normal((max(2, vocab // 30), dim))[rng.integers(0, max(2, vocab // 30), vocab)]
    weight = (near + 0.2 * rng.standard_normal((vocab, dim))) / np.arange(1, dim + 1) ** falls
    return hl.Layer(weight.astype(dtype), rng.standard_normal(vocab).astype(np.float32))


def searching(layer: hl.Layer, calibration: Any = None, **more: Any) -> Any:
    return hl.compile(layer, "cascade", eps=math.inf, blocks=True, calibration=calibration, device=PLACE, **more)


def check(layer: hl.Layer, hidden: np.ndarray, answer: Any, live: Any = None, exact: bool = False) -> None:
    reference = truth(layer, hidden, live)
    tolerance = np.where(exact, 0.0, reference.rounding)
    for row, (ids, logits) in enumerate(zip(answer.ids.cpu().numpy(), answer.logits.cpu().numpy(), strict=True)):
        check_topk(reference.logits[row], ids, logits, float(tolerance[row]))
    assert answer.proved.all()
    lse, error = answer.lse.cpu().numpy(), answer.error.cpu().numpy()
    assert (lse <= reference.lse + np.where(np.isinf(error), 0.0, error) + 1e-9 * (1 + np.abs(reference.lse))).all()


@pytest.mark.parametrize("name", every(3, sorted(CASES)))
def test_hard_layers(name: str) -> None:
    case = build(name, ("float32", "float16", "bfloat16")[sorted(CASES).index(name) % 3])
    engine = searching(case.layer)
    assert (engine.blocks is None) == (case.layer.vocab <= 16), "one block needs no search"
    for k in (1, min(7, case.layer.vocab)):
        check(case.layer, case.hidden, engine.topk(tensor(case.hidden), k), exact=case.exact)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    vocab=st.integers(17, 700), dim=st.integers(1, 90), batch=st.integers(1, 6), scale=st.floats(-30, 4),
    spread=st.floats(-12, 3), seed=st.integers(0, 1000),
)  # fmt: skip
def test_drawn_layers(vocab: int, dim: int, batch: int, scale: float, spread: float, seed: int) -> None:
    """Logits of any size and spread."""
    rng = np.random.default_rng(seed)
    layer = clustered(rng, vocab, dim)
    layer = hl.Layer((layer.weight * 10.0**scale).astype(np.float32), layer.bias)
    hidden = rng.standard_normal((batch, dim)) * 10.0 ** (spread - scale / 2)
    k = int(rng.choice([1, 5, min(64, vocab)]))
    hidden = hidden.astype(np.float32)
    check(layer, hidden, searching(layer).topk(tensor(hidden), k))


def test_what_is_read_is_less_than_a_look_at_all(rng: np.random.Generator) -> None:
    layer = clustered(rng, 20_000, 24, falls=1.5)
    calibration, hidden = (rng.standard_normal((n, 24)).astype(np.float32) for n in (200, 3))
    engine = searching(layer, calibration)
    plain = hl.compile(layer, "cascade", eps=math.inf, calibration=calibration, device=PLACE, blocks=False)
    answer, every_class = engine.topk(tensor(hidden), 10), plain.topk(tensor(hidden), 10)
    check(layer, hidden, answer)
    assert answer.ids.tolist() == every_class.ids.tolist() and not answer.cost.dense.any()
    assert (answer.cost.bytes < 0.5 * every_class.cost.bytes).all()
    assert torch.isinf(answer.error).all() and (answer.cost.rows < 200).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_masks_ties_and_samples(dtype: Any, rng: np.random.Generator) -> None:
    layer = clustered(rng, 600, 40, dtype)
    weight = np.array(layer.weight)
    weight[300:] = weight[:300]  # every class twice
    layer = hl.Layer(weight, np.tile(np.asarray(layer.bias)[:300], 2))
    hidden = rng.standard_normal((3, 40)).astype(np.float32)
    engine, cpu = searching(layer, rng.standard_normal((200, 40)).astype(np.float32)), hl.compile(layer, "full")
    live = rng.random((3, 600)) < 0.4
    for k, limits in ((9, {}), (9, {"allowed": [np.flatnonzero(row) for row in live]}), (5, {"allowed": [3, 304]})):
        answer = engine.topk(tensor(hidden), k, **limits)
        assert answer.ids.tolist() == cpu.topk(hidden, k, **limits).ids.tolist() and answer.proved.all()
    for how in ({"top_k": 6}, {"top_k": 30, "top_p": 0.8, "temperature": 0.4}):
        drawn, expected = (one.sample(hidden, n=2, seed=5, **how) for one in (engine, cpu))
        assert drawn.ids.tolist() == expected.ids.tolist() and drawn.proved.all()


def test_what_finds_no_room_is_finished_densely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_reader, "CAPACITY", 2)
    layer = hl.Layer(np.ones((500, 3), np.float32))  # ties everywhere: all blocks stay open
    answer = searching(layer).topk(tensor(np.ones((2, 3), np.float32)), 3)
    assert answer.ids.tolist() == [[0, 1, 2]] * 2 and answer.proved.all()
    assert answer.cost.dense.all() and (answer.cost.rows > 500).all() and torch.isfinite(answer.error).all()


def test_rows_that_are_no_numbers_or_very_long(rng: np.random.Generator) -> None:
    layer = clustered(rng, 400, 8)
    hidden = rng.standard_normal((3, 8)).astype(np.float32)
    hidden[0, 2], hidden[1] = np.nan, 3e38
    answer = searching(layer).topk(tensor(hidden), 2)
    assert answer.proved.tolist() == [False, True, True] and answer.ids[0].tolist() == [-1, -1]
    assert answer.cost.dense.tolist() == [False, True, False]
    reference = truth(layer, hidden[1:])
    for row in (0, 1):
        assert answer.ids[row + 1].tolist() == np.argsort(-reference.logits[row], kind="stable")[:2].tolist()


@pytest.mark.parametrize("dim", [24, 100])
def test_the_queries_side_is_that_of_the_reference(dim: int, rng: np.random.Generator) -> None:
    """Lengths no shorter, coordinates to float32."""
    layer, hidden = clustered(rng, 900, dim), rng.standard_normal((4, dim))
    engine = searching(layer, rng.standard_normal((300, dim)).astype(np.float32))
    state = tensor(np.ones((4, 4), np.int32))
    sides, plan = engine.blocks.sides(tensor(hidden), state, 1000), engine.plan.blocks
    assert not state.any()
    for row in range(4):
        twin = halves_of(plan, hidden[row])
        np.testing.assert_allclose(sides.lengths[row].cpu(), twin.lengths, rtol=1e-6)
        np.testing.assert_allclose(sides.closer[row].cpu(), twin.closer, rtol=1e-6)
        assert (sides.lengths[row].double().cpu().numpy() >= twin.lengths * (1 - 1e-12)).all()
        np.testing.assert_allclose(sides.own[row].cpu(), twin.x, rtol=1e-5, atol=1e-6)
    found = BlockSearch(layer.weight, layer.bias, plan, DENSE_SHARE).topk(hidden, 5, None, 1)
    assert engine.topk(tensor(hidden), 5).ids.tolist() == found[0].tolist()


def test_auto_searches_where_there_are_many_classes(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headlong.engines.methods.placed_cascade.MANY", 10_000)
    layer, vectors = clustered(rng, 12_000, 48, falls=1.5), rng.standard_normal((300, 48)).astype(np.float32)
    engine = hl.compile(layer, "cascade", eps=math.inf, calibration=vectors, device=PLACE)
    assert engine.blocks is not None and engine.blocks.takes(1, 10, math.inf) and not engine.blocks.takes(1, 12_000, math.inf)
    small = hl.compile(layer, "cascade", eps=math.inf, device=PLACE)
    assert small.blocks is None
