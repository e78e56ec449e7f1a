"""Layers with a class for every run of characters of a text: counts are right, and a context prefers what followed it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from studies.models import characters as module
from studies.models.characters import REACH, STEP, characters


def text(count: int, seed: int) -> str:
    """Words of two languages that take turns of a few hundred characters."""
    rng = np.random.default_rng(seed)
    words = (("ana", "banana", "cab", "daba"), ("xyzzy", "wyvo", "zyx", "vowy"))
    pieces = [" ".join(rng.choice(words[turn % 2], 60)) for turn in range(count // 200)]
    return " ".join(pieces)[:count]


def test_classes_are_the_most_frequent_runs_in_pieces_or_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    train = text(6000, 0)
    found = characters(train, (text(800, 1), text(700, 2)), 150, length=7, dim=8)
    first = REACH * STEP
    counts = Counter(train[at : at + 7] for at in range(first, len(train) - 6))
    expected = sorted(counts.values(), reverse=True)[:150]
    np.testing.assert_allclose(np.exp(found.bias), expected, rtol=1e-6)
    assert found.weight.shape == (150, 8)
    assert found.calibration.shape == (800 - 2 - first, 8)
    assert found.queries.shape == (700 - 2 - first, 8)
    monkeypatch.setattr(module, "AT_ONCE", 64)
    again = characters(train, (text(800, 1), text(700, 2)), 150, length=7, dim=8)
    np.testing.assert_allclose(again.queries @ again.weight.T, found.queries @ found.weight.T, atol=1e-3)


def test_a_context_prefers_runs_of_its_language() -> None:
    train, other = text(12000, 3), text(2000, 4)
    found = characters(train, (other, other), 10**6, length=6, dim=12)
    first = REACH * STEP
    runs = [train[at : at + 6] for at in range(first, len(train) - 5)]
    seen = Counter(runs)
    order = sorted(dict.fromkeys(runs), key=lambda run: -seen[run])  # ties by first appearance
    strange = np.array([any(letter in "xyzwv" for letter in run) for run in order])
    best = strange[np.argmax(found.queries @ found.weight.T, axis=1)]
    before = [other[at : at + first] for at in range(len(best))]
    share = np.array([np.mean([letter in "xyzwvo" for letter in one.replace(" ", "")]) for one in before])
    settled = (share == 0) | (share == 1)
    assert settled.sum() > 100
    assert (best == (share == 1))[settled].mean() > 0.9
