"""The NumPy executor, piece by piece: noise, intervals, levels, the normaliser, nuclei, budgets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headlong import native
from headlong.engines.reference.executor import Executor, normaliser, top, widest
from headlong.engines.reference.gumbel import gumbels, philox
from headlong.engines.reference.nucleus import Nucleus
from headlong.engines.reference.query import Matrix, Query, QuerySide, query_half, radii, split_peaks, two_planes
from headlong.engines.sampling_filters import Filters, kept_count
from headlong.errors import InputError
from headlong.links import Affine, SoftCap
from headlong.plan import MOST_PEAKS, Dense, Level, Plan, Term, interleave, padded, slack_rows
from oracle import check_topk, check_within, kept, logsumexp


def one(*words: int) -> tuple[Any, ...]:
    return tuple(np.array([word], np.uint64) for word in words)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers that come with the generator
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: Any, key: Any, expected: Any) -> None:
    assert tuple(int(word[0]) for word in philox(one(*counter), key)) == expected


def test_gumbels_are_gumbels_and_can_be_had_alone() -> None:
    ids = np.arange(200_000, dtype=np.int64)
    noise = gumbels(3, 5, 0, ids)
    assert abs(noise.mean() - 0.5772156649) < 0.01 and abs(noise.var() - math.pi**2 / 6) < 0.02
    assert abs(np.mean(noise < 1.0) - math.exp(-math.exp(-1.0))) < 0.005
    few = np.array([7, 123_456, 8], np.int64)
    assert (gumbels(3, 5, 0, few) == noise[few]).all()
    for other in (gumbels(4, 5, 0, few), gumbels(3, 6, 0, few), gumbels(3, 5, 1, few), gumbels(3, 5 + 2**32, 0, few)):
        assert (other != noise[few]).all()


def test_gumbel_by_integers() -> None:
    """``u`` rebuilt with Python's integers and logarithms."""
    noise = gumbels(2**40 + 9, 2**33 + 1, 2, np.arange(64, dtype=np.int64))
    for i in range(64):
        counter = (i >> 2, 1, 2)
        high, low = (int(philox(one(counter[0], draw, 1, 2), (9, 256))[i & 3][0]) for draw in (2, 2 | 0x80000000))
        u = (high * 2**32 + low + 0.5) / 2**64
        assert noise[i] == pytest.approx(-math.log(-math.log(u)), abs=1e-12)


@given(hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e30, 1e30)))
def test_two_planes_keep_sixteen_bits(x: np.ndarray) -> None:
    assert np.abs(x - two_planes(x)).max() <= np.abs(x).max() / 32512 / 2 * (1 + 1e-6) + 1e-45  # half a step; the least float32


@given(hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(-1e30, 1e30)))
def test_peaks_split_the_query(x: np.ndarray) -> None:
    """The split is one of those that the definition allows, and the best of them."""
    peaks, rest = split_peaks(x)
    sizes, most = np.sort(np.abs(x))[::-1], min(MOST_PEAKS, math.ceil(len(x) / 4))
    unit = sizes[0] or 1.0
    splits = [(sizes[:m].sum(), math.sqrt(math.fsum((sizes[m:] / unit) ** 2)) * unit) for m in range(most + 1)]
    cost = math.sqrt(len(x) / 3)
    assert peaks + cost * rest <= min(p + cost * r for p, r in splits) * (1 + 1e-9) + 1e-300
    assert any(abs(peaks - p) <= 1e-9 * p + 1e-300 for p, _ in splits)


def test_query_halves() -> None:
    halves = QuerySide(np.array([3.0, 4.0, 9.0]), np.array([6.0, 8.0, 1.0]))
    assert query_half(Term("norm", 0, 2), halves) == 5.0 and query_half(Term("one", 0, 0), halves) == 1.0
    assert query_half(Term("quantised", 0, 2), halves) == 10.0
    with pytest.raises(InputError, match="'max'; expected one of norm"):
        query_half(Term("max", 0, 2), halves)


def test_terms_share_rows_of_the_slack() -> None:
    terms = (Term("norm", 0, 2, 2.0, 1), Term("one", 0, 0, 3.0, 1), Term("norm", 0, 1, 1.0, 0))
    assert slack_rows(terms) == (1, 1, 0) and slack_rows((Term("one", 0, 0), Term("norm", 0, 2))) == (0, 1)
    slack = np.array([[1.0, 0.5], [10.0, 0.0]], np.float32)
    level = Level(np.zeros((1, 1, 64, 4), np.uint8), ((0, 2),), np.zeros((1, 64), np.float32), slack, terms)
    halves = QuerySide(np.array([3.0, 4.0]), np.zeros(2))
    np.testing.assert_allclose(radii(level, halves, np.arange(2)), [3 + 10 * (2 * 5 + 3), 1.5])


def matrix(levels: str = "one", budget: int | None = None, vocab: int = 150, link: Any = None, share: float = 1.0) -> Matrix:
    """A layer under a hand-made plan: codes, or none."""
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((vocab, 8)).astype(np.float32)
    bias = rng.standard_normal(vocab).astype(np.float32)
    base = np.zeros(padded(vocab), np.float32)
    base[:vocab] = bias
    whole = np.clip(np.rint(weight * 20), -127, 127)
    slack = np.zeros((2, padded(vocab)), np.float32)
    slack[0, :vocab] = np.linalg.norm(weight - whole / 20, axis=1) * 1.001
    slack[1, :vocab] = 12.0
    terms = (Term("norm", 0, 8), Term("quantised", 0, 8))
    scale = np.full((2, padded(vocab)), 1 / 20, np.float32)
    look = Level(interleave((whole + 128).astype(np.uint8)), ((0, 4), (4, 8)), scale, slack, terms)
    norms = (np.linalg.norm(weight.astype(np.float64), axis=1) * 1.0001).astype(np.float32)
    plan = Plan(None, base, None, (look,)[: levels == "one"], budget, Dense(share=share))
    return Matrix(weight, bias, norms, link or Affine(), plan)


def exact(layer: Matrix, hidden: np.ndarray) -> np.ndarray:
    assert layer.bias is not None
    return np.asarray(layer.weight.astype(np.float64) @ hidden + layer.bias)


HIDDEN = np.random.default_rng(2).standard_normal((4, 8))


@pytest.mark.parametrize("levels", ["none", "one"])
def test_levels_narrow_the_intervals(levels: str) -> None:
    layer = matrix(levels)
    for hidden in HIDDEN:
        query = Query(layer, hidden, np.ones(150, bool))
        everything, last = np.arange(150), np.full(150, np.inf)
        for _ in range(query.last):
            query.look(everything)
            assert (np.abs(query.estimate - exact(layer, hidden)) <= query.radius + 1e-12).all()
            assert (query.radius <= last).all()
            last = query.radius.copy()
        assert query.scored.all() and (query.radius == 0).all() and query.rows == 150


@pytest.mark.parametrize("levels", ["none", "one"])
@pytest.mark.parametrize("k", [1, 7, 150])
def test_top(levels: str, k: int) -> None:
    layer = matrix(levels)
    for hidden in HIDDEN:
        query = Query(layer, hidden, np.ones(150, bool))
        query.look(np.arange(150))
        ids = top(query, k)
        check_topk(exact(layer, hidden), ids, query.estimate[ids], 1e-12)


@pytest.mark.parametrize("levels", ["none", "one"])
@pytest.mark.parametrize("eps", [math.inf, 0.1, 1e-3, 1e-9, 1e-300])
@pytest.mark.parametrize("link", [Affine(), Affine(0.5, 3.0), SoftCap(2.0)], ids=str)
def test_normaliser(levels: str, eps: float, link: Any) -> None:
    layer = matrix(levels, link=link)
    for hidden in HIDDEN:
        query = Query(layer, hidden, np.arange(150) % 3 > 0)
        query.look(np.arange(150))
        value, error = normaliser(query, eps)
        assert error <= max(eps, 1e-12)
        expected = logsumexp(link(exact(layer, hidden))[None, query.live])
        check_within(np.array([value]), expected, np.array([error]), 1e-13)


def test_widest_takes_what_is_needed() -> None:
    low, high = np.array([1.0, 1.0, 1.0, 1.0]), np.array([1.0, 3.0, 1.1, 1.0])
    assert widest(low, high, 0.5).tolist() == [1]
    assert widest(low, high, 1e-6).tolist() == [1, 2]
    assert widest(low, np.array([1.0, np.inf, 1.0, 1.1]), 1e-6).tolist() == [1, 3]


def test_a_dear_query_is_finished_densely() -> None:
    query = Query(matrix("one", share=0.1), HIDDEN[0], np.ones(150, bool))
    query.look(np.arange(150))
    normaliser(query, 1e-6)
    assert query.dense and query.rows == 150


@pytest.mark.parametrize("levels", ["none", "one"])
@pytest.mark.parametrize("top_p", [0.02, 0.3, 0.8, 0.999])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_nucleus(levels: str, top_p: float, temperature: float) -> None:
    """Asked one by one, in any order, the classes that are kept are those of the sorted sum."""
    layer = matrix(levels)
    for hidden in HIDDEN:
        logits = exact(layer, hidden)
        expected = set(kept(logits, logits / temperature, 0, top_p, 0.0).tolist())
        query = Query(layer, hidden, np.ones(150, bool))
        query.look(np.arange(150))
        filters = Nucleus(query, temperature, top_p, 0.0, 0.0)
        for winner in np.random.default_rng(0).permutation(150)[:60]:
            query.score(np.array([winner]))
            assert filters.holds(int(winner)) == (int(winner) in expected)
            assert not expected & set(np.flatnonzero(filters.refused).tolist())


def test_an_open_nucleus_reads_few_rows() -> None:
    query = Query(matrix("two"), HIDDEN[0], np.ones(150, bool))
    query.look(np.arange(150))
    best = top(query, 1)
    before = query.rows
    assert Nucleus(query, 1.0, 0.5, 0.0, 0.0).holds(int(best[0]))
    assert query.rows - before < 20


@pytest.mark.parametrize("vocab", [5, 150])
def test_a_budget_scores_that_many_and_proves_nothing(vocab: int) -> None:
    executor = Executor(matrix("one", budget=20, vocab=vocab))
    logits, ids, log_probs, lse, error, proved, rows, *_ = executor.topk(HIDDEN, 5, 0.1, None, False, 1)
    assert (rows == min(20, vocab)).all() and not proved.any() and np.isinf(error).all()
    np.testing.assert_allclose(log_probs, logits - lse[:, None])
    np.testing.assert_allclose(executor.logits(HIDDEN, ids, 1), logits)
    more = executor.topk(HIDDEN, min(50, vocab), 0.1, None, False, 1)
    assert (more[6] == min(50, vocab)).all(), "as many rows as ids are asked for"


@given(
    hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-5, 5)),
    st.integers(0, 30),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
)
def test_filters_of_a_few_classes(values: np.ndarray, top_k: int, top_p: float, min_p: float) -> None:
    descending = np.sort(values)[::-1]
    count = kept_count(descending, Filters(1, 1.0, top_k, top_p, min_p, 0, 0))
    nudged = {
        len(kept(descending, descending, top_k, min(1.0, top_p * f), min(1.0, min_p * f))) for f in (1, 1 - 1e-9, 1 + 1e-9)
    }
    assert min(nudged) <= count <= max(nudged) and count >= 1


@pytest.mark.parametrize("level", native.levels()[1:])
@pytest.mark.parametrize("link", [Affine(), SoftCap(2.0)], ids=str)
@pytest.mark.parametrize("levels", ["none", "one"])
def test_native_reads_the_same_plans(levels: str, link: Any, level: str) -> None:
    layer = matrix(levels, vocab=1500, link=link, share=0.5)
    reference = Executor(layer)
    twin = native.executor(layer.weight, layer.bias, layer.norms, link.lowered(), layer.plan, level)
    mask = (np.arange(1500) % 5 > 0).astype(np.uint8)[None]
    for live in (None, mask):
        ours, theirs = (run.topk(HIDDEN, 9, 0.01, live, False, 2) for run in (reference, twin))
        assert (ours[1] == theirs[1]).all() and (ours[5] == theirs[5]).all()
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-13)
        check_within(theirs[3], ours[3], ours[4] + theirs[4], 1e-12)
        assert (theirs[4] <= 0.01).all()
        ours, theirs = (run.sample(HIDDEN, 5, 1.5, 0, 0.7, 0.01, 3, 8, live, False, 2) for run in (reference, twin))
        assert (ours[0] == theirs[0]).all()
        np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-12)
