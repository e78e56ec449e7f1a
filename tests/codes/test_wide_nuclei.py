"""Nuclei that go on beyond the best classes: draws by codes are those by every logit, and few rows are read in full."""

from __future__ import annotations

import numpy as np
import pytest

import headlong as hl

CLASSES, DIM, ROWS = 6000, 64, 48


@pytest.fixture(scope="module")
def flat() -> hl.Layer:
    """Logits within a few nats of each other: a nucleus has thousands of classes."""
    return hl.Layer((np.random.default_rng(71).standard_normal((CLASSES, DIM)) / 8).astype(np.float32))


@pytest.fixture(scope="module")
def hidden() -> np.ndarray:
    return np.random.default_rng(72).standard_normal((ROWS, DIM))


@pytest.mark.parametrize("eps", [None, np.inf])
@pytest.mark.parametrize("n", [1, 3, 20])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95, 0.999])
def test_draws_are_those_by_every_logit(flat: hl.Layer, hidden: np.ndarray, top_p: float, n: int, eps: float | None) -> None:
    codes, full = hl.compile(flat, "codes"), hl.compile(flat, "full")
    for temperature in (1.0, 0.4):
        how = {"seed": 9, "top_p": top_p, "temperature": temperature}
        drawn, right = codes.sample(hidden, n, eps=eps, **how), full.sample(hidden, n, **how)
        np.testing.assert_array_equal(drawn.ids, right.ids)
        if eps is None:
            assert (drawn.error <= 0.01).all()
            assert (np.abs(drawn.kept - right.kept) <= drawn.error + right.error + 1e-9).all()
        alone = codes.sample(hidden[7:8], n, eps=eps, position=7, **how)
        np.testing.assert_array_equal(alone.ids[0], drawn.ids[7])
        if eps is None:
            np.testing.assert_array_equal(alone.kept[0], drawn.kept[7])


def test_one_scan_decides_most_draws(flat: hl.Layer, hidden: np.ndarray) -> None:
    engine = hl.compile(flat, "codes")
    several = [engine.sample(hidden, seed=seed, top_p=0.95, eps=np.inf).cost for seed in range(8)]
    assert np.mean([np.mean(cost.dense) for cost in several]) < 0.05
    assert np.mean([np.mean(cost.rows) for cost in several]) < 0.15 * CLASSES


@pytest.mark.parametrize("top_p", [0.9, 0.99])
def test_what_intervals_leave_open_is_decided_by_some_rows(flat: hl.Layer, hidden: np.ndarray, top_p: float) -> None:
    """Codes of four bits leave many draws of such a layer open, at the end of a nucleus and beyond it."""
    engine, full = hl.compile(flat, "codes", bits=4), hl.compile(flat, "full")
    dense, rows = [], []
    for seed in range(6):
        drawn = engine.sample(hidden, seed=seed, top_p=top_p, eps=np.inf)
        np.testing.assert_array_equal(drawn.ids, full.sample(hidden, seed=seed, top_p=top_p).ids)
        dense.append(np.mean(drawn.cost.dense))
        rows.append(np.mean(drawn.cost.rows))
    assert np.mean(dense) < 0.25
    assert np.mean(rows) < 0.3 * CLASSES


@pytest.mark.parametrize("top_p", [0.03, 0.1])
def test_the_end_of_a_nucleus_among_equal_best_classes_seldom_takes_a_full_scan(flat: hl.Layer, top_p: float) -> None:
    """No class comes before one of the best but those better than it: of equal ones, however many, those with smaller ids."""
    rng = np.random.default_rng(73)
    weight = flat.weight.copy()
    ids = np.sort(rng.choice(CLASSES, 300, replace=False))
    weight[ids] = weight[ids[0]]
    layer, rows = hl.Layer(weight), rng.standard_normal((24, DIM)) + 8 * weight[ids[0]]
    engine, full = hl.compile(layer, "codes"), hl.compile(layer, "full")
    dense = []
    for seed in range(3):
        drawn = engine.sample(rows, 4, seed=seed, top_p=top_p, eps=np.inf)
        np.testing.assert_array_equal(drawn.ids, full.sample(rows, 4, seed=seed, top_p=top_p).ids)
        dense.append(np.mean(drawn.cost.dense))
    assert np.mean(dense) < 0.2
