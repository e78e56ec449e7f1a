"""Promises with a delta: the bet behind them, how often they fail, and that an answer comes back the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.engines.base import Engine
from headlong.layers.matrix import Layer
from oracle import check_topk, check_within, truth
from plans import DEAR
from rates import check_rate, tail

STAKES = {0.98: 0.5, 0.7: 0.2, 0.45: 0.12, 0.25: 0.08, 0.12: 0.06, 0.05: 0.04}
"""Of csrc/normaliser/by_bet.cpp: the shares of its capital that a bet puts on every draw,
and how much of the first capital goes to each."""
SEEDS = 7


def test_the_tail_of_a_binomial() -> None:
    assert tail(0, 10, 0.1) == 1.0
    assert tail(1, 10, 0.1) == pytest.approx(1 - 0.9**10)
    assert tail(10, 10, 0.5) == pytest.approx(0.5**10)


def wealth(ratios: np.ndarray, mean: float, most: float) -> tuple[np.ndarray, np.ndarray]:
    """Capital after all ``ratios [trials, draws]`` in 0..most of who bets that their mean is below ``mean``, and above it."""
    gain = (mean - ratios) / (most - mean), (ratios - mean) / mean
    lower, upper = (
        sum(part * np.exp(np.minimum(np.log1p(stake * side).sum(axis=1), 700)) for stake, part in STAKES.items())
        for side in gain
    )
    return lower, upper


RATIOS: dict[str, Callable[[np.random.Generator, tuple[int, int]], np.ndarray]] = {
    "two values": lambda rng, shape: 3.0 * (rng.random(shape) < 0.3),
    "a rare large one": lambda rng, shape: np.where(rng.random(shape) < 0.01, 3.0, 0.9),
    "even": lambda rng, shape: rng.uniform(0, 3, shape),
    "narrow": lambda rng, shape: rng.uniform(0.95, 1.05, shape),
    "skewed": lambda rng, shape: np.minimum(rng.lognormal(-0.5, 0.7, shape), 3.0),
}


@pytest.mark.parametrize("delta", [0.2, 0.02])
@pytest.mark.parametrize("name", RATIOS)
def test_the_true_mean_loses_no_more_than_delta(name: str, delta: float) -> None:
    """Ville's inequality at work: looked at after every round, the truth is rejected with probability delta at most."""
    rng = np.random.default_rng(len(name))
    mean = float(RATIOS[name](rng, (1, 2_000_000)).mean())
    trials = 1000
    ratios = RATIOS[name](rng, (trials, 600))
    rejected = np.zeros(trials, bool)
    for draws in (64, 96, 144, 216, 324, 486, 600):
        for side in wealth(ratios[:, :draws], mean, 3.0):
            rejected |= side >= 2 / delta
    check_rate(int(rejected.sum()), trials, delta)


@pytest.mark.parametrize("name", RATIOS)
def test_another_mean_is_found_out(name: str) -> None:
    """A bet that is never won would promise nothing."""
    rng = np.random.default_rng(0)
    ratios = RATIOS[name](rng, (50, 6000))
    mean = float(ratios.mean())
    assert (
        np.mean(wealth(ratios, 1.3 * mean, 3.0)[0] >= 2000) > 0.9 and np.mean(wealth(ratios, mean / 1.3, 3.0)[1] >= 2000) > 0.9
    )


def test_wealth_is_monotone_in_the_mean() -> None:
    """So one rejected mean rejects all beyond it, and the two bets bound the truth whatever means they are put against."""
    ratios = np.random.default_rng(0).uniform(0, 3, (1, 40))
    below, above = np.array([wealth(ratios, mean, 3.0) for mean in np.linspace(0.2, 2.8, 30)])[:, :, 0].T
    assert (np.diff(below) > 0).all() and (np.diff(above) < 0).all()


def flat_layer(vocab: int = 20_000, dim: int = 48) -> tuple[Layer, np.ndarray]:
    """Logits within a few nats: no few classes carry the normaliser."""
    rng = np.random.default_rng(3)
    energy = np.arange(1, dim + 1.0) ** -1.0
    weight = rng.standard_normal((vocab, dim)) * energy
    return Layer(weight.astype(np.float32), rng.standard_normal(vocab).astype(np.float32)), rng.standard_normal((600, dim))


@pytest.mark.parametrize("level", native.levels()[1:])
def test_failures_stay_within_delta(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """Every level, at a delta large enough for failures to be seen if they came too often."""
    monkeypatch.setenv("HEADLONG_ISA", level)
    layer, hidden = flat_layer()
    exact = truth(layer, hidden[:50])
    failures, sampled = 0, 0
    engine = hl.compile(layer, "codes", eps=0.02, delta=0.1, calibration=hidden[100:], threads=2)
    assert engine.promise == hl.Promise(0.02, 0.1, 0.0)
    for seed in range(SEEDS):
        reader = reader_of(engine, threads=2, seed=seed)
        found = reader.topk(hidden[:50], 5)
        assert found.proved.all() and (found.error <= 0.02).all()
        failures += int((np.abs(found.lse - exact.lse) > 0.02).sum())
        sampled += int((~found.cost.dense & (np.abs(found.lse - exact.lse) > 1e-6)).sum())
        for b, reference in enumerate(exact.logits):
            check_topk(reference, found.ids[b], found.logits[b], float(exact.rounding[b]))
    check_rate(failures, 50 * SEEDS, 0.1)
    assert sampled > 150 or level in DEAR, "most rows were estimated"


def reader_of(engine: Engine, **options: int) -> Engine:
    """The engine with other threads or another seed: compiling it again would take most of a test's time."""
    return Engine(engine.layer, engine.method, engine.plan, engine.norms, engine.promise, **options)


@pytest.mark.parametrize("level", native.levels())
def test_delta_nought_is_a_proof(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("HEADLONG_ISA", level)
    layer, hidden = flat_layer(3000)
    engine = hl.compile(layer, "codes", eps=0.02, delta=0.0, calibration=hidden[100:])
    found, exact = engine.lse(hidden[:20]), truth(layer, hidden[:20])
    assert (found.error <= 0.02).all()
    check_within(found.lse, exact.lse, found.error, 1e-9)


def test_answers_come_back_the_same() -> None:
    """The same seed and batch: the same sample of rows, on one thread or on three. (Threads may score another row on the way to
    the ids; the sample then differs, within the promise.) Alone, a query reads other rows; its ids and logits are the same."""
    layer, hidden = flat_layer()
    options = {"eps": 0.02, "delta": 0.1, "calibration": hidden[100:]}
    engine = hl.compile(layer, "codes", seed=1, threads=1, **options)
    first = engine.topk(hidden[:40], 5)
    assert (first.lse == engine.topk(hidden[:40], 5).lse).all()
    compiled_again = hl.compile(layer, "codes", seed=1, threads=3, **options)
    assert (first.lse == reader_of(compiled_again, threads=1, seed=1).topk(hidden[:40], 5).lse).all()
    other = reader_of(engine, threads=1, seed=2).topk(hidden[:40], 5)
    assert (first.lse != other.lse).mean() > 0.9 and (first.ids == other.ids).all()
    threaded = compiled_again.topk(hidden[:40], 5)
    alone = [engine.topk(row[None], 5) for row in hidden[:40]]
    assert all((one.lse == engine.topk(row[None], 5).lse).all() for one, row in zip(alone, hidden, strict=False))
    assert (threaded.lse == first.lse).mean() > 0.9
    together = hl.TopK(*(np.concatenate(part) for part in list(zip(*(one[:-1] for one in alone), strict=True))), first.cost)
    for found in (threaded, together):
        assert np.abs(found.lse - first.lse).max() <= 0.04
        assert (found.ids == first.ids).all() and (found.logits == first.logits).all()


def test_the_trained_layer_keeps_the_default_promise(trained: Layer, trained_hidden: np.ndarray) -> None:
    """0.01 nats but for one in a million, over seven seeds; ids as float64 has them; 27 % of float32's bytes at most."""
    calibration, hidden = trained_hidden[:4096], trained_hidden[4096::16]
    exact = truth(trained, hidden)
    built = hl.compile(trained, calibration=calibration)
    assert built.promise == hl.Promise(0.01, 1e-6, 0.0)
    for seed in range(SEEDS):
        engine = reader_of(built, seed=seed)
        found = engine.topk(hidden, 10)
        assert found.proved.all() and (found.error <= 0.01).all()
        check_rate(int((np.abs(found.lse - exact.lse) > 0.01).sum()), len(hidden), 1e-6)
        for b, reference in enumerate(exact.logits):
            check_topk(reference, found.ids[b], found.logits[b], float(exact.rounding[b]))
    read = np.mean([built.topk(row[None], 10).cost.bytes[0] for row in hidden[:64]])
    assert read <= 0.27 * trained.vocab * trained.dim * 4


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
