"""Boxes: bounds that hold for every class, ids that are float64's from every executor, damaged files refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from bounded import (
    IDS,
    LEVELS,
    boxes,
    check,
    check_bounds,
    check_bounds_at,
    clustered,
)
from headlong import native
from headlong.encode.blocks.boxes import spectral
from headlong.encode.blocks.records import lengths_up
from headlong.errors import OptionError
from headlong.layers.matrix import Layer
from headlong.plan import NEIGHBOURS, Blocks
from oracle import truth


def made(vocab: int, dim: int) -> tuple[Layer, np.ndarray, Blocks]:
    layer, hidden = clustered(vocab, dim)
    return layer, hidden, boxes(layer, hidden)


@pytest.mark.parametrize("dim", [1, 3, 8, 9, 16, 17, 64, 65, 100])
@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 257, 700])
def test_bounds_hold_for_every_class_of_every_block(vocab: int, dim: int) -> None:
    layer, hidden, blocks = made(vocab, dim)
    odd = np.concatenate([hidden[:4], 1e4 * hidden[4:5], np.zeros((1, dim), np.float32), -hidden[5:7]])
    assert check_bounds(layer, blocks, odd) >= len(odd) * vocab


@given(st.sampled_from([1e-20, 1e-3, 1.0, 1e6]), st.integers(0, 2**32 - 1), st.integers(1, 90), st.integers(1, 90))
def test_bounds_hold_at_any_scale(scale: float, seed: int, vocab: int, dim: int) -> None:
    check_bounds_at(scale, (vocab, dim), seed)


def test_every_kernel_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden, blocks = made(3000, 100)
    wide, found = hidden.astype(np.float64), []
    for level in LEVELS:
        monkeypatch.setenv("HEADLONG_ISA", level)
        search = native.blocks(layer.weight, layer.bias, blocks, 0.25, level)
        found.append(search.topk(wide, 10, None, 2))
        assert found[-1].done.all()
        assert (found[-1].opened < 1).mean() > 0.9  # not everything is opened
    for other in found[1:]:
        np.testing.assert_array_equal(other.ids, found[0].ids)
        np.testing.assert_allclose(other.logits, found[0].logits, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(found[-1][0], np.array([search.topk(row[None], 10, None, 1)[0][0] for row in wide]))


def test_several_levels_of_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headlong.encode.blocks.boxes.ROOT", 16)
    monkeypatch.setattr("headlong.encode.blocks.boxes.AT_ONCE", NEIGHBOURS**3)  # in three pieces
    layer, hidden, blocks = made(9001, 24)
    assert len(blocks.levels) == 4
    check_bounds(layer, blocks, hidden[:3])
    expected = truth(layer, hidden)
    wide = hidden.astype(np.float64)
    ids = native.blocks(layer.weight, layer.bias, blocks, 0.25, native.isa()).topk(wide, 7, None, 1)[0]
    np.testing.assert_array_equal(ids, np.argsort(-expected.logits, axis=1, kind="stable")[:, :7])


@pytest.mark.parametrize("vocab", [1000, 2 * NEIGHBOURS**3 + 5])
def test_classes_coded_twice_are_those_that_were_kept(monkeypatch: pytest.MonkeyPatch, vocab: int) -> None:
    monkeypatch.setattr("headlong.encode.blocks.boxes.AT_ONCE", NEIGHBOURS**3)
    layer, hidden = clustered(vocab, 150)
    weight = layer.weight.copy()
    weight[7] *= np.float32(1e32)  # out of float32's reach, so not coded
    layer = Layer(weight, layer.bias)
    once = boxes(layer, hidden)
    monkeypatch.setattr("headlong.encode.blocks.boxes.KEPT", 0)
    twice = boxes(layer, hidden)
    np.testing.assert_array_equal(once.order, twice.order)
    np.testing.assert_array_equal(once.closer, twice.closer)
    assert (once.shared, once.closer_shared) == (twice.shared, twice.closer_shared)
    for one, other in zip(once.levels, twice.levels, strict=True):
        np.testing.assert_array_equal(one.records, other.records)


compiled_code = pytest.mark.skipif(native.isa() == native.REFERENCE, reason="NumPy searches for one query after the other")


@compiled_code
@pytest.mark.parametrize(("vocab", "threads"), [(9001, 1), (9001, 3), (300_001, 2)])
def test_together_answers_are_those_of_one_by_one(vocab: int, threads: int) -> None:
    layer, hidden, blocks = made(vocab, 40)
    search = native.blocks(layer.weight, layer.bias, blocks, 0.25, native.isa())
    wide = hidden.astype(np.float64)
    one = [search.topk(row[None], 10, None, 1) for row in wide]
    for batch in (2, 15, 16, 17, 60):
        together = search.topk(wide[:batch], 10, None, threads)
        assert together.done.all() and (together.rows >= 10).all()
        for name in ("ids", "logits", "bytes", "rows"):
            alone = [getattr(answer, name) for answer in one[:batch]]
            np.testing.assert_array_equal(getattr(together, name), np.concatenate(alone))


@compiled_code
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_long_way_of_a_draw_is_gone_by_several_threads(threads: int) -> None:
    rng = np.random.default_rng(3)
    layer = Layer(rng.standard_normal((70_000, 16)).astype(np.float32))
    hidden = rng.standard_normal((4, 16))
    engine = hl.compile(layer, "codes", blocks=True, log_probs=False, threads=threads)
    right = hl.compile(layer, "full").sample(hidden, 3, seed=5, eps=np.inf)
    for row in range(4):
        drawn = engine.sample(hidden[row : row + 1], 3, seed=5, position=row, eps=np.inf)
        np.testing.assert_array_equal(drawn.ids[0], right.ids[row])


def test_links_and_the_normaliser_of_the_scored_alone() -> None:
    layer, hidden = clustered(2000, 40)
    capped = Layer(layer.weight, layer.bias, hl.SoftCap(3.0))
    top = hl.compile(capped, calibration=hidden, **IDS).topk(hidden[:2], 9)
    check(top, capped, hidden[:2])
    assert np.isinf(top.error).all() and np.isnan(top.lse).all()


def test_a_normaliser_reads_what_is_behind_blocks() -> None:
    layer, hidden = clustered(2000, 40)
    engine = hl.compile(layer, calibration=hidden, method="codes", blocks=True, eps=0.01, delta=0.0)
    assert np.isfinite(engine.topk(hidden[:5], 9).error).all()
    assert hl.compile(layer, method="codes", blocks=True, delta=0.0).topk(hidden[:3], 4, eps=math.inf).proved.all()
    with pytest.raises(OptionError, match="blocks"):
        hl.compile(layer, method="codes", blocks=1)


def test_lengths_are_rounded_up_and_norms_bounded() -> None:
    rng = np.random.default_rng(0)
    lengths = np.abs(rng.standard_normal((5, 200))).astype(np.float32)
    lengths[:, 7] = 0
    coded, unit = lengths_up(lengths)
    assert (coded * unit.astype(np.float64) >= lengths).all()
    assert (coded * unit.astype(np.float64) <= lengths + unit * 1.01).all()
    for shape in ((30, 80), (80, 30), (1, 1)):
        matrix = rng.standard_normal(shape)
        true = np.linalg.norm(matrix, 2)
        assert true <= spectral(matrix) <= 1.5 * true
    assert spectral(np.zeros((3, 4))) == 0
