"""The comparison helpers reject what they must: a helper that accepts everything tests nothing."""

from __future__ import annotations

import numpy as np
import pytest

from headlong import Layer
from oracle import check_draw, check_topk, check_within, kept, truth

REFERENCE = np.array([1.0, 3.0, 3.0, -2.0, 2.0])
INF = np.inf


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_topk_accepts() -> None:
    check_topk(REFERENCE, ids(1, 2, 4), np.array([3.0, 3.0, 2.0]), 0.0)
    check_topk(REFERENCE, ids(2, 1, 4), np.array([3.0 + 1e-9, 3.0, 2.0]), 1e-8)
    check_topk(REFERENCE, ids(1, 2, 4, 0, 3), np.array([3.0, 3.0, 2.0, 1.0, -2.0]), 0.0)
    check_topk(np.array([-INF, 1.0, -INF]), ids(1, -1), np.array([1.0, -INF]), 0.0)


@pytest.mark.parametrize(
    ("found", "logits", "tolerance", "message"),
    [
        (ids(2, 1, 4), [3.0, 3.0, 2.0], 0.0, "order of their ids"),
        (ids(2, 1, 4), [3.0, 3.0, 2.0], 1e-8, "order of their ids"),
        (ids(1, 4), [3.0, 2.0], 1e-8, "beats"),
        (ids(2), [3.0], 0.0, "expected"),
        (ids(1, 1), [3.0, 3.0], 0.0, "twice"),
        (ids(1, 5), [3.0, 3.0], 0.0, "out of range"),
        (ids(1, 2), [3.0, 2.9], 1e-3, "logits off"),
        (ids(4, 1), [2.0, 3.0], 0.0, "descend"),
        (ids(1, -1), [3.0, -INF], 0.0, "out of range"),
        (ids(1, 2, 4, 0, 3, 2), [3.0, 3.0, 2.0, 1.0, -2.0, -INF], 0.0, "only 5 classes"),
        (np.array([1, 2], np.int32), [3.0, 3.0], 0.0, "int32"),
    ],
)
def test_topk_rejects(found: np.ndarray, logits: list[float], tolerance: float, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_topk(REFERENCE, found, np.array(logits), tolerance)


def test_topk_rejects_a_masked_class() -> None:
    with pytest.raises(AssertionError, match="not there"):
        check_topk(np.array([-INF, 1.0, 0.0]), ids(0), np.array([-INF]), 0.0)


def test_intervals() -> None:
    one = np.ones(1)
    check_within(one, one + 0.1, one * 0.1, 1e-12)
    check_within(one, one + 9.0, one * INF, 0.0)
    check_within(-one * INF, -one * INF, one * 0, 0.0)
    for value, error in [(one + 0.2, one * 0.1), (one * np.nan, one), (one, -one), (one, one * np.nan)]:
        with pytest.raises(AssertionError):
            check_within(value, one, error, 0.0)


def test_draws() -> None:
    exponents, noise = np.log([0.5, 0.3, 0.2]), np.array([0.0, 0.0, 5.0])
    check_draw(exponents, exponents, noise, (0, 1.0, 0.0), 2, float(np.log(0.2) + 5))
    check_draw(exponents, exponents, noise, (2, 1.0, 0.0), 0, float(np.log(0.5)))
    for winner, score in [(0, float(np.log(0.5))), (2, float(np.log(0.2) + 4.9))]:
        with pytest.raises(AssertionError):
            check_draw(exponents, exponents, noise, (0, 1.0, 0.0), winner, score)


def test_filters() -> None:
    exponents = np.log([0.4, 0.3, 0.2, 0.1])
    assert kept(exponents, exponents, 0, 1.0, 0.0).tolist() == [0, 1, 2, 3]
    assert kept(exponents, exponents, 0, 0.7001, 0.0).tolist() == [0, 1, 2]
    assert kept(exponents, exponents, 0, 0.6999, 0.0).tolist() == [0, 1]
    assert kept(exponents, exponents, 0, 0.01, 0.0).tolist() == [0]
    assert kept(exponents, exponents, 2, 0.6, 0.0).tolist() == [0, 1]  # 4/7 < 0.6: top_p acts within what top_k left
    assert kept(exponents, exponents, 0, 1.0, 0.6).tolist() == [0, 1]
    assert kept(exponents, np.zeros(4), 2, 1.0, 0.0).tolist() == [0, 1]  # a saturated link leaves the order of the logits


def test_truth_is_the_definition() -> None:
    layer = Layer(np.array([[1.0, 2.0], [0.0, -1.0]], np.float32), np.array([0.5, 0.0], np.float32))
    found = truth(layer, np.array([[1.0, 1.0]]))
    assert found.logits.tolist() == [[3.5, -1.0]]
    np.testing.assert_allclose(np.exp(found.log_probs).sum(), 1.0)
