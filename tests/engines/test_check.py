"""Promises counted on one's own vectors: faults that are planted are found, and the limits are the binomial's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong.engines.promise_failures import _wrong, at_most, limits, tally
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
    found = hl.compile(layer, "codes", delta=0.0).check(hidden, 5, progress=lambda *step: steps.append(step))
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
    from headlong.engines.promise_failures import check

    layer, hidden = layer_and_hidden()
    engine = hl.compile(layer, "full")
    strict = check(Wrong(engine, fault, hl.Promise(0.01, 0.0)), hidden, 5, 1, None)  # type: ignore[arg-type]
    loose = check(Wrong(engine, fault, hl.Promise(0.01, 0.2)), hidden, 5, 1, None)  # type: ignore[arg-type]
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
    found = hl.compile(layer, "codes", eps=float("inf")).check(hidden[:20], 3)
    assert found.log_probs is None and found.ids is not None and found.holds
    assert tally("ids", 0.01, 9, 100).holds is False and tally("ids", 0.01, 3, 100).holds


def test_too_little_is_refused() -> None:
    layer, hidden = layer_and_hidden()
    engine = hl.compile(layer, "full")
    with pytest.raises(hl.errors.ShapeError, match="hidden has no rows"):
        engine.check(hidden[:0])
    with pytest.raises(hl.errors.OptionError, match="batch"):
        engine.check(hidden, batch=0)


class Shifted:
    """An engine whose log-probabilities are all off by as much."""

    def __init__(self, engine: Any, off: float) -> None:
        self.engine, self.off, self.promise, self.layer = engine, off, hl.Promise(0.01, 0.0), engine.layer

    def topk(self, hidden: np.ndarray, k: int) -> hl.TopK:
        top = self.engine.topk(hidden, k)
        return top._replace(log_probs=top.log_probs + self.off)

    def every_class(self, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.engine.every_class(hidden)


@pytest.mark.parametrize("method", ["full", "codes"])
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e9, 1e13, 1e16, 1e30])
def test_what_float64_cannot_tell_is_counted_apart(scale: float, method: str) -> None:
    """With logits of 1e14 a log-probability is a multiple of 0.015: nothing says whether it is within 0.01."""
    layer, hidden = layer_and_hidden()
    engine = hl.compile(layer, method, eps=0.01, delta=0.0)
    found = engine.check(scale * hidden, 5)
    assert found.ids is not None and found.log_probs is not None and found.ids.holds
    told = scale < 1e10
    assert found.holds is told and (found.log_probs.failures, found.log_probs.unjudged) == (0, 0 if told else 150)
    assert (found.log_probs.low, found.log_probs.high < 1) == (0.0, told)
    assert str(found).endswith(": holds" if told else ": cannot be told") and ("cannot be judged" in str(found)) is not told


@pytest.mark.parametrize("scale", [1e6, 1e9, 1e13])
def test_what_is_far_off_fails_however_coarse_float64_is(scale: float) -> None:
    from headlong.engines.promise_failures import check

    layer, hidden = layer_and_hidden()
    engine = hl.compile(layer, "full")
    for off, failed in ((0.02, scale < 1e10), (0.005, False), (1e-9 * scale + 1, True)):
        found = check(Shifted(engine, off), scale * hidden, 5, 1, None).log_probs  # type: ignore[arg-type]
        assert found is not None and found.failures == (150 if failed else 0), (off, found)
        assert not failed or "does not hold" in str(found)


def test_one_that_cannot_be_told_counts_as_failed_for_the_verdict_alone() -> None:
    some = tally("ids", 0.01, 1, 1000, 3)
    assert (some.low, some.high) == (limits(1, 1000)[0], limits(4, 1000)[1]) and some.holds
    many = tally("ids", 0.01, 1, 1000, 900)
    assert not many.holds and "900 cannot be judged" in str(many) and str(many).endswith("cannot be told")
    assert str(tally("ids", 0.01, 100, 1000, 3)).endswith("does not hold")


def test_ids_that_only_a_rounding_decides_cannot_be_told() -> None:
    """Terms of 1e16 that cancel leave logits near 1, whose order float64 does not know."""
    rng = np.random.default_rng(3)
    weight = np.concatenate([rng.standard_normal((300, 1)), np.full((300, 1), 1e8), np.full((300, 1), 1e8)], axis=1)
    engine = hl.compile(hl.Layer(weight.astype(np.float32)), "full")
    logits, _ = engine.every_class(np.array([[1.0, 1e8, -1e8]]))
    swapped = np.argsort(-logits[0])[[1, 2]][None]
    from headlong.engines.promise_failures import float64_error, longest_row

    hidden = np.array([[1.0, 1e8, -1e8]])
    lost = float64_error(engine.layer, longest_row(engine.layer), hidden, logits)
    assert lost[0] > 1 and _wrong(swapped, logits) and not _wrong(swapped, logits, lost)
