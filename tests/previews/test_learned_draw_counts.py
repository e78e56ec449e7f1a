"""What queries teach about a normaliser's sample: the bound holds for the next query, and it is not idle."""

from __future__ import annotations

import math

import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.engines.base import Engine
from headlong.engines.reference.executor import Executor as Reference
from headlong.engines.reference.query import Matrix
from headlong.previews.conformal_bounds import controlled
from headlong.previews.learned_draw_counts import AROUND, LEAST, LEAST_SPEND, TRIES, Trial, learned_spends
from oracle import truth
from plans import decaying


def test_the_least_that_keeps_the_rate_is_taken() -> None:
    losses = np.zeros((99, 4))
    losses[:1, 2] = 1.0  # one of 99 fails, and may by chance have been 2.645: (2.645 + 1) / 100
    losses[:4, 3] = 1.0  # (4 + 1.645 * 2 + 1) / 100
    assert controlled(losses, 0.0365) == 2
    assert controlled(losses, 0.083) == 3
    assert controlled(losses, 0.0364) == 1
    assert controlled(np.full((99, 1), 0.04), 0.0565) == 0, "(3.96 + 1.645 * 0.398 + 1) / 100: parts that are alike say more"
    assert controlled(losses, 0.0099) is None, "99 rows cannot show less than one in a hundred"


def test_a_cheaper_number_is_no_safer_than_a_dearer_one() -> None:
    """Losses that fall by luck where less is spent count as if they had not."""
    losses = np.zeros((999, 3))
    losses[:9, 1] = 1.0
    assert controlled(losses, 0.005) == 0
    assert controlled(losses, 0.015) == 2


@pytest.mark.parametrize("delta", [0.2, 0.05])
def test_the_next_query_fails_at_most_as_often(delta: float) -> None:
    """Queries of very different spread, many draws of the calibration set: the mean rate is near ``delta`` and not above it."""
    rng = np.random.default_rng(5)
    spends = np.geomspace(30, 0.5, 12)

    def sample(n: int) -> np.ndarray:
        spread = rng.lognormal(0, 0.3, (n, 1, 1))
        return np.abs(rng.standard_normal((n, len(spends), TRIES)) * spread / np.sqrt(spends[:, None])) > 1

    rates = []
    for _ in range(300):
        found = controlled(sample(200).mean(axis=2), delta)
        assert found is not None
        rates.append(sample(400)[:, found].mean())
    assert np.mean(rates) <= delta * 1.02 and np.mean(rates) > delta / 4


def normal(rng: np.random.Generator, *wide: float) -> Trial:
    """Errors that are normal, a hundredth of ``wide`` and of each query's own width at a spend of one: one for each way."""

    def errors(hidden: np.ndarray, spends: list[list[float]], tries: int) -> list[np.ndarray]:
        noise = [rng.standard_normal((len(hidden), len(some), tries)) for some in spends]
        size = 0.01 * hidden[:, :1, None]
        return [np.abs(one * size * each / np.sqrt(some)[:, None]) for one, each, some in zip(wide, noise, spends, strict=True)]

    return errors


def test_what_is_learned_follows_the_spread() -> None:
    rng = np.random.default_rng(6)
    vectors = np.ones((4000, 1))
    small, large = (learned_spends(normal(rng, wide), 1, vectors[:256], vectors, 0.01, 0.01) for wide in (1.0, 2.0))
    assert small is not None and large is not None
    assert large[0] / small[0] == pytest.approx(4, rel=0.35)
    assert 6.63 < small[0] < 6.63 * max(AROUND), "2.576 squared, where the variance is one"


def test_queries_of_unlike_spread_are_promised_near_the_rate() -> None:
    """Where few queries are wide, one variance for all tells little of how often one is beyond; the rate is near it."""
    rng = np.random.default_rng(7)
    errors = normal(rng, 1.0)
    vectors = rng.lognormal(0, 0.3, (3256, 1))
    spends = learned_spends(errors, 1, vectors[:256], vectors[256:], 0.01, 0.001)
    assert spends is not None
    asked = rng.lognormal(0, 0.3, (20000, 1))
    rate = float((errors(asked, [spends], 50)[0] > 0.01).mean())
    assert 0.001 / 8 < rate < 0.001 * 1.2


@pytest.mark.parametrize("delta", [0.01, 0.001])
def test_each_way_to_ask_is_promised_near_the_rate_by_itself(delta: float) -> None:
    """One way is half as wide as the other: it takes a quarter as many rows, and fails neither more often nor hardly ever."""
    ratios, rates = [], []
    for seed in range(8):
        rng = np.random.default_rng(100 + seed)
        errors = normal(rng, 0.5, 1.0)
        vectors = rng.lognormal(0, 0.3, (256 + 3000, 1))
        spends = learned_spends(errors, 2, vectors[:256], vectors[256:], 0.01, delta)
        assert spends is not None
        ratios.append(spends[1] / spends[0])
        asked = rng.lognormal(0, 0.3, (20000, 1))
        rates.append([float((each > 0.01).mean()) for each in errors(asked, [[one] for one in spends], 25)])
    assert np.mean(ratios) == pytest.approx(4, rel=0.15)
    mean = np.mean(rates, axis=0)
    assert (mean < delta).all() and (mean > delta / 5).all(), mean


def test_either_way_to_ask_keeps_the_rate() -> None:
    """Where one way is wider, its own errors say what it spends: the other's small ones do not make up for them."""
    rng = np.random.default_rng(8)
    vectors = np.ones((3256, 1))
    both, worse = (
        learned_spends(normal(rng, *wide), len(wide), vectors[:256], vectors[256:], 0.01, 0.01) for wide in ((0.1, 1.0), (1.0,))
    )
    assert both is not None and worse is not None and both[1] == pytest.approx(worse[0], rel=0.2)
    assert both[0] < 0.1 * both[1]


def test_nothing_is_learned_of_errors_that_no_number_of_rows_cures() -> None:
    def biased(hidden: np.ndarray, spends: list[list[float]], tries: int) -> list[np.ndarray]:
        return [np.full((len(hidden), len(some), tries), way) for way, some in enumerate(spends)]

    assert learned_spends(biased, 2, np.zeros((9, 1)), np.zeros((4000, 1)), 0.01, 0.01) is None


def test_what_is_proved_costs_next_to_nothing() -> None:
    def silent(hidden: np.ndarray, spends: list[list[float]], tries: int) -> list[np.ndarray]:
        return [np.full((len(hidden), len(some), tries), np.nan) for some in spends]

    spends = learned_spends(silent, 2, np.zeros((9, 1)), np.zeros((4000, 1)), 0.01, 0.01)
    assert spends is not None and all(0 < spend < 0.1 for spend in spends)


def test_numbers_are_given_up_only_where_they_fail() -> None:
    """Queries are asked in runs, and a number that has failed is not asked again: what is taken is what all losses say."""
    kept = set()
    for seed in range(12):
        rng = np.random.default_rng(seed)
        beyond = rng.random((2, LEAST, len(AROUND), TRIES)) < np.geomspace(0.002, 0.03, len(AROUND))[:, None]

        def errors(hidden: np.ndarray, spends: list[list[float]], tries: int) -> list[np.ndarray]:
            if tries > TRIES:  # what those say that choose: the least is likely
                return [np.zeros((len(hidden), 1, tries)) for _ in spends]
            return [
                np.where(some[hidden[:, 0].astype(int), : len(numbers)], 1.0, 0.0)
                for some, numbers in zip(beyond, spends, strict=True)  # noqa: B023
            ]

        alone = [controlled(way.mean(axis=2), 0.01) for way in beyond]
        found = learned_spends(errors, 2, np.zeros((64, 1)), np.arange(float(LEAST))[:, None], 0.01, 0.01)
        kept.update(alone)
        taken = [LEAST_SPEND * AROUND[last] for last in alone if last is not None]
        assert found == (pytest.approx(taken) if len(taken) == 2 else None)
    assert len(kept) > 1


@pytest.mark.parametrize("level", native.levels())
def test_tries_are_as_far_off_as_calls(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried takes logits from one pass over all rows: its errors are those of calls, which read rows one by one."""
    layer, hidden = decaying(4000, 48, 1.0)
    hidden, over = hidden * 0.5, {"query", "calibration"}
    engine = hl.compile(layer, "cascade", eps=0.05, delta=0.05, over=over, calibration=hidden, blocks=False)
    assert engine.plan.draws is not None
    monkeypatch.setenv("HEADLONG_ISA", level)
    some, norms = np.ascontiguousarray(hidden[-12:], np.float64), native.row_norms(layer.weight, 1)
    parts = layer.weight, layer.bias, norms
    teacher = (
        Reference(Matrix(*parts, layer.link, engine.plan))
        if level == native.REFERENCE
        else native.executor(*parts, layer.link.lowered(), engine.plan, level)
    )
    spend = engine.plan.draws.spend
    tried = teacher.try_draws(some, [0, 10], 0.05, [[4 * spend, spend], [engine.plan.draws.spent_on(10)]], 48, 1, 7)
    drawn = np.isfinite(tried).all(axis=(1, 2))
    assert tried.shape == (12, 3, 48) and drawn.sum() >= 6
    seeds = [Engine(layer, engine.method, engine.plan, engine.norms, engine.promise, seed=seed) for seed in range(48)]
    exact = truth(layer, some).lse
    more, alone, beside = (np.sqrt((tried[drawn, number] ** 2).mean()) for number in range(3))
    for way, off in ((lambda one, row: one.lse(row).lse, alone), (lambda one, row: one.topk(row, 10).lse, beside)):
        called = np.stack([way(one, row[None]) - exact[i] for one in seeds for i, row in enumerate(some)]).reshape(48, 12)
        assert off == pytest.approx(np.sqrt((called[:, drawn] ** 2).mean()), rel=0.2)
    assert more < 0.75 * alone, "four times the rows, half as far off"


@pytest.mark.parametrize("level", native.levels())
def test_what_is_drawn_corrects_estimates_that_are_all_too_low(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates 0.05 too low alone would make every normaliser 0.05 too low; the rows that are drawn say so."""
    layer, hidden = decaying(4000, 48, 1.0)
    hidden = hidden * 0.5
    over = {"query", "calibration"}
    engine = hl.compile(layer, "cascade", eps=0.05, delta=0.05, over=over, calibration=hidden, blocks=False)
    assert engine.plan.draws is not None
    low = engine.plan._replace(base=engine.plan.base - np.float32(0.05), dense=engine.plan.dense._replace(batch=math.inf))
    monkeypatch.setenv("HEADLONG_ISA", level)
    reader = Engine(layer, engine.method, low, engine.norms, engine.promise)
    found = [reader.lse(part) for part in np.split(hidden[-20:], 4)]  # few at once: none is read densely on any level
    assert not any(one.cost.dense.any() for one in found)
    assert abs((np.concatenate([one.lse for one in found]) - truth(layer, hidden[-20:]).lse).mean()) < 0.02
