"""A normaliser drawn from all classes by what queries taught: unbiased, closer with more rows, the same however it is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.engines.base import Engine
from headlong.layers.matrix import Layer
from headlong.plan import Draws
from oracle import truth
from rates import check_rate

VOCAB, DIM, K, EPS, DELTA = 6000, 96, 10, 0.05, 0.05
CALIBRATION, ASKED = 800, 100


class Case:
    """Logits whose energy falls off, so that a short prefix leaves much open and a closer look less."""

    def __init__(self) -> None:
        rng = np.random.default_rng(12)
        energy = np.arange(1, DIM + 1.0) ** -0.5
        self.layer = Layer(
            (rng.standard_normal((VOCAB, DIM)) * energy).astype(np.float32), rng.standard_normal(VOCAB).astype(np.float32)
        )
        hidden = 2.0 * rng.standard_normal((CALIBRATION + ASKED, DIM)) * energy
        self.asked = hidden[CALIBRATION:]
        self.lse = truth(self.layer, self.asked).lse
        found = hl.compile(
            self.layer, "cascade", calibration=hidden[:CALIBRATION], eps=EPS, delta=DELTA, over={"query", "calibration"},
            width=16, blocks=False, threads=1,
        )  # fmt: skip
        assert isinstance(found, Engine) and found.plan.draws is not None and len(found.plan.levels) == 2
        self.engine = found

    def drawn(self, draws: Draws, seed: int = 0, threads: int = 1, k: int = K) -> Any:
        """The normalisers of all vectors, one a call, beside ``k`` ids, and the rows that they took."""
        one, plan = self.engine, self.engine.plan._replace(draws=draws)
        engine = Engine(self.layer, one.method, plan, one.norms, one.promise, threads=threads, seed=seed)
        found: list[Any] = [engine.topk(row[None], k) if k else engine.lse(row[None]) for row in self.asked]
        assert not any(answer.cost.dense[0] for answer in found)
        return np.concatenate([answer.lse for answer in found]), np.concatenate([answer.cost.rows for answer in found])


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


@pytest.mark.parametrize("narrow", [(0.02, 0.1), (0.1, 0.1), (0.5, 0.02)])
@pytest.mark.parametrize("spend", [0.5, 6.0])
def test_many_samples_have_the_right_mean_whatever_was_taken_for_typical(
    case: Case, narrow: tuple[float, float], spend: float
) -> None:
    """Middles, gaps and steps say which classes are drawn, never what the sum is."""
    errors = np.stack([np.expm1(case.drawn(Draws(EPS, spend, narrow), seed)[0] - case.lse) for seed in range(12)])
    mean, deviation = errors.mean(), errors.std(axis=0).mean() / np.sqrt(errors.size)
    assert abs(mean) < 6 * deviation + 1e-4, f"off by {mean:.2g}, where chance makes {deviation:.2g}"


def test_more_rows_come_closer(case: Case) -> None:
    (few, cheap), (many, dear) = (case.drawn(Draws(EPS, spend, (0.1, 0.1))) for spend in (0.5, 32.0))
    assert np.std(many - case.lse) < 0.4 * np.std(few - case.lse)
    assert dear.mean() > cheap.mean()


def test_answers_are_the_same_for_any_number_of_threads(case: Case) -> None:
    draws = case.engine.plan.draws
    one, three = (case.drawn(draws, threads=threads) for threads in (1, 3))
    assert (one[0] == three[0]).all() and (one[1] == three[1]).all()


def test_a_batch_draws_what_its_queries_draw_alone(case: Case) -> None:
    """But for roundings: a batch adds up its masses in another order, and seldom a point falls on a neighbour for it."""
    alone = np.concatenate([case.engine.lse(row[None]).lse for row in case.asked])
    together = np.concatenate([case.engine.lse(case.asked[first : first + 4]).lse for first in range(0, ASKED, 4)])
    assert (np.abs(together - alone) < 1e-6).mean() > 0.95
    assert np.abs(together - alone).max() < EPS


def test_what_would_take_too_many_rows_is_read_densely(case: Case) -> None:
    one, plan = case.engine, case.engine.plan._replace(draws=Draws(EPS, 1e7, (1.0, 1.0)))
    found = Engine(case.layer, one.method, plan, one.norms, one.promise, threads=1).lse(case.asked[:3])
    assert found.cost.dense.all() or native.isa() == native.REFERENCE
    assert np.abs(found.lse - case.lse[:3]).max() < EPS


def test_each_way_to_ask_draws_its_own_number_of_rows(case: Case) -> None:
    """What is spent beside ids does not move the normaliser alone, nor the other way round."""
    narrow = (0.1, 0.1)
    few, many, apart = Draws(EPS, 0.5, narrow), Draws(EPS, 32.0, narrow), Draws(EPS, 0.5, narrow, 32.0)
    for draws, k, same in ((apart, K, many), (apart, 0, few), (Draws(EPS, 32.0, narrow, 0.5), K, few)):
        one, other = case.drawn(draws, k=k), case.drawn(same, k=k)
        assert (one[0] == other[0]).all() and (one[1] == other[1]).all()
    assert [few.spent_on(k) for k in (0, 1, 9, 10, 40)] == [0.5] * 5
    assert [apart.spent_on(k) for k in (0, 1, 9, 10, 40)] == [0.5, 32.0, 32.0, 32.0, 32.0]


def test_what_is_learned_beside_ids_is_no_less_than_alone(case: Case) -> None:
    draws = case.engine.plan.draws
    assert draws is not None and draws.beside is not None and draws.beside >= draws.spend


def test_fewer_ids_than_were_learned_with_take_the_larger_number(case: Case) -> None:
    narrow = (0.1, 0.1)
    draws, many = Draws(EPS, 32.0, narrow, 0.5), Draws(EPS, 32.0, narrow)
    assert [draws.spent_on(k) for k in (0, 1, 9, 10, 40)] == [32.0, 32.0, 32.0, 0.5, 0.5]
    for k in (1, K - 1):
        one, other = case.drawn(draws, k=k), case.drawn(many, k=k)
        assert (one[0] == other[0]).all() and (one[1] == other[1]).all()


def test_more_ids_than_were_learned_with_are_no_further_off(case: Case) -> None:
    """They leave less to draw, but no fewer points for what is left: a few points seldom say how wide the rest is."""
    draws = Draws(EPS, 3.0, (0.05, 0.05))
    off = {k: np.stack([case.drawn(draws, seed, k=k)[0] - case.lse for seed in range(12)]) for k in (K, 40, 400)}
    for k in (40, 400):
        assert np.sqrt((off[k] ** 2).mean()) < 0.95 * np.sqrt((off[K] ** 2).mean())
        assert np.quantile(np.abs(off[k]), 0.99) < np.quantile(np.abs(off[K]), 0.99)


def test_either_way_fails_near_its_rate_and_no_more_often(case: Case) -> None:
    """On vectors that chose nothing, each way by itself: binomial limits, and not hardly ever."""
    rng = np.random.default_rng(77)
    asked = 2.0 * rng.standard_normal((1500, DIM)) * np.arange(1, DIM + 1.0) ** -0.5
    lse = truth(case.layer, asked).lse
    for way in (lambda row: case.engine.lse(row).lse, lambda row: case.engine.topk(row, K).lse):
        failures = int((np.abs(np.concatenate([way(row[None]) for row in asked]) - lse) > EPS).sum())
        check_rate(failures, len(asked), DELTA)
        assert failures > DELTA / 10 * len(asked), failures
