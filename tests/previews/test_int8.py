"""int8 plans: the radius holds for every finite row and query, in exact arithmetic, and is no wider than it has to be."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from adversarial import CASES, DTYPES, build
from headlong import Layer
from headlong.engines.reference.query import Matrix, Query
from headlong.native import row_norms
from headlong.plan import Dense, deinterleave, interleave, padded
from headlong.previews import int8 as bits
from headlong.previews.int8 import all_closer_centred, better_centred, int8_plan, mean_row

numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
gentle = st.floats(-100, 100, width=32)
rows = hnp.arrays(np.float32, (5, 6), elements=st.one_of(numbers, gentle))
vector = hnp.arrays(np.float32, 6, elements=st.one_of(numbers, gentle))


def looked(layer: Layer, hidden: np.ndarray, centre: np.ndarray | None = None) -> Query:
    """The state of a query after its look at the codes."""
    norms = np.minimum(row_norms(layer.weight), np.finfo(np.float32).max)
    plan = int8_plan(layer, Dense(), centre)
    query = Query(
        Matrix(layer.weight, layer.bias, norms, layer.link, plan), hidden.astype(np.float64), np.ones(layer.vocab, bool)
    )
    query.look(np.arange(layer.vocab))
    return query


@settings(max_examples=400)
@given(rows, hnp.arrays(np.float32, 5, elements=numbers), vector, st.booleans())
@example(np.full((5, 6), 1e-45, np.float32), np.zeros(5, np.float32), np.ones(6, np.float32), False)
@example(np.full((5, 6), 3e38, np.float32), np.zeros(5, np.float32), np.full(6, 3e38, np.float32), True)
@example(np.eye(5, 6, dtype=np.float32) * 1e30, np.zeros(5, np.float32), np.full(6, 1e-45, np.float32), False)
def test_the_radius_holds(weight: np.ndarray, bias: np.ndarray, hidden: np.ndarray, centred: bool) -> None:
    layer = Layer(weight, bias)
    query = looked(layer, hidden, mean_row(weight) if centred else None)
    for i in range(5):
        exact = sum(
            (Fraction(float(w)) * Fraction(float(x)) for w, x in zip(weight[i], hidden, strict=True)), Fraction(float(bias[i]))
        )
        assert np.isfinite(query.estimate[i])
        if np.isfinite(query.radius[i]):
            assert abs(exact - Fraction(float(query.estimate[i]))) <= Fraction(float(query.radius[i]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_no_violation_on_adversarial_layers(name: str, dtype: str) -> None:
    case = build(name, dtype)
    for hidden in case.hidden:
        query = looked(case.layer, hidden)
        estimate, radius = query.estimate.copy(), query.radius.copy()
        query.score(np.arange(case.layer.vocab))
        assert (np.abs(query.estimate - estimate) <= radius + query.rounding).all()


def test_no_violation_in_many_pairs_and_tight_enough() -> None:
    """2e5 pairs; a plain row's half-width stays near ``‖w‖ ‖x‖ * 0.008``, the table value of 8 bits."""
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((2000, 256)).astype(np.float32)
    layer = Layer(weight)
    for hidden in rng.standard_normal((100, 256)):
        query = looked(layer, hidden.astype(np.float32))
        gap = np.abs(weight.astype(np.float64) @ hidden.astype(np.float32).astype(np.float64) - query.estimate)
        assert (gap <= query.radius).all()
        relative = query.radius / (np.linalg.norm(weight, axis=1) * np.linalg.norm(hidden))
        assert relative.mean() < 0.009 and (gap / query.radius).max() > 0.05


def test_peaks_help_where_the_query_has_some() -> None:
    """One huge coordinate costs half a step times itself, not the whole row's loss times the norm."""
    rng = np.random.default_rng(4)
    layer = Layer(rng.standard_normal((50, 256)).astype(np.float32))
    hidden = rng.standard_normal(256)
    hidden[9] = 1000.0
    codes = bits.encode_int8(layer.weight)
    assert (looked(layer, hidden.astype(np.float32)).radius < 0.2 * codes.error[:50] * 1000.0).all()


def test_rows_beyond_float32_are_always_scored() -> None:
    weight = np.ones((70, 4), np.float32)
    weight[3] = 1e30
    bias = np.zeros(70, np.float32)
    bias[66] = -3e38
    plan = int8_plan(Layer(weight, bias), Dense())
    (level,) = plan.levels
    assert level.slack is not None and level.scale is not None
    assert np.flatnonzero(np.isinf(level.slack).any(axis=0)).tolist() == [3, 66]
    assert (level.slack[:-1, [3, 66]] == 0).all() and (level.scale[:, [3, 66]] == 0).all()


@pytest.mark.parametrize("size", [(1, 1), (63, 3), (64, 4), (65, 5), (130, 9)])
def test_interleaving_is_undone(size: tuple[int, int]) -> None:
    codes = np.random.default_rng(0).integers(0, 256, size).astype(np.uint8)
    packed = interleave(codes)
    assert packed.shape == (padded(size[0]) // 64, -(-size[1] // 4), 64, 4)
    assert (deinterleave(packed, size[0])[:, : size[1]] == codes).all()


def test_wide_rows_are_split_into_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "SEGMENT", 8)
    rng = np.random.default_rng(0)
    layer = Layer(rng.standard_normal((20, 21)).astype(np.float32))
    (level,) = int8_plan(layer, Dense()).levels
    assert level.layout == ((0, 8), (8, 16), (16, 21)) and level.scale is not None and level.scale.shape == (3, 64)
    hidden = rng.standard_normal(21).astype(np.float32)
    query = looked(layer, hidden)
    assert (np.abs(layer.weight.astype(np.float64) @ hidden.astype(np.float64) - query.estimate) <= query.radius).all()


def test_centring_is_chosen_where_it_helps() -> None:
    """Rows that share a large mean code better without it; a likely row far from the others codes worse."""
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((20, 32))
    together = rng.standard_normal((300, 32)) + 30 * rng.standard_normal(32)
    assert better_centred(Layer(together.astype(np.float32)), hidden)
    apart = rng.standard_normal((300, 32)) * 0.1 + 3 * rng.standard_normal(32)
    apart[7] = 0.02 * rng.standard_normal(32)
    bias = np.zeros(300, np.float32)
    bias[7] = 500.0
    assert not better_centred(Layer(apart.astype(np.float32), bias), hidden)
    assert all_closer_centred(Layer(together.astype(np.float32)))
    assert not all_closer_centred(Layer(apart.astype(np.float32)))
    assert not all_closer_centred(Layer(rng.standard_normal((300, 32)).astype(np.float32)))
    assert not all_closer_centred(Layer(np.zeros((300, 32), np.float32)))
