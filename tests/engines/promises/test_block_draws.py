"""A normaliser drawn from blocks: right but for its rate, unbiased, the same however it is asked."""

from __future__ import annotations

from pathlib import Path
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

VOCAB, DIM, K, EPS, DELTA = 12_000, 128, 10, 0.1, 0.05
CALIBRATION, ASKED = 2000, 200
TAUGHT = ("query", "calibration")

pytestmark = pytest.mark.skipif(native.isa() == native.REFERENCE, reason="the NumPy executor looks at all classes")


class Case:
    """Neighbours that are alike, and a few directions that carry most of the logits: what blocks are for."""

    def __init__(self) -> None:
        rng = np.random.default_rng(11)
        energy = np.arange(1, DIM + 1.0) ** -0.9
        centres = rng.standard_normal((300, DIM))
        rows = centres[rng.integers(len(centres), size=VOCAB)] + 0.5 * rng.standard_normal((VOCAB, DIM))
        hidden = 2.0 * rng.standard_normal((CALIBRATION + ASKED, DIM)) * energy
        self.layer = Layer(rows.astype(np.float32), rng.standard_normal(VOCAB).astype(np.float32))
        self.calibration, self.asked = hidden[:CALIBRATION], hidden[CALIBRATION:]
        self.lse = truth(self.layer, self.asked).lse
        found = hl.compile(
            self.layer, "cascade", calibration=self.calibration, eps=EPS, delta=DELTA, over=TAUGHT, threads=1, blocks=True
        )
        assert isinstance(found, Engine)
        self.engine = found


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


def drawn(case: Case, draws: Draws, seed: int = 0) -> Any:
    """``lse, rows, dense`` of all vectors, one a call."""
    blocks = case.engine.plan.blocks
    assert blocks is not None
    search = native.blocks(case.layer.weight, case.layer.bias, blocks._replace(draws=draws), 0.25, native.isa())
    executor: Any = case.engine.executor
    parts = executor.capsule, search.capsule
    found = [native.topk_by_block_draws(*parts, row[None], K, draws.eps, 1, DELTA, seed) for row in case.asked]
    assert all(one is not None for one in found)
    return tuple(np.concatenate([one[at] for one in found if one is not None]) for at in (3, 6, 8))


def test_it_is_learned_and_keeps_its_rate(case: Case) -> None:
    blocks = case.engine.plan.blocks
    assert blocks is not None
    assert blocks.draws is not None, "this layer is made for blocks"
    failures = 0
    for row, exact in zip(case.asked, case.lse, strict=True):
        found = case.engine.topk(row[None], K)
        failures += abs(float(found.lse[0]) - exact) > EPS
        assert found.proved[0] and found.error[0] == EPS
    check_rate(failures, len(case.asked), DELTA)


def test_ids_are_those_of_float64(case: Case) -> None:
    best = np.sort(truth(case.layer, case.asked).logits, axis=1)[:, -K:]
    found = np.concatenate([case.engine.topk(row[None], K).logits for row in case.asked])
    np.testing.assert_allclose(np.sort(found, axis=1), best, rtol=0, atol=1e-9)


@pytest.mark.parametrize("narrow", [(0.02, 0.02), (0.1, 0.07), (0.3, 0.3)])
def test_many_samples_have_the_right_mean_whatever_was_taken_for_typical(case: Case, narrow: tuple[float, float]) -> None:
    """Middles and gaps say which classes are drawn, never what the sum is."""
    errors = np.stack([np.expm1(drawn(case, Draws(EPS, 6.0, narrow), seed)[0] - case.lse) for seed in range(8)])
    mean, deviation = errors.mean(), errors.std(axis=0).mean() / np.sqrt(errors.size)
    assert abs(mean) < 6 * deviation + 1e-4, f"off by {mean:.2g}, where chance makes {deviation:.2g}"


def test_more_rows_come_closer(case: Case) -> None:
    few, many = (drawn(case, Draws(EPS, spend, (0.1, 0.07))) for spend in (1.0, 64.0))
    assert np.std(many[0] - case.lse) < 0.4 * np.std(few[0] - case.lse)
    assert many[1].mean() > few[1].mean()


def test_a_query_that_would_take_too_many_is_asked_of_the_executor(case: Case) -> None:
    lse, rows, _ = drawn(case, Draws(1e-4, 1e6, (1.0, 1.0)))
    assert np.abs(lse - case.lse).max() < 1e-3
    assert rows.min() > 0


def test_it_answers_what_it_was_learned_for_alone(case: Case) -> None:
    engine, row = case.engine, case.asked[:1]
    few = engine.topk(row, K).cost.bytes[0]
    assert engine.topk(row, K + 1).cost.bytes[0] > few, "more ids than were searched for"
    assert engine.topk(row, K, eps=EPS / 2).cost.bytes[0] > few
    assert engine.topk(row, K, exclude=[3]).cost.bytes[0] > few
    assert engine.lse(row).cost.bytes[0] == few


def test_answers_are_the_same_however_they_are_asked(case: Case, tmp_path: Path) -> None:
    engine, rows = case.engine, case.asked[:2]
    path = tmp_path / "drawn.safetensors"
    engine.save(path)
    loaded = hl.load(path, threads=2)
    assert loaded.plan.blocks.draws == engine.plan.blocks.draws  # type: ignore[union-attr]
    alone = np.concatenate([engine.lse(row[None]).lse for row in rows])
    for other in (engine.lse(rows), loaded.lse(rows), loaded.topk(rows, K), engine.log_prob(rows, np.zeros((2, 1), np.int64))):
        np.testing.assert_array_equal(other.lse, alone)
    steps = engine.executor.topk(np.ascontiguousarray(rows), K, EPS, None, False, 1, DELTA, 0)
    np.testing.assert_array_equal(steps[3], alone)
