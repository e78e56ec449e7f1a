"""Normalisers drawn from blocks by the native executor and by its NumPy twin: not the same points, but the same rule.

The native search raises its threshold while it opens blocks, so it opens fewer, and sums in float32: the lines that points fall
on differ. What both owe is tested: the mean is right, the spread is the same, and so are ids and about the same rows.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from headlong import native
from headlong.engines.reference.block_draws import topk_by_block_draws, try_block_draws
from headlong.engines.reference.blocks import BlockSearch
from headlong.engines.reference.executor import Executor
from headlong.engines.reference.query import Matrix
from headlong.layers.matrix import Layer
from headlong.plan import Draws
from headlong.previews.blocks.boxes import blocks_of
from headlong.previews.blocks.choice import EVERY
from headlong.previews.whitening import whiten
from oracle import truth

VOCAB, DIM, K, EPS, TRIES, SHARE = 6000, 96, 10, 0.1, 12, 0.25

pytestmark = pytest.mark.skipif(native.isa() == native.REFERENCE, reason="two executors are compared")


class Case:
    """Neighbours that are alike, few directions that carry most of the logits, and both executors over them."""

    def __init__(self, link: Any = None) -> None:
        rng = np.random.default_rng(5)
        energy = np.arange(1, DIM + 1.0) ** -0.9
        centres = rng.standard_normal((150, DIM))
        rows = centres[rng.integers(len(centres), size=VOCAB)] + 0.5 * rng.standard_normal((VOCAB, DIM))
        hidden = 2.0 * rng.standard_normal((330, DIM)) * energy
        self.layer = Layer(rows.astype(np.float32), rng.standard_normal(VOCAB).astype(np.float32), link)
        self.asked = np.ascontiguousarray(hidden[300:])
        self.lse = truth(self.layer, self.asked).lse
        self.blocks = blocks_of(self.layer, whiten(self.layer.weight, hidden[:300]))
        self.engine = hl.compile(self.layer, "cascade", eps=EPS, delta=0.05, calibration=hidden[:300], blocks=False)
        assert isinstance(self.engine, hl.Engine)

    def parts(self, draws: Draws) -> tuple[Executor, BlockSearch, Any, Any]:
        """The NumPy executor and its search, the native ones."""
        layer, engine, blocks = self.layer, self.engine, self.blocks._replace(draws=draws)
        reference = Executor(Matrix(layer.weight, layer.bias, engine.norms, layer.link, engine.plan))
        search = BlockSearch(layer.weight, layer.bias, blocks, SHARE)
        return reference, search, engine.executor, native.blocks(layer.weight, layer.bias, blocks, SHARE, native.isa())


@functools.cache
def linked() -> Case:
    return Case(hl.Affine(0.8, 1.0))


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


@pytest.mark.parametrize("narrow", [(0.02, 0.02), (0.1, 0.07), (0.3, 0.3)])
@pytest.mark.parametrize("spend", [4.0, 30.0])
def test_both_have_the_right_mean_and_the_same_spread(case: Case, narrow: tuple[float, float], spend: float) -> None:
    executor, search, compiled, native_search = case.parts(Draws(EPS, spend, narrow))
    mine = try_block_draws(executor, search, case.asked, EPS, [spend], TRIES, 0)[:, 0]
    theirs = native.try_block_draws(compiled.capsule, native_search.capsule, case.asked, EPS, [spend], TRIES, 1, 0)[:, 0]
    answered = ~np.isnan(mine).any(axis=1) & ~np.isnan(theirs).any(axis=1)
    assert (np.isnan(mine) == np.isnan(theirs)).mean() > 0.9
    errors = [np.expm1((each - case.lse[:, None])[answered]) for each in (mine, theirs)]
    for each in errors:
        deviation = each.std(axis=1).mean() / np.sqrt(each.size)
        assert abs(each.mean()) < 6 * deviation + 1e-4
    spreads = [each.std(axis=1).mean() for each in errors]
    assert 0.8 < spreads[0] / spreads[1] < 1.25


@given(st.sampled_from([0.5, 4.0, 30.0]), st.floats(0.01, 0.5), st.floats(0.01, 0.5), st.integers(0, 2**63 - 1))
def test_ids_are_the_same_and_about_as_many_rows_are_read(spend: float, first: float, second: float, seed: int) -> None:
    case = linked()
    draws = Draws(EPS, spend, (first, second))
    executor, search, compiled, native_search = case.parts(draws)
    row = case.asked[seed % len(case.asked)][None]
    mine = topk_by_block_draws(executor, search, row, K, EPS, 1, 0.05, seed)
    theirs = native.topk_by_block_draws(compiled.capsule, native_search.capsule, row, K, EPS, 1, 0.05, seed)
    assert mine is not None and theirs is not None
    np.testing.assert_array_equal(mine[1], theirs[1])
    np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-12)
    again = topk_by_block_draws(executor, search, np.repeat(row, 2, axis=0), K, EPS, 1, 0.05, seed)
    assert again is not None
    for one, two in zip(mine[:6], again[:6], strict=True):  # alone, and beside another
        np.testing.assert_array_equal(np.repeat(one, 2, axis=0), two)
    if not mine[8][0] and mine[4][0] == theirs[4][0] == EPS and not theirs[8][0]:
        assert mine[6][0] < 2 * theirs[6][0] + 50


def test_an_engine_read_in_numpy_draws_from_blocks(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = Draws(EPS, 8.0, (0.1, 0.07))
    blocks = case.blocks._replace(draws=draws, batch=EVERY, most=VOCAB)
    plan = case.engine.plan._replace(blocks=blocks)
    plain = case.engine
    monkeypatch.setenv("HEADLONG_ISA", native.REFERENCE)
    engine, all_classes = (
        hl.Engine(case.layer, plain.method, one, plain.norms, plain.promise) for one in (plan, plain.plan)
    )
    for row, exact in zip(case.asked[:6], case.lse[:6], strict=True):
        found, other = engine.topk(row[None], K), all_classes.topk(row[None], K)
        assert abs(found.lse[0] - exact) < found.error[0] == EPS
        assert found.proved[0]
        assert found.cost.bytes[0] < other.cost.bytes[0]
        assert found.cost.rows[0] < VOCAB / 10
        assert engine.lse(row[None]).lse[0] == found.lse[0]
        np.testing.assert_array_equal(found.ids, other.ids)
    more = engine.topk(case.asked[:1], K + 1)
    assert abs(more.lse[0] - case.lse[0]) <= more.error[0]
