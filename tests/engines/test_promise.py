"""Promises with a delta: the bet behind them, how often they fail, and that an answer comes back the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.engines.base import Engine
from headlong.layers.matrix import Layer
from oracle import check_topk, check_within, truth
from plans import DEAR, decaying
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
@pytest.mark.parametrize("width", [0, 16, 32])
def test_failures_stay_within_delta(monkeypatch: pytest.MonkeyPatch, level: str, width: int) -> None:
    """Every level, with and without a prefix, at a delta large enough for failures to be seen if they came too often."""
    monkeypatch.setenv("HEADLONG_ISA", level)
    layer, hidden = flat_layer()
    exact = truth(layer, hidden[:50])
    failures, sampled = 0, 0
    engine = hl.compile(layer, "cascade", eps=0.02, delta=0.1, width=width, calibration=hidden[100:], threads=2)
    assert engine.promise == hl.Promise(0.02, 0.1, 0.0, frozenset({"query"}))
    for seed in range(SEEDS):
        reader = reader_of(engine, threads=2, seed=seed)
        found = reader.topk(hidden[:50], 5)
        assert found.proved.all() and (found.error <= 0.02).all()
        failures += int((np.abs(found.lse - exact.lse) > 0.02).sum())
        sampled += int((~found.cost.dense & (np.abs(found.lse - exact.lse) > 1e-6)).sum())
        for b, reference in enumerate(exact.logits):
            check_topk(reference, found.ids[b], found.logits[b], float(exact.rounding[b]))
    check_rate(failures, 50 * SEEDS, 0.1)
    assert sampled > 150 or (width == 0 and level in DEAR), "most rows were estimated"


def reader_of(engine: Engine, **options: int) -> Engine:
    """The engine with other threads or another seed: compiling it again would take most of a test's time."""
    return Engine(engine.layer, engine.method, engine.plan, engine.norms, engine.promise, **options)


def taught(vocab: int = 4000, **options: float) -> tuple[Engine, np.ndarray, np.ndarray]:
    """An engine that learned how many rows to draw, vectors that it has not seen, and their normalisers."""
    layer, _ = flat_layer(vocab)
    hidden = np.random.default_rng(8).standard_normal((900, layer.dim))
    asked = {"eps": 0.02, "delta": 0.1, "width": 16} | options
    engine = hl.compile(layer, "cascade", over={"query", "calibration"}, calibration=hidden[:700], threads=2, **asked)  # type: ignore[call-overload]
    return engine, hidden[700:], truth(layer, hidden[700:]).lse


@pytest.mark.parametrize("level", native.levels())
def test_learned_draws_fail_at_most_with_delta_and_read_less(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("HEADLONG_ISA", level)
    engine, hidden, exact = taught()
    assert engine.plan.draws is not None and engine.plan.draws.eps == 0.02
    assert engine.promise == hl.Promise(0.02, 0.1, 0.0, frozenset({"query", "calibration"}))
    failures, read, count = 0, [], 40 if level == native.REFERENCE else len(hidden)
    for seed in range(SEEDS):
        reader = reader_of(engine, seed=seed)
        alone = [reader.topk(row[None], 5) for row in hidden[:40]]
        together = reader.lse(hidden[:count])
        assert all(top.proved.all() and top.error[0] <= 0.02 for top in alone)
        failures += sum(abs(top.lse[0] - lse) > 0.02 for top, lse in zip(alone, exact, strict=False))
        failures += int((np.abs(together.lse - exact[:count]) > 0.02).sum())
        read.append(np.mean([top.cost.bytes[0] for top in alone]))
    check_rate(failures, (40 + count) * SEEDS, 0.1)
    assert failures > 0 or level == native.REFERENCE, "a promise that never fails reads too much"
    if level != native.REFERENCE:
        bet = Engine(engine.layer, engine.method, engine.plan._replace(draws=None), engine.norms, engine.promise)
        assert np.mean(read) < 1.1 * np.mean([bet.topk(row[None], 5).cost.bytes[0] for row in hidden[:40]])


def test_what_was_learned_answers_what_it_was_learned_for() -> None:
    """Another eps, a mask, a temperature: the bet decides, as if nothing had been learned."""
    engine, hidden, _ = taught()
    plain = Engine(engine.layer, engine.method, engine.plan._replace(draws=None), engine.norms, engine.promise)
    assert (engine.lse(hidden[:9]).lse != plain.lse(hidden[:9]).lse).any()
    asked: list[dict[str, object]] = [{"eps": 0.03}, {"exclude": [1, 2, 3]}, {"eps": 0.03, "allowed": np.arange(3000)}]
    for other in asked:
        assert (engine.lse(hidden[:9], **other).lse == plain.lse(hidden[:9], **other).lse).all()  # type: ignore[arg-type]
    assert engine.at_temperature(2.0).plan.draws is None


def test_learned_draws_are_saved(tmp_path: Path) -> None:
    engine, hidden, _ = taught()
    engine.save(tmp_path / "head.safetensors")
    loaded = hl.load(tmp_path / "head.safetensors", threads=2)
    assert isinstance(loaded, Engine) and loaded.plan.draws == engine.plan.draws
    assert np.abs(loaded.lse(hidden[:9]).lse - engine.lse(hidden[:9]).lse).max() < 1e-9


@pytest.mark.parametrize("level", native.levels())
def test_delta_nought_is_a_proof(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    monkeypatch.setenv("HEADLONG_ISA", level)
    layer, hidden = flat_layer(3000)
    engine = hl.compile(layer, "cascade", eps=0.02, delta=0.0, width=16, calibration=hidden[100:])
    found, exact = engine.lse(hidden[:20]), truth(layer, hidden[:20])
    assert (found.error <= 0.02).all()
    check_within(found.lse, exact.lse, found.error, 1e-9)


def test_answers_come_back_the_same() -> None:
    """The same seed and batch: the same sample of rows, on one thread or on three. (Threads may score another row on the way to
    the ids; the sample then differs, within the promise.) Alone, a query reads other rows; its ids and logits are the same."""
    layer, hidden = flat_layer()
    options = {"eps": 0.02, "delta": 0.1, "width": 16, "calibration": hidden[100:]}
    engine = hl.compile(layer, "cascade", seed=1, threads=1, **options)
    first = engine.topk(hidden[:40], 5)
    assert (first.lse == engine.topk(hidden[:40], 5).lse).all()
    compiled_again = hl.compile(layer, "cascade", seed=1, threads=3, **options)
    assert (first.lse == reader_of(compiled_again, threads=1, seed=1).topk(hidden[:40], 5).lse).all()
    other = reader_of(engine, threads=1, seed=2).topk(hidden[:40], 5)
    assert (first.lse != other.lse).mean() > 0.9 and (first.ids == other.ids).all()
    threaded = compiled_again.topk(hidden[:40], 5)
    alone = [engine.topk(row[None], 5) for row in hidden[:40]]
    assert all((one.lse == engine.topk(row[None], 5).lse).all() for one, row in zip(alone, hidden, strict=False))
    assert (threaded.lse == first.lse).mean() > 0.9
    together = hl.TopK(*(np.concatenate(part) for part in list(zip(*alone, strict=True))[:-1]), first.cost)
    for found in (threaded, together):
        assert np.abs(found.lse - first.lse).max() <= 0.04
        assert (found.ids == first.ids).all() and (found.logits == first.logits).all()


def test_the_trained_layer_keeps_the_default_promise(trained: Layer, trained_hidden: np.ndarray) -> None:
    """0.01 nats but for one in a thousand, over seven seeds; ids as float64 has them; 13 % of float32's bytes at most."""
    calibration, hidden = trained_hidden[:4096], trained_hidden[4096::16]
    exact = truth(trained, hidden)
    built = hl.compile(trained, calibration=calibration)
    assert built.promise == hl.Promise(0.01, 1e-3, 0.0, frozenset({"query"}))
    failures = 0
    for seed in range(SEEDS):
        engine = reader_of(built, seed=seed)
        found = engine.topk(hidden, 10)
        assert found.proved.all() and (found.error <= 0.01).all()
        failures += int((np.abs(found.lse - exact.lse) > 0.01).sum())
        for b, reference in enumerate(exact.logits):
            check_topk(reference, found.ids[b], found.logits[b], float(exact.rounding[b]))
    check_rate(failures, len(hidden) * SEEDS, 1e-3)
    read = np.mean([built.topk(row[None], 10).cost.bytes[0] for row in hidden[:64]])
    assert read <= 0.13 * trained.vocab * trained.dim * 4


@pytest.mark.parametrize("far", [1e6, 1e-6])
def test_radii_learned_at_another_scale_are_harmless(far: float, tmp_path: Path) -> None:
    """Queries of another size than all calibration vectors are none of those that radii were learned for: all is proved."""
    layer, hidden = decaying(9001, 64, 1.5)
    every_row = hl.compile(layer, "full").topk(hidden[:1], 5).cost.bytes
    options = {"eps": 0.1, "delta": 0.05, "delta_ids": 0.05, "over": ["query", "calibration"], "threads": 1, "width": 8}
    engine = hl.compile(layer, "cascade", calibration=far * hidden, **options)
    engine.save(tmp_path / "engine.safetensors")
    exact = truth(layer, hidden[:100])
    for one in (engine, hl.load(tmp_path / "engine.safetensors", threads=1)):
        found = one.topk(hidden[:100], 5)
        for b, reference in enumerate(exact.logits):
            check_topk(reference, found.ids[b], found.logits[b], float(exact.rounding[b]))
        assert found.proved.all() and found.cost.dense.all()
        check_within(found.lse, exact.lse, found.error, 1e-9)
        check_within(one.lse(hidden[:4]).lse, exact.lse[:4], np.full(4, 0.1), 1e-9)
    like = hl.compile(layer, "cascade", calibration=hidden[100:], **options).topk(hidden[:1], 5)
    assert like.cost.bytes != every_row, "queries like those that radii were learned from are what they are for"
    assert engine.topk(hidden[:1], 5).cost.bytes == every_row


@pytest.mark.exhaustive
def test_the_trained_layer_pays_what_its_promise_costs(trained: Layer, trained_hidden: np.ndarray) -> None:
    """Over calibration too, a normaliser within 0.01 is at most a quarter more than the ids by the look at all classes."""
    calibration, hidden = trained_hidden[::2], trained_hidden[1::16]
    engine = hl.compile(trained, "cascade", over={"query", "calibration"}, calibration=calibration, blocks=False)
    exact, read, failures = truth(trained, hidden).lse, [], 0
    for seed in range(SEEDS):
        reader = reader_of(engine, seed=seed)
        found = reader.lse(hidden)
        assert (found.error <= 0.01).all()
        failures += int((np.abs(found.lse - exact) > 0.01).sum())
    check_rate(failures, len(hidden) * SEEDS, 1e-3)
    for row in hidden[:64]:
        both, ids = engine.topk(row[None], 10), engine.topk(row[None], 10, eps=np.inf)
        read.append(both.cost.bytes[0] / ids.cost.bytes[0])
        assert both.proved.all() and (both.ids == ids.ids).all()
    assert np.mean(read) <= 1.25
