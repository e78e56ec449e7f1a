"""Which calls go by blocks: what searches and looks read, in bytes of a scan."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.engines.base import Engine
from headlong.plan import Blocks, Plan
from headlong.previews.blocks import choice as block_choice
from headlong.previews.blocks.choice import searched, worth

SHARE = 0.25


def around_centres(vocab: int = 6000, dim: int = 64) -> tuple[hl.Layer, np.ndarray]:
    """Classes near a few centres of falling energy, and hidden vectors to match."""
    rng = np.random.default_rng(0)
    energy = np.arange(1, dim + 1.0) ** -0.7
    centres = rng.standard_normal((150, dim)) * energy
    weight = centres[rng.integers(0, len(centres), vocab)] + 0.2 * rng.standard_normal((vocab, dim)) * energy
    return hl.Layer(weight.astype(np.float32)), ((rng.standard_normal((600, dim)) * energy + 0.3) * 4).astype(np.float32)


@pytest.fixture(scope="module")
def subject() -> tuple[hl.Layer, Plan, Blocks, np.ndarray]:
    if native.isa() == native.REFERENCE:
        pytest.skip("the reference does not choose")
    layer, hidden = around_centres()
    engine: Any = hl.compile(layer, "codes", eps=math.inf, calibration=hidden, blocks=True)
    return layer, engine.plan, engine.plan.blocks, hidden.astype(np.float64)


def test_what_a_search_reads_is_counted(subject: Any) -> None:
    layer, _, blocks, hidden = subject
    search = searched(layer, blocks, hidden, SHARE, 10)
    assert search.every >= blocks.head.nbytes + blocks.levels[0].records.nbytes
    assert search.opened > 0 and search.rows >= 10 and search.again == 0
    assert searched(layer, blocks, hidden, SHARE, 256).opened > search.opened


def scans_are_dear(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(block_choice, "FETCHED", 0.1)
    patch.setattr(block_choice, "ROW", 10.0)
    patch.setattr(block_choice, "PRODUCTS", 1.0)


def test_dear_places_speak_for_the_look_and_dear_scans_for_blocks(subject: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, plan, blocks, hidden = subject
    with monkeypatch.context() as patch:
        scans_are_dear(patch)
        found = worth(layer, plan, blocks, hidden, SHARE)
        assert found.max_k >= 64 and found.max_k_of_batches >= 16
        assert found.trial > searched(layer, blocks, hidden, SHARE, 16).every
    monkeypatch.setattr(block_choice, "FETCHED", 1000.0)
    found = worth(layer, plan, blocks, hidden, SHARE)
    assert found.max_k == 0 and found.max_k_of_batches == 0


def test_a_batch_is_searched_for_up_to_as_many_classes_as_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scans_are_dear(monkeypatch)
    layer, hidden = around_centres()
    made: Any = hl.compile(layer, "codes", eps=math.inf, calibration=hidden[:400])
    plan = made.plan._replace(blocks=made.plan.blocks._replace(max_k=64, max_batch=2, max_k_of_batches=16))
    engine, asked = Engine(layer, made.method, plan, made.norms, made.promise), hidden[400:464]
    few, more = engine.topk(asked, 16), engine.topk(asked, 17)
    assert few.proved.all() and not more.proved.all()  # codes answer
    np.testing.assert_array_equal(few.ids[:, 0], more.ids[:, 0])
    assert engine.topk(asked, 16, exclude=np.arange(40)).proved.all()
    assert engine.sample(asked, top_k=10, seed=1).proved.all()


@pytest.mark.parametrize("size", [1e-40, 1e20, 3e38])
def test_vectors_that_stand_in_beside_biases_of_any_size(rng: np.random.Generator, size: float) -> None:
    """Products with rows vary as biases do, where squares of these are beyond float32, too."""
    layer = hl.Layer(rng.standard_normal((300, 8), dtype=np.float32), np.float32(size) * rng.random(300, dtype=np.float32))
    assert layer.bias is not None
    varied = np.std(block_choice.stand_ins(layer) @ layer.weight.T.astype(float))
    assert varied > 0.4 * block_choice.BESIDE_BIAS * np.std(layer.bias.astype(float)) and np.isfinite(varied)
