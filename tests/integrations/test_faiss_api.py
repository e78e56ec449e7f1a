"""FAISS's verbs, with FAISS's own answers where it is installed and float64 where it is not."""

from __future__ import annotations

import copy
import math
import os
import pickle
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from children import script
from headlong import Layer
from headlong.errors import (
    AbsentError,
    DtypeError,
    HeadlongError,
    IdError,
    InputError,
    MalformedFileError,
    NonFiniteError,
    OptionError,
    ShapeError,
)
from headlong.integrations import faiss as faiss_api
from headlong.integrations.faiss import IndexFlat, IndexFlatIP, IndexFlatL2, IndexIDMap
from headlong.integrations.faiss import distances as faiss_distances
from headlong.integrations.faiss import index as faiss_index
from headlong.integrations.faiss import selectors as faiss_selectors

Headlong: Any = script("benchmarks/ann_benchmarks/module.py").Headlong
RNG = np.random.default_rng(3)
ROWS = RNG.standard_normal((3000, 24)).astype(np.float32)
QUERIES = RNG.standard_normal((17, 24)).astype(np.float32)
WIDE, ASKED = ROWS.astype(np.float64), QUERIES.astype(np.float64)
TRUTH = ASKED @ WIDE.T
SCORES = {
    "inner_product": TRUTH,
    "l2": np.square(ASKED[:, None] - WIDE).sum(-1),
    "cosine": TRUTH / np.linalg.norm(ASKED, axis=1)[:, None] / np.linalg.norm(WIDE, axis=1),
    "log_prob": TRUTH - np.log(np.exp(TRUTH).sum(1, keepdims=True)),
}
BEST = {metric: np.argsort(found if metric == "l2" else -found, axis=1, kind="stable") for metric, found in SCORES.items()}


REFUSED = "expected|choose from|it makes Flat"


@pytest.fixture(scope="module")
def faiss() -> Any:
    return pytest.importorskip("faiss", reason="faiss-cpu is not installed: pip install 'headlong[bench]'")


@pytest.mark.parametrize("method", ["auto", "codes"])
@pytest.mark.parametrize("metric", SCORES)
def test_search_is_exact(metric: str, method: str) -> None:
    index = IndexFlat(24, metric, method=method)
    index.train(QUERIES)
    index.add(ROWS[:1000])
    index.add(ROWS[1000:])
    assert (index.ntotal, index.d, index.is_trained) == (3000, 24, True)
    distances, ids = index.search(QUERIES, 10)
    assert (ids == BEST[metric][:, :10]).all()
    near = {"atol": 0.0101} if metric == "log_prob" else {"rtol": 1e-5}
    np.testing.assert_allclose(distances, np.take_along_axis(SCORES[metric], ids, 1), **near)
    assert (distances.dtype, ids.dtype) == (np.float32, np.int64)
    assert metric == "cosine" or (index.reconstruct(1500) == ROWS[1500]).all()


@pytest.mark.parametrize("metric", ["inner_product", "l2", "cosine"])
def test_few_changes_are_read_beside_the_engine(metric: str) -> None:
    index, twin = IndexFlat(24, metric, method="codes"), IndexFlat(24, metric, method="full")
    index.add(ROWS[:2900])
    index.search(QUERIES, 3)
    engine = index.engine
    index.add(ROWS[2900:2950])
    assert index.remove_ids(np.arange(5, 2950, 40)) == 74
    assert index.engine is not engine and index.engine.settled is engine
    twin.add(np.delete(ROWS[:2950], np.arange(5, 2950, 40), axis=0))
    for allowed in (None, faiss_api.SearchParameters(faiss_api.IDSelectorRange(100, 2860))):
        expected, found = (one.search(QUERIES, 10, params=allowed) for one in (twin, index))
        assert (found[1] == expected[1]).all()
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    assert (index.reconstruct(2875) == twin.reconstruct(2875)).all()
    assert (copy.deepcopy(index).search(QUERIES, 10)[1] == index.search(QUERIES, 10)[1]).all()
    index.add(ROWS[:500])  # no longer few
    assert (index.search(QUERIES, 1)[1] >= -1).all() and isinstance(index.engine, type(engine))


def test_short_and_empty_answers_are_padded_like_faiss() -> None:
    index = IndexFlatIP(24)
    distances, ids = index.search(QUERIES[:2], 3)
    assert (ids == -1).all() and np.isneginf(distances).all()
    index.add(ROWS[:2])
    distances, ids = index.search(QUERIES[:2], 3)
    assert (ids[:, 2] == -1).all() and np.isneginf(distances[:, 2]).all()
    assert sorted(ids[0, :2]) == [0, 1]
    index.reset()
    assert index.ntotal == 0
    assert index.search(QUERIES[:0], 3)[0].shape == (0, 3)


def test_faults() -> None:
    index, flat, no_number = IndexFlatIP(24), IndexFlat(24), np.ones(2)
    nan = ROWS[:10].copy()
    nan[7, 3] = np.nan
    flat.add(ROWS)
    asked: list[tuple[Callable[[], Any], type[HeadlongError], str]] = [
        (lambda: index.add(np.zeros((2, 3))), ShapeError, r"x has shape \[2, 3\]; expected \[n, 24\]"),
        (lambda: index.add(nan), NonFiniteError, "row 7 of x holds NaN"),
        (lambda: index.add(ROWS.astype(np.complex64)), DtypeError, "complex64; expected real"),
        *((lambda k=k: index.search(QUERIES, k), OptionError, f"k is {k}") for k in (0, True, 2.5, None)),  # type: ignore[misc]
        (lambda: IndexFlatIP(24, metric="l1"), OptionError, "metric is 'l1'"),
        (lambda: IndexFlatIP(0), OptionError, "dim is 0"),
        (lambda: index.train(QUERIES[:0]), ShapeError, r"x has shape \[0, 24\]; expected at least one query"),
        (lambda: Headlong().query(QUERIES[0], 3), InputError, r"call fit\(rows\) first"),
        (lambda: repr(index.engine), InputError, "the index is empty"),
        (lambda: index.reconstruct(7), IdError, "key holds 7..7; expected 0 to -1"),
        (lambda: IndexFlatIP.over(Layer(ROWS, np.zeros(3000, np.float32))), InputError, "has a bias"),
        (lambda: flat.range_search(QUERIES, no_number), HeadlongError, REFUSED),
        (lambda: flat.range_search(QUERIES, "near"), HeadlongError, REFUSED),
        (lambda: flat.reconstruct(no_number), HeadlongError, REFUSED),
        (lambda: flat.reconstruct_n(no_number, 2), HeadlongError, REFUSED),
        (lambda: flat.search(QUERIES, 1, D=[1.0]), HeadlongError, REFUSED),
        (lambda: IndexFlat(4, no_number), HeadlongError, REFUSED),
        (lambda: faiss_api.index_factory(4, ["Flat"]), HeadlongError, REFUSED),
        (lambda: faiss_api.index_factory(4, "Flat", no_number), HeadlongError, REFUSED),
        (lambda: faiss_api.IDSelectorRange(no_number, 3), HeadlongError, REFUSED),
        (lambda: faiss_api.IDSelectorBitmap([1.5]), HeadlongError, REFUSED),
        (lambda: IndexIDMap(IndexFlat(24)).add_with_ids(np.float32(1), [1]), HeadlongError, REFUSED),
        (lambda: IndexIDMap(ROWS), HeadlongError, REFUSED),
    ]
    for ask, error, said in asked:
        with pytest.raises(error, match=said):
            ask()
    assert index.ntotal == 0
    over = IndexFlatIP.over(Layer(ROWS))
    assert np.shares_memory(over.engine.layer.weight, ROWS)


def test_products_beyond_float32_are_infinite_and_ranked() -> None:
    index = IndexFlatIP(24)
    index.add(ROWS * np.float32(1e19))
    distances, ids = index.search(QUERIES * np.float32(1e19), 3)
    assert (ids == BEST["inner_product"][:, :3]).all() and np.isposinf(distances).all()


def both(faiss: Any, metric: int) -> tuple[Any, Any]:
    """FAISS's index and ours, over the same rows."""
    theirs = (faiss.IndexFlatIP, faiss.IndexFlatL2)[metric](24)
    ours = (IndexFlatIP, IndexFlatL2)[metric](24)
    for index in (theirs, ours):
        index.add(ROWS)
    return theirs, ours


def check(expected: Any, found: Any, metric: int = 0) -> None:
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("metric", [0, 1])
def test_every_way_to_search_is_that_of_faiss(faiss: Any, metric: int) -> None:
    theirs, ours = both(faiss, metric)
    assert ours.metric_type == theirs.metric_type == metric
    assert faiss.IndexFlat(24).metric_type == IndexFlat(24).metric_type == faiss_api.METRIC_L2
    check(theirs.search(QUERIES, 8), ours.search(QUERIES, 8))
    out = np.empty((17, 8), np.float32), np.empty((17, 8), np.int64)
    assert all(one is other for one, other in zip(ours.search(QUERIES, 8, D=out[0], I=out[1]), out, strict=True))
    check(theirs.search(QUERIES, 8), out)
    np.testing.assert_array_equal(ours.assign(QUERIES, 3), theirs.assign(QUERIES, 3))
    thresh = 12.0 if metric == 0 else 22.0
    expected, found = theirs.range_search(QUERIES, thresh), ours.range_search(QUERIES, thresh)
    assert expected[0][-1] > 50
    np.testing.assert_array_equal(found[0], expected[0])
    check(expected[1:], found[1:])
    expected, found = theirs.search_and_reconstruct(QUERIES, 3), ours.search_and_reconstruct(QUERIES, 3)
    check(expected, found)
    np.testing.assert_array_equal(found[2], expected[2])


@pytest.mark.parametrize("whose", ["ours", "theirs"])
@pytest.mark.parametrize("name", ["range", "sorted", "unsorted", "batch", "array", "bitmap", "not", "and", "or", "xor", "all"])
def test_selectors_are_those_of_faiss(faiss: Any, name: str, whose: str) -> None:
    theirs, ours = both(faiss, 0)

    def made(of: Any) -> Any:
        some, many = of.IDSelectorBatch(np.array([3, 5, 800, 2999])), of.IDSelectorRange(100, 900)
        every = {
            "range": lambda: many, "batch": lambda: some, "not": lambda: of.IDSelectorNot(many),
            "array": lambda: of.IDSelectorArray(np.array([7, 9])), "all": of.IDSelectorAll,
            "bitmap": lambda: of.IDSelectorBitmap(np.arange(200, dtype=np.uint8)),
            "and": lambda: of.IDSelectorAnd(some, many), "or": lambda: of.IDSelectorOr(some, many),
            "xor": lambda: of.IDSelectorXOr(some, many), "sorted": lambda: of.IDSelectorRange(5, 20, True),
            "unsorted": lambda: of.IDSelectorRange(5, 20, False),
        }  # fmt: skip
        kept.extend((some, many))
        return every[name]()

    kept: list[Any] = []  # FAISS's objects do not keep each other
    expected = theirs.search(QUERIES, 5, params=faiss.SearchParameters(sel=made(faiss)))
    params = faiss_api.SearchParameters(sel=made(faiss_api)) if whose == "ours" else faiss.SearchParameters(sel=made(faiss))
    found = ours.search(QUERIES, 5, params=params)
    np.testing.assert_array_equal(found[1], expected[1])
    there = expected[1] >= 0
    np.testing.assert_allclose(found[0][there], expected[0][there], rtol=1e-4)


@pytest.mark.parametrize("metric", [0, 1])
def test_rows_come_and_go_as_in_faiss(faiss: Any, metric: int) -> None:
    theirs, ours = both(faiss, metric)
    for index in (theirs, ours):
        index.search(QUERIES, 1)
        assert index.remove_ids(np.array([4, 10, 2000, 77777])) == 3
        other = type(index)(24)
        other.add(ROWS[:100] * 1.5)
        index.merge_from(other)
        assert (index.ntotal, other.ntotal) == (3097, 0)
    check(theirs.search(QUERIES, 4), ours.search(QUERIES, 4))
    np.testing.assert_array_equal(ours.reconstruct(4), theirs.reconstruct(4))
    np.testing.assert_array_equal(ours.reconstruct_n(2990, 20), theirs.reconstruct_n(2990, 20))
    np.testing.assert_array_equal(ours.reconstruct_n(), theirs.reconstruct_n())
    np.testing.assert_array_equal(ours.reconstruct_batch([5, 1]), theirs.reconstruct_batch([5, 1]))


@pytest.mark.parametrize("named", [False, True])
def test_a_bare_selector_is_a_type_error_as_in_faiss(faiss: Any, named: bool) -> None:
    """It was ignored, or IDSelectorNot turned around."""
    theirs, ours = both(faiss, 0)
    if named:
        theirs, ours = faiss.IndexIDMap(faiss.IndexFlatIP(24)), IndexIDMap(IndexFlatIP(24))
        for index in (theirs, ours):
            index.add_with_ids(ROWS, np.arange(3000) * 3)
    for of in (faiss_api, faiss):
        bare = of.IDSelectorNot(of.IDSelectorRange(10, 20))
        with pytest.raises(TypeError):
            theirs.search(QUERIES, 3, params=bare)
        with pytest.raises(TypeError, match=r"params is an IDSelectorNot; expected SearchParameters: pass SearchP"):
            ours.search(QUERIES, 3, params=bare)
    for odd in (object(), {"sel": None}):
        with pytest.raises(TypeError, match="expected SearchParameters"):
            ours.search(QUERIES, 3, params=odd)
    with pytest.raises(TypeError, match="a selector is a list; expected an IDSelector"):
        ours.search(QUERIES, 3, params=faiss_api.SearchParameters(sel=[1, 2]))  # type: ignore[arg-type]


def test_many_far_neighbours_take_little_memory() -> None:
    """1,024 queries, k 300, 768 coordinates took 3.5 GB at once."""
    rows = np.random.default_rng(0).standard_normal((2000, 768), np.float32)
    index = IndexFlatL2(768)
    index.add(rows)
    queries = np.random.default_rng(1).standard_normal((256, 768), np.float32)
    index.search(queries[:1], 1)
    tracemalloc.start()
    ids = index.search(queries, 300)[1]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 80e6, most
    exact = np.square(queries[7].astype(np.float64) - rows).sum(1)
    np.testing.assert_array_equal(ids[7], np.argsort(exact, kind="stable")[:300])


@pytest.mark.parametrize("tried", [False, True])
@pytest.mark.parametrize("metric", ["inner_product", "l2", "cosine", "log_prob"])
@pytest.mark.parametrize("some", [False, True])
def test_a_range_that_holds_nearly_everything(metric: str, some: bool, tried: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_index, "MANY", 100 if tried else 1 << 16)  # as of an index of many rows
    index = IndexFlat(24, metric)
    index.add(ROWS)
    params = faiss_api.SearchParameters(faiss_api.IDSelectorRange(100, 2900)) if some else None
    places = np.arange(100, 2900) if some else np.arange(3000)
    every, ids = index.search(QUERIES, len(places), params=params)
    for share in (0.02, 0.97):
        thresh = float(every[0, int(share * len(places))])
        lims, values, found = index.range_search(QUERIES, thresh, params=params)
        for row in range(len(QUERIES)):
            inside = every[row] < thresh if metric == "l2" else every[row] > thresh
            if metric == "log_prob":  # the normaliser of another call may be 0.01 off
                near = found[int(lims[row]) : int(lims[row + 1])]
                assert {*ids[row][every[row] > thresh + 0.02]} <= {*near} <= {*ids[row][every[row] > thresh - 0.02]}
                assert (np.diff(near) > 0).all()
                continue
            here = slice(int(lims[row]), int(lims[row + 1]))
            order = np.argsort(ids[row][inside])
            np.testing.assert_array_equal(found[here], ids[row][inside][order])
            np.testing.assert_allclose(values[here], every[row][inside][order], rtol=1e-6)


def test_selectors_of_faiss_are_asked_in_its_own_code(faiss: Any) -> None:
    ids = np.random.default_rng(0).permutation(100_000).astype(np.int64)
    chosen = faiss.IDSelectorBatch(ids[:1000])
    calls: list[str] = []
    sys.setprofile(lambda frame, event, what: calls.append(event))
    try:
        found = faiss_selectors.members(chosen, ids)
    finally:
        sys.setprofile(None)
    assert len(calls) < len(ids) / 100
    assert found[:1000].all() and found.sum() == 1000


def test_verbs_of_ids_of_your_own_are_those_of_faiss(faiss: Any) -> None:
    ids = np.arange(3000) * 7 + 5
    for name in ("IndexIDMap", "IndexIDMap2"):
        theirs, ours = getattr(faiss, name)(faiss.IndexFlatL2(24)), getattr(faiss_api, name)(IndexFlatL2(24))
        others = getattr(faiss, name)(faiss.IndexFlatL2(24)), getattr(faiss_api, name)(IndexFlatL2(24))
        for index, other in zip((theirs, ours), others, strict=True):
            index.add_with_ids(ROWS[:2000], ids[:2000])
            other.add_with_ids(ROWS[2000:], ids[:1000])
            index.merge_from(other, 100_000)
            assert (index.ntotal, other.ntotal, index.is_trained, index.metric_type) == (3000, 0, True, 1)
            assert index.remove_ids(ids[:50]) == 50
        sel = faiss.IDSelectorRange(1000, 9000)
        for params in (None, faiss.SearchParameters(sel=sel)):
            check(theirs.search(QUERIES, 4, params=params), ours.search(QUERIES, 4, params=params))
        np.testing.assert_array_equal(ours.reconstruct(int(ids[60])), ROWS[60])
        with pytest.raises(IdError, match="no row has id 5"):
            ours.reconstruct(5)
        np.testing.assert_array_equal(theirs.assign(QUERIES, 2), ours.assign(QUERIES, 2))
        check(theirs.range_search(QUERIES, 20.0)[1:], ours.range_search(QUERIES, 20.0)[1:])
        if name == "IndexIDMap2":  # FAISS's other one does not find rows by their ids
            np.testing.assert_array_equal(theirs.reconstruct(100_005), ours.reconstruct(100_005))
            for expected, found in zip(
                theirs.search_and_reconstruct(QUERIES, 3), ours.search_and_reconstruct(QUERIES, 3), strict=True
            ):
                np.testing.assert_allclose(found, expected, rtol=1e-4)
        with pytest.raises(AbsentError, match="FAISS's get_xb is not here"):
            _ = ours.get_xb
    with pytest.raises(InputError, match="numbers its rows"):
        IndexFlatIP(24).add_with_ids(ROWS, np.arange(3000))


def test_the_factory_and_the_normaliser(faiss: Any) -> None:
    for words in ("Flat", "IDMap,Flat", "IDMap2,Flat"):
        for metric in (faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT):
            theirs, ours = (of.index_factory(24, words, metric) for of in (faiss, faiss_api))
            for index in (theirs, ours):
                index.add(ROWS) if words == "Flat" else index.add_with_ids(ROWS, np.arange(3000) * 2)
            check(theirs.search(QUERIES, 3), ours.search(QUERIES, 3))
    with pytest.raises(AbsentError, match=r"index_factory\(d, 'IVF100,PQ8'\) is not here; it makes Flat, IDMap,Flat"):
        faiss_api.index_factory(24, "IVF100,PQ8")
    one, other = ROWS.copy(), ROWS.copy()
    one[5] = other[5] = 0
    faiss.normalize_L2(one)
    faiss_api.normalize_L2(other)
    np.testing.assert_allclose(other, one, rtol=1e-6)
    with pytest.raises(DtypeError, match="expected a float32 array"):
        faiss_api.normalize_L2(ROWS.astype(np.float64))


def test_faults_are_what_callers_of_faiss_catch(faiss: Any, tmp_path: Path) -> None:
    theirs, ours = both(faiss, 0)
    for kind, ask in (
        (AssertionError, lambda index: index.search(QUERIES[:, :5], 3)),
        (AssertionError, lambda index: index.search(QUERIES, 0)),
        (RuntimeError, lambda index: index.reconstruct(99_999)),
        (RuntimeError, lambda index: index.add_with_ids(QUERIES, np.arange(17))),
    ):
        for index in (theirs, ours):
            with pytest.raises(kind):
                ask(index)
        with pytest.raises(InputError):
            ask(ours)
    for name in ("missing.index", "a.index"):
        (tmp_path / "a.index").write_bytes(b"IxF")
        for module in (faiss, faiss_api):
            with pytest.raises(RuntimeError):
                module.read_index(str(tmp_path / name))
    with pytest.raises(OSError, match="cannot be read"):
        faiss_api.read_index(tmp_path / "missing.index")


def test_tensors_come_in_as_arrays_do() -> None:
    torch = pytest.importorskip("torch")
    index = IndexFlatIP(24)
    index.add(torch.from_numpy(ROWS).requires_grad_())
    for queries in (torch.from_numpy(QUERIES).bfloat16(), torch.from_numpy(QUERIES).half().requires_grad_(), QUERIES.tolist()):
        narrow = np.asarray(queries.detach().float() if isinstance(queries, torch.Tensor) else queries, np.float32)
        np.testing.assert_array_equal(index.search(queries, 3)[1], index.search(narrow, 3)[1])
    for queries in (torch.zeros(2, 24, device="meta"), torch.zeros(2, 24).to(torch.float8_e4m3fn), np.full((2, 24), "x")):
        with pytest.raises(DtypeError, match="x is on meta|has no NumPy view|expected real numbers"):
            index.search(queries, 3)


def test_ids_below_zero_and_a_selector_of_nothing() -> None:
    index, named = IndexFlatL2(4), IndexIDMap(IndexFlatL2(4))
    rows = np.eye(4, dtype=np.float32)
    index.add(rows)
    named.add_with_ids(rows, [-5, 3, 1, 2])
    assert (named.reconstruct(-5) == rows[0]).all() and (named.reconstruct_n(1, 3) == rows[[2, 3, 1]]).all()
    for ask in (lambda: named.reconstruct_n(0, "2"), lambda: named.reconstruct(None)):
        with pytest.raises(HeadlongError):
            ask()
    nothing = faiss_api.SearchParameters(faiss_api.IDSelectorBitmap(np.empty(0, np.uint8)))
    assert index.search(rows, 1, params=nothing)[1].tolist() == 4 * [[-1]]


def test_l2_is_told_apart_where_a_float32_bias_cannot() -> None:
    """Rows far from the origin, near each other: the bias is rounded by more than distances differ."""
    rows = (1000 + RNG.standard_normal((400, 8)) * 0.01).astype(np.float32)
    queries = (1000 + RNG.standard_normal((5, 8)) * 0.01).astype(np.float32)
    index = IndexFlatL2(8)
    index.add(rows)
    distances, ids = index.search(queries, 6)
    exact = np.square(queries[:, None].astype(np.float64) - rows.astype(np.float64)).sum(-1)
    np.testing.assert_array_equal(ids, np.argsort(exact, axis=1, kind="stable")[:, :6])
    np.testing.assert_allclose(distances, np.take_along_axis(exact, ids, 1), rtol=1e-6)


@pytest.mark.parametrize("k", [1, 7, 40])
def test_rows_that_are_permutations_are_equally_far(k: int) -> None:
    rng = np.random.default_rng(k)
    row, query = rng.standard_normal(48).astype(np.float32), np.full((1, 48), 0.3, np.float32)
    ids = np.sort(rng.choice(3000, 40, replace=False))
    rows = (1 + rng.random((3000, 48), np.float32)) * 2
    rows[ids] = [rng.permutation(row) for _ in ids]
    rows[ids[5]] = rows[ids[2]]
    index = IndexFlatL2(48)
    index.add(rows)
    distances, found = index.search(np.concatenate([query, query]), k)
    assert found.tolist() == 2 * [ids[:k].tolist()] and len(np.unique(distances)) == 1


def test_files_copies_and_pickles_answer_alike(tmp_path: Path) -> None:
    for kind in (IndexFlatIP, IndexFlatL2):
        index = kind(24)
        index.train(QUERIES)
        index.add(ROWS)
        expected = index.search(QUERIES, 3)
        faiss_api.write_index(index, tmp_path / "index.safetensors")
        others = [faiss_api.read_index(tmp_path / "index.safetensors"), faiss_api.clone_index(index)]
        for other in (*others, copy.deepcopy(index), pickle.loads(pickle.dumps(index))):  # noqa: S301
            assert type(other) is kind and repr(other) == repr(index)
            check(expected, other.search(QUERIES, 3))
    named = faiss_api.IndexIDMap(IndexFlatIP(24))
    named.add_with_ids(ROWS, 10 * np.arange(len(ROWS)))
    faiss_api.write_index(named, tmp_path / "named.safetensors")
    again = faiss_api.read_index(tmp_path / "named.safetensors")
    assert isinstance(again, faiss_api.IndexIDMap)
    check(named.search(QUERIES, 3), again.search(QUERIES, 3))
    Layer(ROWS).save(tmp_path / "layer.safetensors")
    with pytest.raises(MalformedFileError, match="holds no index"):
        faiss_api.read_index(tmp_path / "layer.safetensors")


def test_every_public_name_of_faiss_is_there_or_refused_by_name(faiss: Any) -> None:
    theirs = faiss.IndexFlatIP(8)
    ours: Any = IndexFlatIP(8)
    names = [name for name in dir(theirs) if not name.startswith("_") and name not in ("this", "thisown")]  # SWIG's own
    absent = [name for name in names if not hasattr(ours, name)]
    assert len(names) > 40 and len(names) - len(absent) >= 18
    for name in absent:
        with pytest.raises(AbsentError, match=f"FAISS's {name} is not here; "):
            getattr(ours, name)
    with pytest.raises(AttributeError, match="no attribute 'serch'"):
        _ = ours.serch
    for name in ("IndexHNSWFlat", "IndexIVFFlat", "Kmeans", "METRIC_L1"):
        assert not hasattr(faiss_api, name)
        with pytest.raises(AbsentError, match=f"FAISS's {name} is not here; "):
            getattr(faiss_api, name)
    assert copy.copy(ours).ntotal == 0


@pytest.mark.parametrize(("metric", "ours"), [("dot", "inner_product"), ("angular", "cosine"), ("euclidean", "l2")])
def test_the_ann_benchmarks_module(metric: str, ours: str) -> None:
    module, best = Headlong(metric), BEST[ours][:, :5]
    module.fit(ROWS)
    for path in ("auto", "dense"):
        module.set_query_arguments(path)
        assert module.get_additional()["path"] == path in str(module)
        np.testing.assert_array_equal(module.query(QUERIES[2], 5), best[2])
        module.batch_query(QUERIES, 5)
        np.testing.assert_array_equal(module.get_batch_results(), best)
    assert module.get_memory_usage() >= ROWS.nbytes / 1024
    with pytest.raises(OptionError, match="path is 'slow'"):
        module.set_query_arguments("slow")
    module.done()
    assert module.get_memory_usage() == 0


def test_the_real_runner_completes(tmp_path: Path) -> None:
    """Set ANN_BENCHMARKS to a checkout of ann-benchmarks (with its requirements installed) to run this."""
    if not os.environ.get("ANN_BENCHMARKS"):
        pytest.skip("ANN_BENCHMARKS is not set: it names a checkout of erikbern/ann-benchmarks")
    home = tmp_path / "runner"
    shutil.copytree(os.environ["ANN_BENCHMARKS"], home)
    folder = Path(__file__).resolve().parents[2] / "benchmarks/ann_benchmarks"
    shutil.copytree(folder, home / "ann_benchmarks/algorithms/headlong")
    words = "run.py --dataset random-xs-20-euclidean --algorithm headlong --local --runs 1"
    command = [sys.executable, *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=home, timeout=900, check=False)
    stored = list((home / "results").rglob("*.hdf5"))
    assert len(stored) == 4, done.stdout[-3000:] + done.stderr[-3000:]


MANY_EQUAL: dict[str, np.ndarray] = {
    "zeros": np.zeros((6000, 32), np.float32),
    "two rows": np.repeat(np.eye(2, 32, dtype=np.float32), 3000, axis=0)[RNG.permutation(6000)],
    "twenty rows": RNG.standard_normal((20, 32)).astype(np.float32)[RNG.integers(0, 20, 6000)],
    "one of 32": np.eye(32, dtype=np.float32)[RNG.integers(0, 32, 6000)],
    "signs": np.where(RNG.random((6000, 32)) < 0.5, -1, 1).astype(np.float32),
    "in other places": RNG.permuted(np.tile(np.linspace(0, 1, 32, dtype=np.float32), (60, 1)), axis=1)[np.arange(6000) % 60],
}


@pytest.mark.parametrize("name", MANY_EQUAL)
@pytest.mark.parametrize("metric", ["l2", "inner_product"])
def test_of_many_rows_as_far_those_of_the_smallest_ids_are_found(
    metric: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From two questions to the engine at most, and then from all rows, once for a query."""
    rows, queries = MANY_EQUAL[name], np.concatenate([np.zeros((1, 32)), np.ones((1, 32)), np.eye(1, 32)]).astype(np.float32)
    index = IndexFlat(32, metric)
    index.add(rows)
    asked, top = [], index._top
    monkeypatch.setattr(index, "_top", lambda *given: asked.append(given) or top(*given))
    scores = (
        np.array([[math.fsum(((q - y) ** 2).tolist()) for y in rows.astype(np.float64)] for q in queries.astype(np.float64)])
        if metric == "l2"
        else np.array([[-math.fsum((q * y).tolist()) for y in rows.astype(np.float64)] for q in queries.astype(np.float64)])
    )
    for k in (1, 5, 200):
        asked.clear()
        distances, ids = index.search(queries, k)
        order = np.argsort(scores, axis=1, kind="stable")[:, :k]
        assert (ids == order).all() and len(asked) <= 2
        np.testing.assert_allclose(distances, np.abs(np.take_along_axis(scores, order, 1)), rtol=1e-6, atol=1e-6)
        some = np.arange(5, 6000, 7)
        allowed = index.search(queries, k, params=faiss_selectors.SearchParameters(faiss_selectors.IDSelectorBatch(some)))[1]
        assert (allowed == some[np.argsort(scores[:, some], axis=1, kind="stable")[:, :k]]).all()
    lims, near, found = index.range_search(queries, 400.0 if metric == "l2" else -400.0)
    assert (np.diff(lims) == 6000).all() and (found.reshape(3, -1) == np.arange(6000)).all() and near.shape == found.shape


def test_a_range_of_equal_distances_takes_no_more_than_its_answer() -> None:
    index = IndexFlatL2(8)
    index.add(np.zeros((300_000, 8), np.float32))
    index.range_search(np.ones((1, 8), np.float32), 9.0)
    tracemalloc.start()
    lims, distances, ids = index.range_search(np.ones((2, 8), np.float32), 9.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lims[-1] == 600_000 and (distances == 8).all() and (ids[:300_000] == np.arange(300_000)).all()
    assert peak < 4 * (distances.nbytes + ids.nbytes) + 5 * 8 * faiss_distances.PIECE


def test_ranges_of_a_million_rows_come_in_batches_that_fit_into_memory() -> None:
    rng = np.random.default_rng(7)
    rows, queries = rng.standard_normal((1_000_000, 8), np.float32), rng.standard_normal((270, 8)).astype(np.float32)
    index = IndexFlatIP(8)
    index.add(rows)
    next(index.range_batches(queries, 3.0))  # compiles
    tracemalloc.start()
    total, largest, seen = 0, 0, 0
    for which, lims, distances, ids in index.range_batches(queries, 3.0):
        assert which.start == seen and len(lims) == which.stop - which.start + 1
        total, largest, seen = total + distances.nbytes + ids.nbytes, max(largest, distances.nbytes + ids.nbytes), which.stop
        some = slice(int(lims[0]), int(lims[1]))
        products = rows[ids[some]].astype(np.float64) @ queries[which.start].astype(np.float64)
        assert (np.diff(ids[some]) > 0).all() and (distances[some] > 3).all()
        np.testing.assert_allclose(distances[some], products, rtol=1e-6)
        assert np.isin(np.flatnonzero(rows @ queries[which.start] > 3.0001), ids[some]).all()
        del distances, ids, products
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen == len(queries) and peak < 2.9 * largest < 0.8 * total


@pytest.mark.filterwarnings("error")
def test_rows_whose_distances_float32_cannot_hold_are_refused_and_others_cost_nothing(tmp_path: Path) -> None:
    index = IndexFlatL2(24)
    index.add(ROWS)
    wide = ROWS[:4].copy()
    wide[2] *= np.float32(1e20)
    with pytest.raises(NonFiniteError, match=r"row 2 of x has the length .*e\+20, whose square is beyond float32; resc"):
        index.add(wide)
    assert index.ntotal == 3000 and len(index.range_search(QUERIES, 30.0)[1])
    np.testing.assert_array_equal(index.search(QUERIES, 5)[1], BEST["l2"][:, :5])
    with pytest.raises(NonFiniteError, match="row 2 of x has the length"):
        IndexFlat.of({"rows": wide}, "l2")
    IndexFlatIP(24).add(wide)  # a product that float32 cannot hold is infinite, and ranked all the same
    index.add(ROWS[:1] * np.float32(1e17))  # the others' distances are as near as before
    top, asked = index._top, []
    index._top = lambda *given: asked.append(given) or top(*given)
    np.testing.assert_array_equal(index.search(QUERIES, 5)[1], BEST["l2"][:, :5])
    assert len(asked) == 1
    distances, ids = index.search(ROWS[:1] * np.float32(1e17), 1)
    assert ids[0, 0] == 3000 and distances[0, 0] == 0
    assert np.isposinf(index.search(ROWS[:1] * np.float32(1e30), 2)[0]).all()


def test_attributes_and_selectors_are_faiss_s(faiss: Any) -> None:
    maps = IndexIDMap(IndexFlatIP(4)), faiss.IndexIDMap(faiss.IndexFlatIP(4))
    for ours, theirs in ((IndexFlatL2(4), faiss.IndexFlatL2(4)), maps):
        for name in ("nprobe", "efSearch", "hnsw", "foo", "Verbose", "quantizer"):
            for index in (ours, theirs):
                with pytest.raises(AttributeError, match=name):
                    setattr(index, name, 3)
                assert not hasattr(index, name)

    class Own(IndexFlatL2):
        def __init__(self) -> None:
            super().__init__(4)
            self.mine = 1

    with pytest.raises(AttributeError, match="'Own' object has no attribute 'mine'"):
        Own()
    index = IndexFlatL2(4)
    index.verbose, index.is_trained = True, True
    assert copy.deepcopy(index).verbose and pickle.loads(pickle.dumps(index)).d == 4  # noqa: S301
    assert faiss_api.IDSelectorRange(1, 2, assume_sorted=True).assume_sorted is True
    with pytest.raises(OptionError, match="assume_sorted is 'yes'; expected True or False"):
        faiss_api.IDSelectorRange(1, 2, "yes")  # type: ignore[arg-type]


def test_normalising_changes_what_can_be_changed() -> None:
    rows = ROWS[:5].copy()
    faiss_api.normalize_L2(rows)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)
    rows.flags.writeable = False
    wide, line = ROWS[:5].astype(np.float64), ROWS[0].copy()
    for wrong, said in ((rows, "a read-only array"), (wide, "a float64"), (line, "a float32"), ([1.0], "a list")):
        with pytest.raises(DtypeError, match=f"x is {said}; expected a float32 array"):
            faiss_api.normalize_L2(wrong)
