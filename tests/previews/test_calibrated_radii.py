"""Conformal widths: finite-sample coverage, narrower than sure, never called proved."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from headlong import native
from headlong.engines.base import Engine
from headlong.errors import OptionError
from headlong.layers.matrix import Layer
from headlong.previews.calibrated_radii import lacking, likely_factor, split, tail_factor
from headlong.previews.conformal_bounds import conformal, controlled, enough, least_margin, spared
from headlong.previews.prefix import tail_of
from headlong.previews.whitening import whiten
from oracle import truth
from plans import decaying, state, strangers
from rates import check_rate, tail


@pytest.mark.parametrize(("delta", "count"), [(0.5, 1), (0.1, 9), (0.01, 99), (5e-4, 1999), (0.03, 33)])
def test_enough_is_enough_and_no_less(delta: float, count: int) -> None:
    assert enough(delta) == count
    scores = np.random.default_rng(0).permutation(count).astype(np.float64)
    assert conformal(scores, delta) == count - 1
    assert math.isinf(conformal(scores[:-1], delta))


@pytest.mark.parametrize(("count", "delta", "rank"), [(99, 0.1, 94), (297, 0.01, 297), (9, 0.5, 8), (3000, 0.01, 2979)])
def test_the_rank(count: int, delta: float, rank: int) -> None:
    assert conformal(np.arange(1, count + 1.0), delta) == rank


@pytest.mark.parametrize("delta", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("fewest", [3, 4, 10, 30, 300])
def test_so_few_fail_in_one_of_twenty_sets_that_fail_too_often(fewest: int, delta: float) -> None:
    """By the exact tail of the binomial; a whole failure more or less matters where there are few."""
    count = round(fewest / delta)
    lost = spared(count, delta)
    assert 1 - tail(lost + 1, count, delta) < (0.1 if fewest < 30 else 0.06)
    assert 1 - tail(lost + 2, count, delta) > 0.02, "and one more would be one too many"


@pytest.mark.parametrize("delta", [0.001, 0.01, 0.05])
def test_how_many_sets_that_fail_too_often_are_taken_at_worst(delta: float) -> None:
    """What ``conformal_bounds.py`` says of it, for every number of queries; and why radii take ten times the fewest."""

    def taken(count: int) -> float:
        return 1 - tail(spared(count, delta) + 1, count, delta)

    def worst(first: float, last: float) -> float:
        return max(taken(count) for count in range(math.ceil(first / delta), int(last / delta), max(1, int(0.05 / delta))))

    assert worst(6, 60) < 0.1 < worst(3, 4) < 0.125 and 0.3 < worst(1, 2) < 0.4
    assert taken(round(6 / delta)) == pytest.approx(0.06, abs=0.005)
    plenty = split(np.random.default_rng(0).random((int(40 / delta), 1)), delta)[1]
    assert len(plenty) == 10 * enough(delta) and taken(len(plenty)) < 0.07
    assert spared(len(plenty), delta) >= 0.4 * delta * len(plenty), "half of what may be lost is"


def test_too_few_queries_spare_none() -> None:
    assert [spared(count, 0.01) for count in (0, 98, 99, 297)] == [-1, -1, 0, 0] and spared(1, 1.0) == 0


@pytest.mark.parametrize("parts", [False, True])
def test_the_rate_holds_for_nineteen_of_twenty_sets(parts: bool) -> None:
    """Ways that fail more and more often, as factors and numbers of rows do: what one set of queries picks keeps the rate
    nearly always, not only on average. Four tries of a query say more of it than one."""
    rng, delta, count, sets = np.random.default_rng(3), 0.05, 800, 2000
    rates = delta * np.linspace(0.4, 1.5, 12)
    picked = np.zeros(len(rates))
    for _ in range(sets):
        column = controlled((rng.random((count, 12, 4 if parts else 1)) < rates[:, None]).mean(axis=2), delta)
        if column is not None:
            picked[column] += 1
    check_rate(int(picked[rates > delta].sum()), sets, 0.06)
    assert picked @ rates / sets > (0.75 if parts else 0.55) * delta, "and what may fail is used"


@given(scores=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=300), delta=st.sampled_from([0.5, 0.1, 0.03, 0.01]))
def test_the_least_margin_is_what_a_fixed_sequence_of_margins_would_end_at(scores: list[float], delta: float) -> None:
    """The safest margin first, then each score: the last one that ``controlled`` takes."""
    array = np.array(scores)
    margin = least_margin(array, delta)
    tried = np.array(sorted({np.nextafter(one, np.inf) for one in scores} | {0.0}, reverse=True))
    column = controlled(np.stack([(array >= one).astype(np.float64) for one in tried], axis=1), delta)
    assert margin == (math.inf if column is None else tried[column])


@pytest.mark.parametrize(("count", "delta"), [(20, 0.1), (57, 0.05), (400, 0.02)])
def test_margins_fail_on_the_next_vector_no_more_often_than_promised(count: int, delta: float) -> None:
    rng = np.random.default_rng(count)
    scores = np.where(rng.random((4000, count + 1)) < 3 * delta, rng.random((4000, count + 1)), 0.0)
    lost = sum(row[-1] > 0 and row[-1] >= least_margin(row[:-1], delta) for row in scores)
    check_rate(lost, len(scores), delta)


@pytest.mark.parametrize(("count", "delta"), [(9, 0.1), (57, 0.05), (200, 0.2)])
def test_coverage_is_what_the_theorem_says(count: int, delta: float) -> None:
    """The next of ``count + 1`` exchangeable scores is above the bound no more often than delta."""
    scores = np.random.default_rng(count).lognormal(size=(4000, count + 1))
    missed = sum(row[-1] > conformal(row[:-1], delta) for row in scores)
    check_rate(int(missed), 4000, delta)
    rank = count - spared(count, delta)
    assert missed > 4000 * (1 - rank / (count + 1)) - 4 * math.sqrt(4000 * delta), "and no wider than what is spared makes it"


def test_the_split() -> None:
    vectors = np.arange(400.0)[:, None]
    basis, queries = split(vectors, 0.1)
    assert len(basis) == 200 and len(queries) == 90 and queries[-1] == 399 and not set(basis.ravel()) & set(queries.ravel())
    with pytest.raises(OptionError, match=r"at a rate of 0.01 takes 198 vectors.*got 150"):
        split(vectors[:150], 0.01)
    with pytest.raises(OptionError, match=r"takes 198 vectors.*got 197.*leave 'calibration' out of over"):
        split(vectors[:197], 0.01)
    assert lacking(vectors[:198], 0.01) is None
    with pytest.raises(OptionError, match="takes 2 vectors"):
        split(vectors[:1], 0.5)


def test_radii_cover_simultaneously() -> None:
    """Fresh queries whose true residual leaves the interval of any class are within the rate; 2e6 pairs, 30 layers' worth."""
    delta, failures, trials = 0.1, 0, 0
    for seed in range(30):
        layer, hidden = decaying(700, 40, 1.5, seed)
        engine = calibrated(layer, hidden[:300], eps=math.inf, delta_ids=delta, width=12)
        assert engine.plan.levels[0].terms[0].factor < 0.9
        exact = truth(layer, hidden[300:]).logits
        for row, vector in zip(exact, hidden[300:], strict=True):
            query = state(layer, engine.plan, vector)
            query.look(np.arange(layer.vocab))
            failures += bool((np.abs(row - query.estimate) > query.radius).any())
            trials += 1
    check_rate(failures, trials, delta)
    assert failures > 0, "a width that never fails is wider than asked for"


def calibrated(layer: Layer, hidden: np.ndarray, **options: Any) -> Engine:
    return hl.compile(layer, "cascade", calibration=hidden, over=("query", "calibration"), threads=2, **options)


def test_the_factor_is_at_most_cauchy_schwarz() -> None:
    layer, hidden = decaying(300, 30)
    basis = whiten(layer.weight, hidden.astype(np.float64))
    assert 0.3 < tail_factor(layer.weight, basis, 10, hidden[:50].astype(np.float64), 0.1) < 1
    assert tail_factor(layer.weight, basis, 29, hidden[:50].astype(np.float64), 0.1) == 1.0, "one coordinate: all cosines are 1"
    assert tail_factor(layer.weight, basis, 30, hidden[:50].astype(np.float64), 0.1) < 1e-5, "no tail"
    assert tail_factor(layer.weight, basis, 10, hidden[:50].astype(np.float64), 0.001) == 1.0, "too few queries"


@pytest.mark.parametrize("level", native.levels())
def test_answers(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """Ids and normalisers right but for the rate; nothing is called proved unless it was read densely."""
    monkeypatch.setenv("HEADLONG_ISA", level)
    layer, hidden = decaying(4000, 64, 2.0)
    count = 20 if level == native.REFERENCE else 100
    engine = calibrated(layer, hidden[:300], eps=0.05, delta=0.1, delta_ids=0.05, width=16)
    assert engine.promise == hl.Promise(0.05, 0.1, 0.05, frozenset({"calibration", "query"}))
    exact = truth(layer, hidden[300 : 300 + count])
    found = engine.topk(hidden[300 : 300 + count], 10)
    assert (found.proved == found.cost.dense).all() and not found.cost.dense.all()
    expected = np.argsort(-exact.logits, axis=1, kind="stable")[:, :10]
    check_rate(int((found.ids != expected).any(axis=1).sum()), count, 0.05)
    check_rate(int((np.abs(found.lse - exact.lse) > found.error).sum()), count, 0.1)
    drawn = engine.sample(hidden[300:310], 3, seed=1)
    assert (drawn.proved == drawn.cost.dense[:, None]).all()
    assert engine.topk(hidden[:3], 2, allowed=[1, 2, 3]).proved.all(), "a few exact rows"


def test_strangers_are_not_covered_but_answered() -> None:
    layer, hidden = decaying(2000, 64, 2.0)
    found = calibrated(layer, hidden, eps=math.inf, delta_ids=0.05, width=16).topk(strangers(64, np.random.default_rng(0)), 5)
    assert np.isfinite(found.logits).all() and (found.ids >= 0).all()


def test_narrower_reads_less(tmp_path: Path) -> None:
    layer, hidden = decaying(20_000, 64, 1.5)
    sure = hl.compile(layer, "cascade", calibration=hidden, eps=math.inf, width=16, blocks=False)
    engine = calibrated(layer, hidden, eps=math.inf, delta_ids=0.05, width=16, blocks=False)
    one, other = (sum(part.topk(row[None], 10).cost.bytes[0] for row in hidden[:20]) for part in (sure, engine))
    assert other < 0.9 * one
    engine.save(tmp_path / "head.safetensors")
    loaded = hl.load(tmp_path / "head.safetensors")
    assert loaded.promise == engine.promise and loaded.method == engine.method
    assert (loaded.topk(hidden[:5], 3).ids == engine.topk(hidden[:5], 3).ids).all()


@pytest.mark.parametrize(
    ("options", "promise"),
    [
        ({"delta_ids": 0.1, "delta": 0.0}, hl.Promise(0.01, 0.0, 0.0)),
        ({"delta_ids": 0.1, "delta": 0.1, "width": 0}, hl.Promise(0.01, 0.1, 0.0, frozenset({"query"}))),
        ({"delta_ids": 0.1, "delta": 0.1, "calibration": None}, hl.Promise(0.01, 0.1, 0.0, frozenset({"query"}))),
        ({"delta_ids": 0.1, "delta": 0.1}, hl.Promise(0.01, 0.1, 0.1, frozenset({"query", "calibration"}))),
        ({"delta_ids": 0.1, "eps": math.inf}, hl.Promise(math.inf, 0.0, 0.1, frozenset({"query", "calibration"}))),
    ],
)
def test_what_cannot_be_learned_is_proved(options: dict[str, Any], promise: hl.Promise) -> None:
    """Radii are learned where both chances leave room, vectors came and a prefix is read; else the engine keeps more."""
    layer, hidden = decaying(500, 40)
    over = ("query",) if options.get("calibration", hidden) is None else ("query", "calibration")
    assert hl.compile(layer, "cascade", **({"calibration": hidden, "over": over} | options)).promise == promise


@pytest.mark.exhaustive
def test_the_trained_layer(trained: Layer, trained_hidden: np.ndarray) -> None:
    """The widths' half of the calibration text and the queries are of one text; failures within both deltas."""
    hidden = np.random.default_rng(0).permutation(trained_hidden)
    asked = hidden[6144:6400]
    exact = truth(trained, asked)
    expected = np.argsort(-exact.logits, axis=1, kind="stable")[:, :10]
    engine = calibrated(trained, hidden[:6144], eps=0.01, delta=4e-3, delta_ids=2e-3)
    found = engine.topk(asked, 10)
    check_rate(int((found.ids != expected).any(axis=1).sum()), len(asked), 2e-3)
    check_rate(int((np.abs(found.lse - exact.lse) > 0.01).sum()), len(asked), 4e-3)
    read = np.mean([engine.topk(row[None], 10).cost.bytes[0] for row in asked[:64]])
    assert read <= 0.09 * trained.vocab * trained.dim * 4


def test_a_likely_radius_serves_the_normaliser_alone(tmp_path: Path) -> None:
    """Ids stay proved by the sure radius; the estimate is right at its rate, for fewer rows, and the plan is saved with it."""
    layer, hidden = decaying(6000, 64, 2.0)
    options: dict[str, Any] = {"calibration": hidden[:300], "eps": 0.05, "delta": 0.1, "threads": 2, "width": 8}
    sure = hl.compile(layer, "cascade", **options)
    likely = hl.compile(layer, "cascade", over=("query", "calibration"), **options)
    assert likely.promise == hl.Promise(0.05, 0.1, 0.0, frozenset({"calibration", "query"}))
    factors = {term.likely for term in likely.plan.levels[0].terms if term.row < 3}
    assert min(factors) < 0.9 and {term.likely for term in sure.plan.levels[0].terms} == {1.0}
    exact = truth(layer, hidden[300:])
    found = likely.topk(hidden[300:], 10)
    assert found.proved.all() and (found.ids == np.argsort(-exact.logits, axis=1, kind="stable")[:, :10]).all()
    check_rate(int((np.abs(found.lse - exact.lse) > found.error).sum()), 100, 0.1)
    assert found.cost.rows.sum() <= sure.topk(hidden[300:], 10).cost.rows.sum()
    likely.save(tmp_path / "likely.safetensors")
    assert hl.load(tmp_path / "likely.safetensors").plan.levels[0].terms == likely.plan.levels[0].terms


def test_likely_shares_cover_all_classes_at_once() -> None:
    layer, hidden = decaying(700, 40, 1.5)
    basis, tail = whiten(layer.weight, hidden[:150].astype(np.float64)), tail_of(8, 40)
    share = likely_factor(layer.weight, basis, tail, hidden[150:300].astype(np.float64), 0.1)
    rows, vectors = (layer.weight - basis.centre) @ basis.back, (hidden[300:] - basis.mean) @ basis.rotation.astype(np.float64)
    sure = sum(np.outer(np.linalg.norm(rows[:, a:b], axis=1), np.linalg.norm(vectors[:, a:b], axis=1)) for a, b in tail)
    failures = (np.abs(rows[:, 8:] @ vectors[:, 8:].T) > share * sure).any(axis=0)
    check_rate(int(failures.sum()), 100, 0.1)
    assert share < 0.9 and likely_factor(layer.weight, basis, (), hidden[:9].astype(np.float64), 0.5) == 1.0


def test_radii_are_learned_only_where_something_may_fail() -> None:
    layer, hidden = decaying(300, 30)
    for options in ({"eps": math.inf}, {"delta": 0.0}):
        engine = hl.compile(layer, "cascade", calibration=hidden, over=("query", "calibration"), **options)
        assert engine.promise.delta == engine.promise.delta_ids == 0 and not engine.promise.over


def test_what_the_chances_rest_on() -> None:
    layer, hidden = decaying(300, 30)
    with pytest.raises(OptionError, match="but calibration is missing"):
        hl.compile(layer, "cascade", over="calibration", delta_ids=0.1)
    with pytest.raises(OptionError, match=r"over is \['weather'\]; expected some of calibration, query, rotation"):
        hl.compile(layer, "cascade", over="weather")
    with pytest.raises(OptionError, match="takes 198 vectors"):
        hl.compile(layer, "cascade", calibration=hidden[:100], over=("query", "calibration"), delta_ids=0.01, eps=math.inf)
    few = hl.compile(layer, "cascade", calibration=hidden[:100], delta_ids=0.01, eps=math.inf)
    assert few.promise.delta_ids == 0  # too few vectors for radii that fail once in a hundred: they choose the plan alone
    fixed = hl.compile(layer, "cascade", over=(), delta=0.5)
    assert fixed.promise == hl.Promise(0.01, 0.0, 0.0)


@pytest.mark.parametrize("kind", ["zeros", "equal", "one row"])
def test_vectors_that_say_nothing_teach_no_radii(kind: str) -> None:
    rng = np.random.default_rng(0)
    layer = hl.Layer(rng.standard_normal((4000, 100)).astype(np.float32))
    row = rng.standard_normal((1, 100))
    vectors = {"zeros": np.zeros((2000, 100)), "equal": np.tile(row, (2000, 1)), "one row": row}[kind]
    with pytest.raises(OptionError, match="differ; a rate of|takes .* vectors"):
        hl.compile(layer, "cascade", width=16, delta=0.05, delta_ids=0.05, over=("query", "calibration"), calibration=vectors)
    hidden, k = rng.standard_normal((64, 100)), 5
    expected = np.sort(hidden @ layer.weight.T.astype(np.float64), axis=1)[:, ::-1][:, :k]
    for engine in (  # what may rest on calibration does not, or ids are proved whatever the vectors are
        hl.compile(layer, "cascade", width=16, delta=0.05, delta_ids=0.05, calibration=vectors),
        hl.compile(layer, "cascade", calibration=vectors),
    ):
        assert "calibration" not in engine.promise.over
        np.testing.assert_allclose(engine.topk(hidden, k).logits, expected, rtol=1e-9)


def test_one_vector_teaches_no_rows_of_a_normaliser() -> None:
    """It can be halved no further: the normaliser is drawn as without calibration."""
    rng = np.random.default_rng(4)
    weight, hidden = rng.normal(size=(63, 64)).astype(np.float32), rng.normal(size=(8, 64)).astype(np.float32)
    engine = hl.compile(hl.Layer(weight), "cascade", calibration=hidden[:1], over={"calibration", "query"})
    exact = np.log(np.exp(hidden.astype(np.float64) @ weight.T.astype(np.float64)).sum(axis=1))
    assert (np.abs(engine.lse(hidden).lse - exact) <= 0.01).all()
