"""The ends of what may be asked: no query, one class, one coordinate, other arrays and numbers, of every kind of engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import headlong as hl
from headlong.engines.shards import here
from headlong.errors import HeadlongError
from oracle import truth

VOCAB, DIM = 700, 24
RNG = np.random.default_rng(3)
WEIGHT = RNG.standard_normal((VOCAB, DIM)).astype(np.float32)
HIDDEN = RNG.standard_normal((6, DIM)).astype(np.float32)
VECTORS = RNG.standard_normal((300, DIM)).astype(np.float32)


def codes(layer: hl.Layer, **options: Any) -> Any:
    return hl.compile(layer, "codes", threads=1, **options)


def shards(layer: hl.Layer) -> Any:
    cut = max(1, layer.vocab // 2)
    weights = [layer.weight[:cut], layer.weight[cut:]]
    return here([codes(hl.Layer(np.ascontiguousarray(one)), delta=5e-4) for one in weights if len(one)])


def changed(layer: hl.Layer) -> Any:
    rows = np.asarray(layer.weight[-1:], np.float32)
    settled = hl.Layer(layer.weight[:-1] if layer.vocab > 1 else layer.weight)
    return codes(settled).with_rows(rows, ids=[layer.vocab - 1])


KINDS: dict[str, Callable[[hl.Layer], Any]] = {
    "full": lambda layer: hl.compile(layer, "full", threads=1),
    "codes": codes,
    "calibrated": lambda layer: codes(layer, calibration=VECTORS[:, : layer.dim]),
    "blocks": lambda layer: codes(layer, blocks=True, eps=np.inf, delta=0.0),
    "adapting": lambda layer: codes(layer, adapt=True),
    "shards": shards,
    "changed": changed,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("vocab", "dim"), [(1, 1), (1, DIM), (2, 1), (VOCAB, 1), (17, 3)])
def test_layers_of_next_to_nothing(kind: str, vocab: int, dim: int) -> None:
    weight = WEIGHT[:vocab, :dim].copy()
    engine = KINDS[kind](hl.Layer(weight))
    exact = HIDDEN[:, :dim].astype(float) @ weight.T.astype(float)
    for k in {1, vocab}:
        top = engine.topk(HIDDEN[:, :dim], k)
        assert np.allclose(np.sort(exact, axis=1)[:, ::-1][:, :k], top.logits) and top.proved.all()
    lse = np.log(np.exp(exact).sum(axis=1))
    found = engine.lse(HIDDEN[:, :dim], eps=0.01)
    assert (np.abs(found.lse - lse) < 0.05).all()
    assert np.allclose(engine.log_prob(HIDDEN[:, :dim], np.zeros((6, 1), np.int64)).logits[:, 0], exact[:, 0])
    assert (engine.sample(HIDDEN[:, :dim], 2, seed=1, top_p=0.9).ids < vocab).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_question_is_refused(kind: str) -> None:
    engine = KINDS[kind](hl.Layer(WEIGHT))
    for k in (0, -1, VOCAB + 1, 2**63, 1.5, None):
        with pytest.raises(HeadlongError):
            engine.topk(HIDDEN, k)
    for value in (np.nan, np.inf, -np.inf, 1e300):
        for place in ((0, 0), (5, DIM - 1)):
            hidden = HIDDEN.astype(np.float64)
            hidden[place] = value
            for verb in ("topk", "lse", "sample"):
                if value == 1e300:
                    continue
                with pytest.raises(HeadlongError):
                    getattr(engine, verb)(hidden)
    for bad in (HIDDEN[0], HIDDEN[:, :-1], HIDDEN[None], HIDDEN.astype(complex), HIDDEN.astype(str), None, [[1, 2], [3]]):
        with pytest.raises(HeadlongError):
            engine.topk(bad)
    for ids in (np.full((6, 1), VOCAB), np.full((6, 1), -1), np.zeros((5, 1), int), np.zeros((6, 1))):
        with pytest.raises(HeadlongError):
            engine.log_prob(HIDDEN, ids)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_any_kind(kind: str) -> None:
    engine = KINDS[kind](hl.Layer(WEIGHT))
    wide = np.zeros((12, 2 * DIM), np.float32)
    wide[::2, ::2] = HIDDEN
    backwards = np.ascontiguousarray(HIDDEN[::-1])[::-1]
    column_major = np.asfortranarray(HIDDEN.astype(">f4"))
    expected = engine.topk(HIDDEN, 4)
    for same in (wide[::2, ::2], backwards, column_major, HIDDEN.astype(np.float64), HIDDEN.tolist()):
        assert (engine.topk(same, 4).ids == expected.ids).all()
    for dtype in (np.float16, ml_dtypes.bfloat16):
        narrow = HIDDEN.astype(dtype)
        exact = narrow.astype(float) @ WEIGHT.T.astype(float)
        assert np.allclose(engine.topk(narrow, 4).logits, np.sort(exact, axis=1)[:, :-5:-1])
    read_only = HIDDEN.copy()
    read_only.flags.writeable = False
    assert (engine.topk(read_only, 4).ids == expected.ids).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_zeros_before_vectors_longer_than_float32(kind: str) -> None:
    """The vector's half of a radius is infinite, a zero row's is nothing: their product is no number, once below all."""
    weight = np.where(np.arange(VOCAB)[:, None] % 140, 0, -1e-38 * np.abs(WEIGHT)).astype(np.float32)
    engine = KINDS[kind](hl.Layer(weight))
    for eps in (1.0, np.inf):
        top = engine.topk(np.full((3, DIM), 3e38), 5, eps=eps)
        assert (top.ids == np.arange(1, 6)).all() and (top.logits == 0).all() and top.proved.all()


@pytest.mark.parametrize("eps", [1.0, 1e4, 1e30])
@pytest.mark.parametrize("shift", [0.0, 1e10])
def test_an_eps_beyond_all_numbers_has_room_for_roundings(eps: float, shift: float) -> None:
    """What roundings took was once found by taking the rest from eps: nothing, where that was so large."""
    layer = hl.Layer(WEIGHT, link=hl.Affine(1.5, shift))
    expected, wide = truth(layer, HIDDEN), HIDDEN.astype(np.float64)  # float32 has no room beside 1e10
    for engine in (codes(layer, delta=0.0), codes(layer, delta=0.0, calibration=VECTORS)):
        for found in (engine.lse(wide, eps=eps), engine.topk(wide, 3, eps=eps)):
            assert (np.abs(found.lse - expected.lse) <= found.error + expected.rounding + 2.0**-50 * shift).all()
            assert (found.error <= eps).all()
