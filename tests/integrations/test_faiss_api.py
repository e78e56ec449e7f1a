"""FAISS's verbs, with FAISS's own answers where it is installed and float64 where it is not."""

from __future__ import annotations

import numpy as np
import pytest

from headlong import Layer
from headlong.errors import DtypeError, InputError, OptionError, ShapeError
from headlong.integrations.faiss_api import Headlong, IndexFlatIP

RNG = np.random.default_rng(3)
ROWS = RNG.standard_normal((3000, 24)).astype(np.float32)
QUERIES = RNG.standard_normal((17, 24)).astype(np.float32)
TRUTH = QUERIES.astype(np.float64) @ ROWS.T.astype(np.float64)
BEST = np.argsort(-TRUTH, axis=1, kind="stable")


@pytest.mark.parametrize("method", ["auto", "cascade"])
def test_search_is_exact(method: str) -> None:
    index = IndexFlatIP(24, method=method)
    index.train(QUERIES)
    index.add(ROWS[:1000])
    index.add(ROWS[1000:])
    assert (index.ntotal, index.d, index.is_trained) == (3000, 24, True)
    distances, ids = index.search(QUERIES, 10)
    assert (ids == BEST[:, :10]).all()
    np.testing.assert_allclose(distances, np.take_along_axis(TRUTH, ids, 1), rtol=1e-5)
    assert (distances.dtype, ids.dtype) == (np.float32, np.int64)
    assert (index.reconstruct(1500) == ROWS[1500]).all()


def test_the_same_as_faiss() -> None:
    faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed: pip install 'headlong[bench]'")
    theirs, ours = faiss.IndexFlatIP(24), IndexFlatIP(24)
    for index in (theirs, ours):
        index.add(ROWS)
    for expected, found in zip(theirs.search(QUERIES, 8), ours.search(QUERIES, 8), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_log_probabilities_instead_of_products() -> None:
    index = IndexFlatIP(24, metric="log_prob")
    index.add(ROWS)
    found, ids = index.search(QUERIES, 3)
    expected = TRUTH - np.log(np.exp(TRUTH).sum(1, keepdims=True))
    np.testing.assert_allclose(found, np.take_along_axis(expected, ids, 1), atol=0.0101)


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
    index = IndexFlatIP(24)
    with pytest.raises(ShapeError, match=r"x has shape \[2, 3\]; expected \[n, 24\]"):
        index.add(np.zeros((2, 3)))
    with pytest.raises(OptionError, match="k is 0"):
        index.search(QUERIES, 0)
    with pytest.raises(OptionError, match="metric is 'l2'"):
        IndexFlatIP(24, metric="l2")
    with pytest.raises(OptionError, match="dim is 0"):
        IndexFlatIP(0)
    for k in (True, 2.5, None):
        with pytest.raises(OptionError, match=f"k is {k}"):
            index.search(QUERIES, k)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"x has shape \[0, 24\]; expected at least one query"):
        index.train(QUERIES[:0])
    with pytest.raises(DtypeError, match="complex64; expected real"):
        index.add(ROWS.astype(np.complex64))
    with pytest.raises(InputError, match=r"call fit\(rows\) first"):
        Headlong().query(QUERIES[0], 3)
    with pytest.raises(InputError, match="the index is empty"):
        repr(index.engine)
    with pytest.raises(ShapeError, match="key is 7"):
        index.reconstruct(7)
    with pytest.raises(InputError, match="has a bias"):
        IndexFlatIP.over(Layer(ROWS, np.zeros(3000, np.float32)))
    over = IndexFlatIP.over(Layer(ROWS))
    assert np.shares_memory(over.engine.layer.weight, ROWS)


def test_products_beyond_float32_are_infinite_and_ranked() -> None:
    index = IndexFlatIP(24)
    index.add(ROWS * np.float32(1e19))
    distances, ids = index.search(QUERIES * np.float32(1e19), 3)
    assert (ids == BEST[:, :3]).all() and np.isposinf(distances).all()


@pytest.mark.parametrize("metric", ["dot", "angular"])
def test_the_ann_benchmarks_module(metric: str) -> None:
    module = Headlong(metric)
    module.fit(ROWS)
    module.set_query_arguments(1)
    rows = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True) if metric == "angular" else ROWS
    expected = np.argsort(-(QUERIES @ rows.T), axis=1)[:, :5]
    assert (module.query(QUERIES[0], 5) == expected[0]).all()
    module.batch_query(QUERIES, 5)
    assert (module.get_batch_results() == expected).all()
    assert module.get_memory_usage() >= ROWS.nbytes / 1024
    assert str(module) == "headlong(auto)"
    module.done()
    assert module.get_memory_usage() == 0
    with pytest.raises(OptionError, match="metric is 'hamming'"):
        Headlong("hamming")
