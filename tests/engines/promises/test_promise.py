"""Promises with a delta: the bet behind them, how often they fail, layers made to mislead it, one's own counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong.engines.base import Engine
from headlong.engines.method import Running
from headlong.engines.promise_failures import _wrong, at_most, check, float64_error, limits, longest_row, tally
from headlong.layers.matrix import Layer
from oracle import check_topk, truth
from rates import check_rate, tail
from thinned import NATIVE

SEEDS = 7


def flat_layer(vocab: int = 20_000, dim: int = 48) -> tuple[Layer, np.ndarray]:
    """Logits within a few nats: no few classes carry the normaliser."""
    rng = np.random.default_rng(3)
    energy = np.arange(1, dim + 1.0) ** -1.0
    weight = rng.standard_normal((vocab, dim)) * energy
    return Layer(weight.astype(np.float32), rng.standard_normal(vocab).astype(np.float32)), rng.standard_normal((600, dim))


@NATIVE
def test_failures_stay_within_delta(level: str) -> None:
    """Every level, at a delta large enough for failures to be seen if they came too often."""
    layer, hidden = flat_layer()
    exact = truth(layer, hidden[:50])
    best = np.argsort(-exact.logits, axis=1)[:, :5]
    failures, sampled = 0, 0
    engine = hl.compile(layer, "codes", eps=0.02, delta=0.1, calibration=hidden[100:], threads=2)
    assert engine.promise == hl.Promise(0.02, 0.1)
    for seed in range(SEEDS):
        found = reader_of(engine, threads=2, seed=seed).topk(hidden[:50], 5)
        off = np.abs(found.lse - exact.lse)
        assert (found.error <= 0.02).all()
        failures += int(((off > 0.02) | (found.ids != best).any(axis=1)).sum())
        sampled += int((~found.cost.dense & (off > 1e-6)).sum())
    check_rate(failures, 50 * SEEDS, 0.1)
    assert sampled > 150, "most rows were estimated"


def reader_of(engine: Engine, **options: int) -> Engine:
    """The engine with other threads or another seed: compiling it again would take most of a test's time."""
    return Engine(engine.layer, engine.method, engine.plan, engine.norms, engine.promise, Running(**options))


def test_another_seed_is_another_draw_of_rows() -> None:
    layer, hidden = flat_layer()
    engine = hl.compile(layer, "codes", eps=0.02, delta=0.1, calibration=hidden[100:], seed=1, threads=1)
    first, again, other = (reader_of(engine, threads=1, seed=seed).topk(hidden[:40], 5) for seed in (1, 1, 2))
    assert (first.lse == again.lse).all() and (first.lse != other.lse).mean() > 0.9 and (first.ids == other.ids).all()


def test_the_trained_layer_keeps_the_default_promise(trained: Layer, trained_hidden: np.ndarray) -> None:
    """0.01 nats except with probability 1e-6, over seven seeds; ids as float64 has them; 29 % of float32's bytes at most."""
    calibration, hidden = trained_hidden[:4096], trained_hidden[4096::16]
    exact = truth(trained, hidden)
    built = hl.compile(trained, calibration=calibration)
    assert built.promise == hl.Promise(0.01, 1e-6)
    for seed in range(SEEDS):
        engine = reader_of(built, seed=seed)
        found = engine.topk(hidden, 10)
        assert (found.error <= 0.01).all()
        check_rate(int((np.abs(found.lse - exact.lse) > 0.01).sum()), len(hidden), 1e-6)
        for b, reference in enumerate(exact.logits):
            check_topk(reference, found.ids[b], found.logits[b], float(exact.rounding[b]))
    read = np.mean([built.topk(row[None], 10).cost.bytes[0] for row in hidden[:64]])
    assert read <= 0.29 * trained.vocab * trained.dim * 4


def test_a_nucleus_that_a_bet_decides_is_the_exact_one() -> None:
    """The same seeds draw the same classes, but for delta."""
    layer, hidden = flat_layer(4000)
    engine = hl.compile(layer, "codes", delta=0.1, calibration=hidden[200:], threads=1)
    exact = hl.compile(layer, "full", threads=1)
    other = 0
    for seed, one in enumerate(hidden[:200]):
        drawn, true = (each.sample(one[None], top_p=0.6, n=1, seed=seed).ids for each in (engine, exact))
        other += bool((np.asarray(drawn) != np.asarray(true)).any())
    check_rate(other, 200, 0.1)


VOCAB, HEAD, TAIL, PLANS, ASKED = 20_000, 16, 32, 8, 12
WITHIN, DELTA = 0.02, 0.1


def misleading(share: float, sign: float, length: float, seed: int = 0) -> tuple[Layer, np.ndarray]:
    """Rows whose tails are at right angles to those of all queries, but for a ``share`` of them, which lie along (1) or against
    (-1) them; logits differ by about ``length`` there."""
    rng = np.random.default_rng(seed)
    head = rng.standard_normal((VOCAB, HEAD)) * np.linspace(1.2, 0.6, HEAD)
    tail = rng.standard_normal((VOCAB, TAIL))
    tail[:, 0] = 0.0
    tail *= 0.05 / np.linalg.norm(tail, axis=1, keepdims=True)
    lightest = np.argsort(head @ np.ones(HEAD))[: VOCAB // 2]  # never among the best
    some = rng.choice(lightest, round(share * VOCAB), replace=False)
    tail[some] = 0.0
    tail[some, 0] = 0.05 * sign
    hidden = np.concatenate([0.3 + 0.3 * rng.random((ASKED, HEAD)), np.zeros((ASKED, TAIL))], axis=1)
    hidden[:, HEAD] = length / 0.05
    return Layer(np.concatenate([head, tail], axis=1).astype(np.float32)), hidden


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("share", "length"), [(0.002, 2.0), (0.01, 2.0), (0.05, 1.2), (0.3, 0.4)])
def test_a_misleading_guess_costs_rows_not_the_promise(share: float, length: float, sign: float) -> None:
    layer, hidden = misleading(share, sign, length)
    exact = truth(layer, hidden).lse
    failures, sampled = 0, 0
    for seed in range(PLANS):
        engine = hl.compile(layer, "codes", eps=WITHIN, delta=DELTA, seed=seed, threads=2)
        for one, lse in zip(hidden, exact, strict=True):
            for found in (engine.topk(one[None], 5), engine.lse(one[None])):
                off = abs(float(found.lse[0]) - lse)
                failures += off > WITHIN
                sampled += off > 1e-6 and not found.cost.dense[0]
    check_rate(failures, 2 * ASKED * PLANS, DELTA)
    assert sampled > 0.5 * 2 * ASKED * PLANS, "most normalisers were estimated"


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


class Changed:
    """An engine whose answers ``change`` makes others: of every ``each``-th call."""

    def __init__(self, engine: Any, delta: float, change: Callable[[hl.TopK, np.ndarray], hl.TopK], each: int = 1) -> None:
        self.engine, self.layer, self.promise = engine, engine.layer, hl.Promise(0.01, delta)
        self.change, self.each, self.asked = change, each, 0

    def topk(self, hidden: np.ndarray, k: int) -> hl.TopK:
        self.asked += 1
        top = self.engine.topk(hidden, k)
        return top if self.asked % self.each else self.change(top, hidden)

    def every_class(self, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.engine.every_class(hidden)


@pytest.mark.parametrize("fault", ["normaliser", "no number", "another id", "twice"])
def test_planted_faults_are_counted(fault: str) -> None:
    layer, hidden = layer_and_hidden()
    engine = hl.compile(layer, "full")

    def wrong(top: hl.TopK, some: np.ndarray) -> hl.TopK:
        if fault in ("normaliser", "no number"):
            return replace(top, log_probs=top.log_probs + (0.02 if fault == "normaliser" else np.nan))
        ids = top.ids.copy()
        ids[:, -1] = ids[:, 0] if fault == "twice" else engine.topk(some, 6).ids[:, -1]
        return replace(top, ids=ids)

    changed = [Changed(engine, delta, wrong, 10) for delta in (0.0, 0.2)]
    strict, loose = (check(one, one.topk, hidden, 5, 1, None) for one in changed)
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
    layer, hidden = layer_and_hidden()
    engine = hl.compile(layer, "full")
    for off, failed in ((0.02, scale < 1e10), (0.005, False), (1e-9 * scale + 1, True)):
        shifted = Changed(engine, 0.0, lambda top, _, off=off: replace(top, log_probs=top.log_probs + off))  # type: ignore[misc]
        found = check(shifted, shifted.topk, scale * hidden, 5, 1, None).log_probs
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
    hidden = np.array([[1.0, 1e8, -1e8]])
    lost = float64_error(engine.layer, longest_row(engine.layer), hidden, logits)
    assert lost[0] > 1 and _wrong(swapped, logits) and not _wrong(swapped, logits, lost)
