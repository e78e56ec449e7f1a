"""Promises with a delta: the bet behind them, how often they fail, and that an answer comes back the same."""

from __future__ import annotations

import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.engines.base import Engine
from headlong.layers.matrix import Layer
from oracle import check_topk, check_within, truth
from rates import check_rate, tail

SEEDS = 7


def test_the_tail_of_a_binomial() -> None:
    assert tail(0, 10, 0.1) == 1.0
    assert tail(1, 10, 0.1) == pytest.approx(1 - 0.9**10)
    assert tail(10, 10, 0.5) == pytest.approx(0.5**10)


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
    """The same seed: the same answer, on one thread or on three, alone or among others; with another, other draws."""
    layer, hidden = flat_layer()
    engine = hl.compile(layer, "codes", eps=0.02, delta=0.1, calibration=hidden[100:], seed=1, threads=1)
    first = engine.topk(hidden[:40], 5)
    other = reader_of(engine, threads=1, seed=2).topk(hidden[:40], 5)
    assert (first.lse != other.lse).mean() > 0.9 and (first.ids == other.ids).all()
    alone = [engine.topk(row[None], 5) for row in hidden[:40]]
    together = hl.TopK(*(np.concatenate(part) for part in list(zip(*(one[:-1] for one in alone), strict=True))), first.cost)
    for found in (engine.topk(hidden[:40], 5), reader_of(engine, threads=3, seed=1).topk(hidden[:40], 5), together):
        assert all((mine == its).all() for mine, its in zip(found[:-1], first[:-1], strict=True))


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
