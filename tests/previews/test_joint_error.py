"""How far all estimates are off together: the spectral norm of what codes lose, and the normalisers proved by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from headlong import native
from headlong.engines.base import Engine
from headlong.engines.methods.cascade import Cascade
from headlong.layers.matrix import Layer
from headlong.plan import Dense, Level, Plan
from headlong.previews import joint_error
from headlong.previews.int8 import int8_plan
from headlong.previews.joint_error import spectral_norm
from oracle import truth
from plans import decaying

LEVELS = native.levels()


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HEADLONG_ISA", request.param)
    return str(request.param)


def engine_of(layer: Layer, plan: Plan) -> Engine:
    return Engine(layer, Cascade(), plan, native.row_norms(layer.weight), hl.Promise(0.2, 0.0, 0.0))


def without(plan: Plan) -> Plan:
    """The plan that knows nothing of the classes together."""
    return plan._replace(levels=(scaled(plan.levels[0], 0.0),))


def scaled(level: Level, factor: float) -> Level:
    return level._replace(terms=tuple(term._replace(together=term.together * factor) for term in level.terms))


def plan_of(layer: Layer) -> Plan:
    return int8_plan(layer, Dense(share=0.9), together=True)


SHAPES = ("normal", "equal", "one", "low rank")
KINDS = st.sampled_from(SHAPES)


def shaped(rng: np.random.Generator, vocab: int, dim: int, kind: str) -> np.ndarray:
    rows = rng.standard_normal((vocab, dim))
    if kind == "equal":
        rows[:] = rows[0]
    elif kind == "one":
        rows[1:] = 0
    elif kind == "low rank":
        rows = rows[:, :1] * rng.standard_normal(dim)
    return rows


@given(
    st.integers(1, 1200),
    st.integers(1, 40),
    st.integers(0, 2**31),
    st.integers(-32, 15),
    KINDS,
)
def test_no_less_than_the_norm_and_not_much_more(vocab: int, dim: int, seed: int, scale: int, kind: str) -> None:
    rows = shaped(np.random.default_rng(seed), vocab, dim, kind) * 10.0**scale
    uncoded = np.zeros(vocab + 64, bool)
    found = spectral_norm(vocab, dim, lambda part: rows[part], uncoded)
    exact = np.linalg.norm(rows, 2)
    assert found >= exact
    assert found <= exact * (1 + 0.02 * np.sqrt(dim)) + 1e-15 or scale < -15


def test_too_many_products_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(np.ones((70, 64), np.float32))
    assert any(term.together for term in plan_of(layer).levels[0].terms)
    monkeypatch.setattr(joint_error, "MOST_PRODUCTS", 70.0 * 64)
    assert not any(term.together for term in plan_of(layer).levels[0].terms)
    assert spectral_norm(70, 64, lambda part: np.ones((1, 64)), np.zeros(64, bool)) == 0.0


def test_classes_of_which_nothing_is_known_have_no_part() -> None:
    rows = np.ones((70, 3))
    uncoded = np.zeros(128, bool)
    uncoded[5] = True
    rows[5] = 1e30
    assert spectral_norm(70, 3, lambda part: rows[part], uncoded) == pytest.approx(np.sqrt(69 * 3), rel=1e-2)
    rows[6] = 1e30  # this one counts, and float32 cannot hold its square
    assert spectral_norm(70, 3, lambda part: rows[part], uncoded) == 0.0


def cases(rng: np.random.Generator, kind: str, vocab: int, dim: int, spread: float) -> tuple[Layer, np.ndarray]:
    weight = rng.standard_normal((vocab, dim))
    if kind == "equal":  # the errors of all classes are the same, so that they add up
        weight[:] = weight[0]
    elif kind == "alike":
        weight = weight[:1] + 1e-3 * weight
    elif kind == "uneven":
        weight *= np.exp(rng.standard_normal((vocab, 1)))
    elif kind == "one huge":
        weight[rng.integers(vocab)] *= 1e4
    hidden = rng.standard_normal((6, dim))
    logits = hidden @ weight.T
    weight *= spread / max(float(np.std(logits)), 1e-30)
    bias = rng.standard_normal(vocab) if kind != "no bias" else None
    return Layer(weight.astype(np.float32), None if bias is None else bias.astype(np.float32)), hidden.astype(np.float32)


@pytest.mark.parametrize("kind", ["normal", "equal", "alike", "uneven", "one huge", "no bias"])
@pytest.mark.parametrize("spread", [1e-3, 1.0, 4.0, 30.0])
def test_every_normaliser_is_within_what_is_said(level: str, kind: str, spread: float) -> None:
    rng = np.random.default_rng(7)
    layer, hidden = cases(rng, kind, 700 if level == native.REFERENCE else 5000, 32, spread)
    exact = truth(layer, hidden)
    engine = engine_of(layer, plan_of(layer))
    for eps in (1.0, 0.2, 0.05, 0.01, 0.002):
        found = engine.lse(hidden, eps=eps)
        assert (np.abs(found.lse - exact.lse) <= found.error).all(), (eps, kind)
        assert (found.error <= eps).all() or spread >= 30
        top = engine.topk(hidden, 5, eps=eps)
        assert (np.abs(top.lse - exact.lse) <= top.error).all()


@given(
    st.integers(1, 3000),
    st.integers(1, 70),
    st.integers(0, 2**31),
    st.floats(-4, 1.5),
    st.floats(-3, 0.5),
    st.sampled_from(["normal", "equal", "alike", "uneven", "one huge"]),
)
def test_any_layer(vocab: int, dim: int, seed: int, spread: float, eps: float, kind: str) -> None:
    layer, hidden = cases(np.random.default_rng(seed), kind, vocab, dim, 10**spread)
    exact = truth(layer, hidden)
    found = engine_of(layer, plan_of(layer)).lse(hidden, eps=10**eps)
    assert (np.abs(found.lse - exact.lse) <= found.error).all()


def test_a_bound_that_is_too_small_would_be_found_out(level: str) -> None:
    """Rows that are all alike lose the same, and a vector along that has it all: a thousandth of the norm says too little."""
    rng = np.random.default_rng(1)
    row = rng.standard_normal(32)
    layer = Layer((row + 1e-3 * rng.standard_normal((600 if level == native.REFERENCE else 4000, 32))).astype(np.float32))
    plan = plan_of(layer)
    first = plan.levels[0]
    along = layer.weight[:1] - np.float64(first.scale[0, 0]) * (first.codes[0, :, 0].reshape(-1)[None, :32].astype(float) - 128)
    along = (along / np.linalg.norm(along) * 40).astype(np.float32)
    exact = truth(layer, along).lse
    sure, lies = engine_of(layer, plan), engine_of(layer, plan._replace(levels=(scaled(first, 1e-3),)))
    errors = {e: sure.lse(along, eps=e) for e in (0.5, 0.1, 0.02)}
    assert all((np.abs(found.lse - exact) <= found.error).all() for found in errors.values())
    wrong = [lies.lse(along, eps=e) for e in (0.5, 0.1, 0.02, 0.005)]
    assert any((np.abs(found.lse - exact) > found.error).any() for found in wrong)


def test_fewer_rows_than_class_by_class(level: str) -> None:
    layer, hidden = decaying(2000 if level == native.REFERENCE else 20000, 64, power=2.0)
    plan = plan_of(layer)
    for batch in (hidden[:1], hidden[:2]):  # of more, rows are cheaper for all
        costs = [engine_of(layer, one).lse(batch, eps=0.01).cost for one in (plan, without(plan))]
        together, alone = (cost.rows.sum() + layer.vocab * cost.dense.sum() for cost in costs)
        assert together < alone or (together == alone and level == native.REFERENCE)  # which reads by halves


def test_a_cut_is_judged_by_all_that_it_leaves(level: str) -> None:
    """Where no class is scored yet, what is above the cut is most of the sum that the bound is a part of."""
    if level == native.REFERENCE:
        pytest.skip("the reference tries every cut")
    layer, hidden = decaying(20000, 64, power=2.0)
    plan = plan_of(layer)
    read = [int(engine_of(layer, one).lse(hidden[:2], eps=0.01).cost.rows.sum()) for one in (plan, without(plan))]
    assert 2 * read[0] < read[1], read


def test_masked_and_shifted_classes(level: str) -> None:
    rng = np.random.default_rng(5)
    layer, hidden = cases(rng, "normal", 3000, 40, 2.0)
    live = rng.random(3000) < 0.4
    engine = engine_of(layer, int8_plan(layer, Dense(), together=True))
    exact = truth(layer, hidden, live)
    for eps in (0.1, 0.02):
        found = engine.lse(hidden, eps=eps, allowed=np.flatnonzero(live))
        assert (np.abs(found.lse - exact.lse) <= found.error).all() and (found.error <= eps).all()


def test_a_file_keeps_it(tmp_path: Path) -> None:
    layer, hidden = cases(np.random.default_rng(2), "normal", 3000, 40, 2.0)
    engine = hl.compile(layer, method="cascade", eps=0.01, delta=0)
    assert any(term.together > 0 for term in engine.plan.levels[0].terms)
    engine.save(tmp_path / "e")
    again = hl.load(tmp_path / "e")
    assert again.plan.levels[0].terms == engine.plan.levels[0].terms
    for one, other in zip(engine.lse(hidden), again.lse(hidden), strict=False):
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, other)
