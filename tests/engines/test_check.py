"""Promises counted on one's own vectors: faults that are planted are found, and the limits are the binomial's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong.engines.checking import _wrong, at_most, limits, tally
from rates import tail


def layer_and_hidden(vocab: int = 500, dim: int = 24) -> tuple[hl.Layer, np.ndarray]:
    rng = np.random.default_rng(2)
    return hl.Layer(rng.standard_normal((vocab, dim)).astype(np.float32)), rng.standard_normal((150, dim))


@pytest.mark.parametrize(("failures", "count"), [(0, 60), (3, 200), (17, 400), (60, 60)])
def test_limits_are_where_the_tails_are(failures: int, count: int) -> None:
    low, high = limits(failures, count)
    assert low < failures / count < high or failures in (0, count)
    if failures:
        assert tail(failures, count, low) == pytest.approx(0.025, rel=1e-6)
    else:
        assert low == 0
    if failures < count:
        assert at_most(failures, count, high) == pytest.approx(0.025, rel=1e-6)
    else:
        assert high == 1


def test_what_is_proved_holds() -> None:
    layer, hidden = layer_and_hidden()
    steps: list[tuple[int, int]] = []
    found = hl.compile(layer, "cascade", delta=0.0).check(hidden, 5, progress=lambda *step: steps.append(step))
    assert found.holds and found.ids is not None and found.log_probs is not None
    assert (found.ids.failures, found.ids.asked, found.ids.promised) == (0, 150, 0.0)
    assert found.worst <= 0.01 and steps[-1] == (150, 150)
    assert "ids proved: 0 of 150 failed" in str(found) and str(found).endswith("holds")


class Wrong:
    """An engine whose every tenth answer is not the layer's."""

    def __init__(self, engine: Any, fault: str, promise: hl.Promise) -> None:
        self.engine, self.fault, self.promise, self.layer, self.asked = engine, fault, promise, engine.layer, 0

    def topk(self, hidden: np.ndarray, k: int) -> hl.TopK:
        top = self.engine.topk(hidden, k)
        self.asked += 1
        if self.asked % 10:
            return top
        if self.fault == "normaliser":
            return top._replace(log_probs=top.log_probs + 0.02)
        if self.fault == "no number":
            return top._replace(log_probs=top.log_probs * np.nan)
        ids = top.ids.copy()
        ids[:, -1] = ids[:, 0] if self.fault == "twice" else self.engine.topk(hidden, k + 1).ids[:, -1]
        return top._replace(ids=ids)

    def every_class(self, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.engine.every_class(hidden)


@pytest.mark.parametrize("fault", ["normaliser", "no number", "another id", "twice"])
def test_planted_faults_are_counted(fault: str) -> None:
    from headlong.engines.checking import check

    layer, hidden = layer_and_hidden()
    engine = hl.compile(layer, "full")
    strict = check(Wrong(engine, fault, hl.Promise(0.01, 0.0, 0.0)), hidden, 5, 1, None)  # type: ignore[arg-type]
    loose = check(Wrong(engine, fault, hl.Promise(0.01, 0.2, 0.2)), hidden, 5, 1, None)  # type: ignore[arg-type]
    counted = strict.log_probs if fault in {"normaliser", "no number"} else strict.ids
    assert counted is not None and counted.failures == 15 and not strict.holds and loose.holds
    assert "does not hold" in str(strict)
    assert fault != "no number" or strict.worst == np.inf


def test_a_class_is_wrong_beside_a_huge_one_and_named_twice_beside_one_that_is_not_there() -> None:
    huge = np.array([[4e9, 1.0, 0.5, 0.2, -np.inf]])
    assert not _wrong(np.array([[0, 1]]), huge) and _wrong(np.array([[0, 2]]), huge)
    tie = np.array([[2.0, 2.0, -np.inf, -np.inf]])
    assert not _wrong(np.array([[0, 1, -1]]), tie) and _wrong(np.array([[0, 0, -1]]), tie)


def test_what_is_not_promised_is_not_counted() -> None:
    layer, hidden = layer_and_hidden()
    found = hl.compile(layer, "cascade", eps=float("inf")).check(hidden[:20], 3)
    assert found.log_probs is None and found.ids is not None and found.holds
    assert tally("ids", 0.01, 9, 100).holds is False and tally("ids", 0.01, 3, 100).holds


def test_too_little_is_refused() -> None:
    layer, hidden = layer_and_hidden()
    engine = hl.compile(layer, "full")
    with pytest.raises(hl.errors.ShapeError, match="hidden has no rows"):
        engine.check(hidden[:0])
    with pytest.raises(hl.errors.OptionError, match="batch"):
        engine.check(hidden, batch=0)
