"""implicit's and RecTools' own answers beside ours, and the metrics beside their definitions."""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import headlong
from headlong.errors import HeadlongError, InputError, ShapeError
from headlong.integrations.recommenders.evaluation import evaluate

USERS, ITEMS, DIM = 150, 400, 12


def liked(seed: int = 0) -> Any:
    return scipy.sparse.random(USERS, ITEMS, 0.05, format="csr", dtype=np.float32, random_state=seed)


@pytest.fixture(scope="module")
def pair() -> Any:
    als = pytest.importorskip("implicit.als", reason="implicit is not installed: pip install 'headlong[recommenders]'")
    from headlong.integrations.recommenders.implicit_model import HeadlongModel

    with warnings.catch_warnings(action="ignore"):  # implicit's advice about OpenBLAS
        theirs = als.AlternatingLeastSquares(factors=DIM, iterations=3, random_state=0, num_threads=1)
        theirs.fit(liked(), show_progress=False)
    return theirs, HeadlongModel(theirs, threads=1)


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "seen items too": {"filter_already_liked_items": False},
    "some items": {"items": [3, 5, 8, 200, 301, 7, 9, 11, 12, 13]},
    "not these": {"filter_items": [1, 2, 3, 50]},
    "recalculated": {"recalculate_user": True},
    "ten": {"N": 3},
}


@pytest.mark.parametrize("name", CALLS)
def test_recommendations_are_those_of_implicit(pair: Any, name: str) -> None:
    theirs, ours = pair
    for users in (7, np.array([3, 9, 140])):
        rows = liked()[users]
        expected, found = (model.recommend(users, rows, **CALLS[name]) for model in (theirs, ours))
        there = np.asarray(expected[1]) > -1e38  # implicit fills up with items that were filtered
        # implicit sums in float32: a score near zero is off by what its products are
        np.testing.assert_allclose(np.asarray(found[1])[there], expected[1][there], rtol=1e-4, atol=1e-7)
        np.testing.assert_array_equal(np.asarray(found[0])[there], expected[0][there])
        assert (np.asarray(found[0])[~there] == -1).all() and (np.asarray(found[1])[~there] < -1e38).all()
        assert found[0].dtype == np.int32 and found[1].dtype == np.float32


def test_it_is_one_of_implicits_models(pair: Any) -> None:
    from implicit.recommender_base import RecommenderBase

    from headlong.integrations.recommenders.implicit_model import HeadlongModel

    theirs, ours = pair
    assert isinstance(ours, RecommenderBase)
    np.testing.assert_array_equal(ours.similar_items(5)[0], theirs.similar_items(5)[0])
    before = ours.engine
    with warnings.catch_warnings(action="ignore"):
        ours.fit(liked(1), show_progress=False)
    assert ours.engine is not before and ours.engine.layer.vocab == ITEMS
    with warnings.catch_warnings(action="ignore"):
        ours.fit(liked(), show_progress=False)
    for wrong, said in (
        (lambda: HeadlongModel(object()), "expected implicit's matrix factorization on the CPU"),
        (lambda: ours.recommend(3, liked().tocoo()), "expected CSR rows"),
        (lambda: ours.recommend([3, 4], liked()[3]), "1 rows for 2 users"),
        (lambda: ours.recommend(3, liked()[3], items=[1], filter_items=[2]), "expected one of them"),
        (lambda: ours.recommend(3, liked()[3], items=[ITEMS]), "items holds 400; class ids run from 0 to 399"),
    ):
        with pytest.raises(HeadlongError, match=said):
            wrong()


LEARNERS = {"als": "AlternatingLeastSquares", "bpr": "BayesianPersonalizedRanking", "lmf": "LogisticMatrixFactorization"}


@pytest.mark.parametrize("kind", LEARNERS)
def test_what_the_model_inside_has_learned_since_is_asked_for(kind: str) -> None:
    """implicit learns in the arrays that are there: by another fit, by partial_fit_items and partial_fit_users, or by hand."""
    module = pytest.importorskip(f"implicit.{kind}")
    from headlong.integrations.recommenders.implicit_model import HeadlongModel

    def step(name: str, *given: Any, **more: Any) -> None:
        with warnings.catch_warnings(action="ignore"):
            getattr(theirs, name)(*given, **more)

    with warnings.catch_warnings(action="ignore"):
        theirs = getattr(module, LEARNERS[kind])(factors=DIM, iterations=3, random_state=0, num_threads=1)
    ours, users = HeadlongModel(theirs, threads=1), np.arange(20)

    def check(word: str) -> None:
        expected, found = (model.recommend(users, liked()[users]) for model in (theirs, ours))  # of fewer items, in the end
        np.testing.assert_array_equal(found[0], expected[0], err_msg=word)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-5)

    step("fit", liked(), show_progress=False)
    check("first")
    before, array = ours.engine, theirs.item_factors
    assert ours.engine is before, "nothing was learned: nothing is compiled"
    step("fit", liked(3), show_progress=False)
    assert theirs.item_factors is array
    check("fit again")
    if kind == "als":
        step("partial_fit_items", np.array([3, 5, 7]), liked(5)[:, :3].T.tocsr())
        check("partial_fit_items")
        step("partial_fit_items", np.array([ITEMS + 1]), liked(6)[:, :1].T.tocsr())
        assert ours.engine.layer.vocab == ITEMS + 2
        step("partial_fit_users", users[:9], liked(7)[:9])
        check("partial_fit_users")
    theirs.item_factors[[7, 300]] = theirs.item_factors[[300, 7]]
    check("two rows that changed places")
    theirs.item_factors[200, DIM - 1] += 0.5
    check("one number")
    theirs.item_factors.setflags(write=False)  # nobody learns in them: which array it is says all
    check("closed")
    closed, digests = ours.engine, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headlong.layers.written_to._sums", digests.append)
        assert ours.engine is closed and not digests
    theirs.item_factors = theirs.item_factors * np.float32(-1)
    check("another array")


def test_what_implicit_takes_is_taken_and_what_it_cannot_know_is_refused_in_words(pair: Any) -> None:
    from implicit.als import AlternatingLeastSquares

    from headlong.integrations.recommenders.implicit_model import HeadlongModel

    theirs, ours = pair
    for none in ([], (), np.empty(0), np.empty(0, np.int32)):
        for more in ({}, {"items": [3, 5, 8, 200]}, {"filter_already_liked_items": False}):
            found = ours.recommend(7, liked()[7], N=2, filter_items=none, **more)
            expected = theirs.recommend(7, liked()[7], N=2, **more)
            np.testing.assert_array_equal(found[0], expected[0])
    with warnings.catch_warnings(action="ignore"):
        empty = HeadlongModel(AlternatingLeastSquares(factors=DIM))
    asks = [lambda: empty.recommend(3, liked()[3]), lambda: empty.similar_items(3), lambda: empty.similar_users(3)]
    for ask in (*asks, lambda: empty.engine):
        with pytest.raises(InputError, match=r"the model has no (item|user) factors; call fit\(user_items\) first"):
            ask()
    for wrong, said in (
        (lambda: ours.recommend(USERS, liked()[3]), f"userid holds {USERS}; the model's users are 0 to {USERS - 1}"),
        (lambda: ours.recommend([3, -1], liked()[[3, 4]]), "userid holds -1; the model's users are 0 to"),
        (lambda: ours.recommend(np.uint64(2**63), liked()[3]), f"userid holds {2**63}"),
        (lambda: ours.similar_items(ITEMS), f"itemid holds {ITEMS}; the model's items are 0 to {ITEMS - 1}"),
        (lambda: ours.similar_items("a"), "itemid is <U1; expected an item's number"),
        (lambda: ours.similar_users([0, USERS + 5]), f"userid holds {USERS + 5}"),
    ):
        with pytest.raises(HeadlongError, match=said):
            wrong()
    newcomer = ours.recommend(USERS + 9, liked()[3], recalculate_user=True)  # nobody asks for his factors
    np.testing.assert_array_equal(newcomer[0], theirs.recommend(USERS + 9, liked()[3], recalculate_user=True)[0])


def test_a_ranker_keeps_the_factors_that_it_was_given() -> None:
    rank = pytest.importorskip("rectools.models.rank", reason="rectools is not installed")
    from headlong.integrations.recommenders.rectools_ranker import HeadlongRanker

    rng = np.random.default_rng(0)
    users, items = (rng.standard_normal((count, DIM)).astype(np.float32) for count in (USERS, ITEMS))
    ranker = HeadlongRanker(rank.Distance.DOT, users, items, threads=1)
    before = ranker.rank(np.arange(9), 5)
    users *= -1
    items *= 3
    np.testing.assert_array_equal(ranker.rank(np.arange(9), 5)[1], before[1])


ODD: list[Any] = [
    None, True, -1, 2**70, 1.5, float("nan"), 1j, "x", b"x", (), {}, object(), int, [[1], [2, 3]], [None], np.array(["a"]),
    np.zeros((0, DIM), np.float32), np.zeros(3, [("a", int)]), np.full((3, DIM), np.nan), scipy.sparse.eye(3).tocoo(),
]  # fmt: skip


def test_whatever_is_passed_is_read_or_refused_by_name(pair: Any) -> None:
    ours, users = pair[1], np.ones((USERS, DIM))
    engine = headlong.compile(headlong.Layer(np.eye(ITEMS, DIM, dtype=np.float32)))
    names = ("N", "filter_already_liked_items", "items", "filter_items", "recalculate_user")
    doors = [lambda value, name=name: ours.recommend(3, liked()[3], **{name: value}) for name in names]
    doors += [lambda value: ours.recommend(value, liked()[3]), lambda value: ours.recommend(3, value)]
    doors += [lambda value: evaluate(value, users, liked()), lambda value: evaluate(engine, value, liked())]
    doors += [lambda value: evaluate(engine, users, value), lambda value: evaluate(engine, users, liked(), k=value)]
    for door in doors:
        for value in ODD:
            with contextlib.suppress(HeadlongError):  # all else is foreign
                door(value)


@pytest.mark.parametrize("distance", ["DOT", "COSINE", "EUCLIDEAN"])
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("some", [False, True])
def test_rankings_are_those_of_rectools(distance: str, filtered: bool, some: bool) -> None:
    rank = pytest.importorskip("rectools.models.rank", reason="rectools is not installed")
    from headlong.integrations.recommenders.rectools_ranker import HeadlongRanker

    rng = np.random.default_rng(0)
    users, items = rng.standard_normal((USERS, DIM)), rng.standard_normal((ITEMS, DIM))
    items[7] = 0
    ids = np.array([3, 80, 149, 3])
    asked = {
        "k": 9,
        "filter_pairs_csr": liked()[ids] if filtered else None,
        "sorted_object_whitelist": np.arange(0, ITEMS, 3) if some else None,
    }
    kind = rank.Distance[distance]
    theirs = rank.ImplicitRanker(kind, users.astype(np.float32), items.astype(np.float32), num_threads=1)
    expected, found = theirs.rank(ids, **asked), HeadlongRanker(kind, users, items, threads=1).rank(ids, **asked)
    assert list(found[0]) == list(expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-3, atol=1e-5)
    with pytest.raises(ShapeError, match="filter_pairs_csr has 2 rows for 4 subjects"):
        HeadlongRanker(kind, users, items).rank(ids, 3, filter_pairs_csr=liked()[:2])


@pytest.mark.filterwarnings("ignore")  # of RecBole's own
def test_metrics_are_those_of_recbole(monkeypatch: pytest.MonkeyPatch) -> None:
    """RecBole divides recall by all held items; the two are one where no user has more than k."""
    monkeypatch.setattr(np, "float", float, raising=False)  # which NumPy had when RecBole was written
    metrics = pytest.importorskip("recbole.evaluator.metrics", reason="recbole, or what it needs, is not installed")
    rng = np.random.default_rng(3)
    users, items = rng.standard_normal((USERS, DIM)), rng.standard_normal((ITEMS, DIM)).astype(np.float32)
    held = scipy.sparse.csr_matrix(np.eye(ITEMS, dtype=np.float32)[rng.integers(0, ITEMS, (USERS, 4))].sum(axis=1))
    engine, seen = headlong.compile(headlong.Layer(items), threads=1), liked()
    found = evaluate(engine, users, held, seen=seen, k=(5, 20))
    ids = engine.topk(users, 20, exclude=seen).ids
    positive = (np.take_along_axis(held.toarray(), ids, axis=1) > 0).astype(int)
    for name, ours in (("Recall", found.recall), ("NDCG", found.ndcg)):
        metric = getattr(metrics, name)({"topk": [5, 20], "metric_decimal_place": 12})
        theirs = metric.metric_info(positive.astype(bool), np.diff(held.indptr)).mean(axis=0)
        assert ours[5] == pytest.approx(theirs[4]) and ours[20] == pytest.approx(theirs[19]) and ours[20] > 0


def test_metrics_are_their_definitions() -> None:
    rng = np.random.default_rng(0)
    users, items = rng.standard_normal((USERS, DIM)), rng.standard_normal((ITEMS, DIM)).astype(np.float32)
    seen, held = liked(), liked(1)
    held.data[held.indptr[5] : held.indptr[20]] = 0  # users without a held item
    held.eliminate_zeros()
    found = evaluate(headlong.compile(headlong.Layer(items), threads=1), users, held, seen=seen, k=(1, 5, 20))
    scores = users @ items.astype(np.float64).T
    scores[seen.nonzero()] = -np.inf
    for k in (1, 5, 20):
        recall, ndcg = [], []
        for user in range(USERS):
            mine = set(held[user].indices.tolist())
            if mine:
                best = np.argsort(-scores[user])[:k]
                hits = [item in mine for item in best]
                recall.append(sum(hits) / min(k, len(mine)))
                best_gain = sum(1 / math.log2(rank + 2) for rank in range(min(k, len(mine))))
                ndcg.append(sum(1 / math.log2(rank + 2) for rank, hit in enumerate(hits) if hit) / best_gain)
        assert found.recall[k] == pytest.approx(np.mean(recall)) and found.ndcg[k] == pytest.approx(np.mean(ndcg))
    assert found.users == len(recall) and found.proved
    with pytest.raises(ShapeError, match=r"held has shape \[3, 400\]; expected \[150, 400\]"):
        evaluate(headlong.compile(headlong.Layer(items)), users, held[:3])
    with pytest.raises(InputError, match="no user has a held item"):
        evaluate(headlong.compile(headlong.Layer(items)), users, scipy.sparse.csr_matrix((USERS, ITEMS)))
