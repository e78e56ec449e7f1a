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
from headlong.plan import Dense, Level, Plan, deinterleave, unpack
from headlong.previews import joint_error
from headlong.previews.encode import Encoded, Group, Groups, encode
from headlong.previews.int8 import int8_plan
from headlong.previews.joint_error import about_norm, bounded, decoded, spectral_norm
from headlong.previews.prefix import EIGHT, prefix_groups, prefix_plan
from headlong.previews.whitening import Basis, whiten
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
    first = plan.levels[0]
    return plan._replace(levels=(scaled(first, 0.0), *plan.levels[1:]))


def scaled(level: Level, factor: float) -> Level:
    return level._replace(terms=tuple(term._replace(together=term.together * factor) for term in level.terms))


def plans_of(layer: Layer, vectors: np.ndarray | None = None) -> dict[str, Plan]:
    dense = Dense(share=0.9)
    vectors = np.random.default_rng(0).standard_normal((200, layer.dim)) if vectors is None else vectors
    found = {"int8": int8_plan(layer, dense, together=True)}
    if layer.dim >= 8:
        basis = whiten(layer.weight, vectors)
        for deeper in (True, False):
            found[f"prefix {deeper}"] = prefix_plan(layer, basis, layer.dim // 2, dense, deeper=deeper, together=True)
    return found


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


def encoded(layer: Layer, basis: Basis, threads: int = 1) -> tuple[Encoded, list[np.ndarray]]:
    """The first half of the coordinates coded, the others in two groups without codes; and the products of what is left."""
    dim, half = layer.dim, layer.dim // 2
    last = half + (dim - half + 1) // 2
    groups = Groups((Group(0, half, EIGHT), Group(half, last, ()), Group(last, dim, ())), (Group(half, dim, EIGHT),), True)
    found = encode(layer, basis, groups, threads)
    return found, groups.grams(found.grams)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize(("vocab", "dim"), [(1, 8), (64, 5), (577, 20), (1300, 131)])
def test_products_of_what_codes_leave(level: str, kind: str, vocab: int, dim: int) -> None:
    """Those of the rotated rows less their codes, in float64; the same to the bit for any number of threads."""
    rng = np.random.default_rng(vocab)
    layer = Layer(shaped(rng, vocab, dim, kind).astype(np.float32))
    basis = whiten(layer.weight, rng.standard_normal((200, dim)))
    found, grams = encoded(layer, basis)
    rows = (layer.weight.astype(np.float64) - basis.centre) @ basis.back
    codes = unpack(deinterleave(found.codes, vocab), 8, dim // 2) * found.scale[0, :vocab, None].astype(np.float64)
    rows[:, : dim // 2] -= codes
    at = 0
    for gram in grams:
        left = rows[:, at : at + len(gram)]
        rounding = 1e-5 * np.linalg.norm(left) + 1e-6 * np.linalg.norm(codes) + 1e-6 * np.linalg.norm(rows)
        assert np.abs(gram - left.T @ left).max() <= (rounding + 2 * np.linalg.norm(left)) * rounding
        assert (gram == gram.T).all() or level == native.REFERENCE
        exact = np.linalg.norm(left, 2)
        assert exact <= bounded(gram, vocab) + rounding
        assert bounded(gram, vocab) <= exact * (1 + 0.02 * np.sqrt(dim)) + rounding
        at += len(gram)
    if level != native.REFERENCE:
        for threads in (2, 3):
            for one, other in zip(grams, encoded(layer, basis, threads)[1], strict=True):
                np.testing.assert_array_equal(one, other)


def test_a_norm_for_choices_is_about_right() -> None:
    rows = np.random.default_rng(0).standard_normal((500, 40)) * np.arange(1, 41) ** -0.5
    assert about_norm(rows) == pytest.approx(np.linalg.norm(rows, 2), rel=0.05)
    assert about_norm(np.zeros((3, 4))) == 0.0


def test_too_many_products_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, rng = Layer(np.ones((70, 64), np.float32)), np.random.default_rng(0)
    basis = whiten(layer.weight, rng.standard_normal((100, 64)))
    plan = prefix_plan(layer, basis, 16, Dense(), together=True)
    assert prefix_groups(layer, 16, together=True).joint and any(term.together for term in plan.levels[0].terms)
    monkeypatch.setattr(joint_error, "MOST_PRODUCTS", 70.0 * 64)
    plan = prefix_plan(layer, basis, 16, Dense(), together=True)
    assert not prefix_groups(layer, 16, together=True).joint and not any(term.together for term in plan.levels[0].terms)
    assert spectral_norm(70, 64, lambda part: np.ones((1, 64)), np.zeros(64, bool)) == 0.0


def test_rows_out_of_reach_have_no_part(level: str) -> None:
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((600, 12)).astype(np.float32)
    weight[7] = 1e25
    basis = whiten(weight, rng.standard_normal((100, 12)))
    found, grams = encoded(Layer(weight), basis)
    assert found.uncoded[7] and found.uncoded.sum() == 1
    weight[7] = basis.centre  # nothing is left of it
    for one, other in zip(grams, encoded(Layer(weight), basis)[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(one).max() + 1e-12)


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
    for plan in plans_of(layer).values():
        engine = engine_of(layer, plan)
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
    for plan in plans_of(layer).values():
        found = engine_of(layer, plan).lse(hidden, eps=10**eps)
        assert (np.abs(found.lse - exact.lse) <= found.error).all()


@pytest.mark.parametrize("known", ["int8", "prefix True"])
def test_a_bound_that_is_too_small_would_be_found_out(level: str, known: str) -> None:
    """Rows that are all alike lose the same, and a vector along that has it all: a thousandth of the norm says too little."""
    rng = np.random.default_rng(1)
    row = rng.standard_normal(32)
    layer = Layer((row + 1e-3 * rng.standard_normal((600 if level == native.REFERENCE else 4000, 32))).astype(np.float32))
    plan = plans_of(layer)[known]
    along = rng.standard_normal((1, 32))
    if known == "int8":
        first = plan.levels[0]
        along = layer.weight[:1] - np.float64(first.scale[0, 0]) * (
            first.codes[0, :, 0].reshape(-1)[None, :32].astype(float) - 128
        )
    along = (along / np.linalg.norm(along) * 40).astype(np.float32)
    exact = truth(layer, along).lse
    sure, lies = (
        engine_of(layer, plan),
        engine_of(layer, plan._replace(levels=(scaled(plan.levels[0], 1e-3), *plan.levels[1:]))),
    )
    errors = {e: sure.lse(along, eps=e) for e in (0.5, 0.1, 0.02)}
    assert all((np.abs(found.lse - exact) <= found.error).all() for found in errors.values())
    wrong = [lies.lse(along, eps=e) for e in (0.5, 0.1, 0.02, 0.005)]
    assert any((np.abs(found.lse - exact) > found.error).any() for found in wrong) or known != "int8"


@pytest.mark.parametrize("known", ["int8", "prefix True", "prefix False"])
def test_fewer_rows_than_class_by_class(level: str, known: str) -> None:
    layer, hidden = decaying(2000 if level == native.REFERENCE else 20000, 64, power=2.0)
    plan = plans_of(layer, hidden[100:].astype(np.float64))[known]
    for batch in (hidden[:1], hidden[:2]):  # of more, rows are cheaper for all
        costs = [engine_of(layer, one).lse(batch, eps=0.01 if known == "int8" else 0.03).cost for one in (plan, without(plan))]
        together, alone = (cost.rows.sum() + layer.vocab * cost.dense.sum() for cost in costs)
        assert together < alone or (together == alone and level == native.REFERENCE)  # which reads by halves


def test_a_cut_is_judged_by_all_that_it_leaves(level: str) -> None:
    """Where no class is scored yet, what is above the cut is most of the sum that the bound is a part of."""
    if level == native.REFERENCE:
        pytest.skip("the reference tries every cut")
    layer, hidden = decaying(20000, 64, power=2.0)
    plan = plans_of(layer, hidden[100:].astype(np.float64))["int8"]
    read = [int(engine_of(layer, one).lse(hidden[:2], eps=0.01).cost.rows.sum()) for one in (plan, without(plan))]
    assert 2 * read[0] < read[1], read


@pytest.mark.parametrize("deeper", [True, False])
@pytest.mark.parametrize("kind", SHAPES)
def test_joint_terms_are_no_less_than_the_errors_that_they_are_for(kind: str, deeper: bool) -> None:
    """Of what codes lose in the first coordinates, and of those that are not read at all; and not much more."""
    rng = np.random.default_rng(7)
    layer = Layer(shaped(rng, 700, 40, kind).astype(np.float32))
    basis = whiten(layer.weight, rng.standard_normal((200, 40)))
    first = prefix_plan(layer, basis, 20, Dense(), deeper=deeper, together=True).levels[0]
    rows = (layer.weight.astype(np.float64) - basis.centre) @ basis.back
    coded = {part[:2]: decoded(first, segment, slice(0, 700)) for segment, part in enumerate(first.layout)}
    terms = [term for term in first.terms if term.kind == "norm"]
    assert len(coded) == 2 and len(terms) == 3
    for term in terms:
        lost = rows[:, term.start : term.stop] - coded.get((term.start, term.stop), 0.0)
        exact, size = np.linalg.norm(lost, 2), np.linalg.norm(rows)
        assert exact <= term.together <= 1.1 * exact + 1e-5 * size, (term, exact)


def test_codes_of_the_first_coordinates_are_bounded_together(level: str) -> None:
    """Each class alone, what codes lose takes a part of the bound that all together do not need."""
    if level == native.REFERENCE:
        pytest.skip("the reference tries every cut")
    layer, hidden = decaying(20000, 64, power=2.0)
    plan = plans_of(layer, hidden[100:].astype(np.float64))["prefix True"]
    first = plan.levels[0]
    coded = {(start, stop) for start, stop, _ in first.layout}
    alone = tuple(term._replace(together=0.0) if (term.start, term.stop) in coded else term for term in first.terms)
    apart = plan._replace(levels=(first._replace(terms=alone), *plan.levels[1:]))
    read = [float(engine_of(layer, one).lse(hidden[:8], eps=0.01).cost.bytes.sum()) for one in (plan, apart)]
    assert read[0] < read[1], read


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
