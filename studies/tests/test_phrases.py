"""Layers with a class for every phrase of a text: counts are right, and what a context says is what followed it."""

from __future__ import annotations

from collections import Counter

import numpy as np

from studies.models.phrases import REACH, phrases


def text(count: int, seed: int) -> np.ndarray:
    """Words of two topics: 0 to 19 keep among themselves for a while, and so do 20 to 39."""
    rng = np.random.default_rng(seed)
    topic = np.repeat(rng.integers(0, 2, -(-count // 50)), 50)[:count]
    return rng.integers(0, 20, count) + 20 * topic


def test_classes_are_the_most_frequent_phrases() -> None:
    train = text(4000, 0)
    found = phrases(train, (text(300, 1), text(200, 2)), 40, 500, length=2, dim=8)
    counts = Counter(zip(train[:-1].tolist(), train[1:].tolist(), strict=True))
    expected = sorted(counts.values(), reverse=True)[:500]
    np.testing.assert_allclose(np.exp(found.bias), expected, rtol=1e-6)
    assert found.weight.shape == (500, 8) and found.weight.dtype == np.float32
    assert found.calibration.shape == (300 - REACH + 1, 8) and found.queries.shape == (200 - REACH + 1, 8)
    again = phrases(train, (text(300, 1), text(200, 2)), 40, 500, length=2, dim=8)
    assert (again.weight == found.weight).all()


def test_a_context_prefers_phrases_of_its_topic() -> None:
    train, other = text(6000, 3), text(1000, 4)
    found = phrases(train, (other, other), 40, 10**6, length=2, dim=8)
    pairs = train[:-1] * 40 + train[1:]
    _, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    order = np.lexsort((first, -counts))
    topic = train[first[order]] // 20
    best = topic[np.argmax(found.queries @ found.weight.T, axis=1)]
    own = [other[at : at + REACH] // 20 for at in range(len(best))]
    settled = np.array([len(set(words.tolist())) == 1 for words in own])
    assert (best == np.array([words[-1] for words in own]))[settled].mean() > 0.9
