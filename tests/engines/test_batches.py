"""Many queries side by side: the same ids and exact logits as alone, normalisers within their promise, whatever the block."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.engines.base import Engine
from headlong.layers.matrix import Layer
from oracle import check_topk, check_within, truth
from plans import decaying
from rates import check_rate

LEVELS = native.levels()[1:]
VOCAB = 9001
BLOCKS = (4, 5, 8, 9, 15, 24, 47, 64, 70)


def built(patch: pytest.MonkeyPatch, level: str, eps: float, layer: Layer, hidden: np.ndarray, **options: object) -> Engine:
    patch.setenv("HEADLONG_ISA", level)
    chosen: dict[str, Any] = {"threads": 2, "blocks": False, **options}
    engine = hl.compile(layer, "codes", eps=eps, calibration=hidden[100:], **chosen)
    assert isinstance(engine, Engine)
    return engine


def check(engine: Engine, hidden: np.ndarray, k: int, eps: float, within: float | None = None) -> None:
    found, exact = engine.topk(hidden, k), truth(engine.layer, hidden)
    for b, reference in enumerate(exact.logits):
        check_topk(reference, found.ids[b], found.logits[b], float(exact.rounding[b]))
    assert (found.error <= (eps if within is None else within)).all()
    assert (np.abs(found.lse - exact.lse) <= found.error).mean() > 0.99
    if math.isinf(eps):
        check_within(found.lse, exact.lse, found.error, 1e-9)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("eps", [0.02, math.inf])
def test_blocks_of_every_size(monkeypatch: pytest.MonkeyPatch, level: str, eps: float) -> None:
    layer, hidden = decaying(VOCAB, 64, 1.5)
    engine = built(monkeypatch, level, eps, layer, hidden)
    for count in BLOCKS if level != "portable" else (8, 70):
        check(engine, hidden[:count], 10, eps)
    check(engine, hidden[:16], 1, eps)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_types_links_and_odd_dimensions(monkeypatch: pytest.MonkeyPatch, level: str, dtype: type) -> None:
    layer, hidden = decaying(VOCAB, 60, 1.5, seed=1)
    layer = Layer(layer.weight.astype(dtype), layer.bias, hl.Affine(0.7, 3.0))
    check(built(monkeypatch, level, 0.02, layer, hidden), hidden[:20], 5, 0.02)


@pytest.mark.parametrize("level", LEVELS)
def test_rows_without_codes_and_ties(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    layer, hidden = decaying(VOCAB, 64, 1.5, seed=2)
    weight = layer.weight.copy()
    weight[[5, 700, 9000]] *= 1e18
    weight[1000:1100] = weight[17]
    for eps in (0.05, math.inf):
        check(built(monkeypatch, level, eps, Layer(weight, layer.bias), hidden), hidden[:20], 10, eps, math.inf)


@pytest.mark.parametrize("level", LEVELS)
def test_a_normaliser_of_huge_logits_is_within_its_error(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """Logits that float32 rounds by more than exponentials reach."""
    rng = np.random.default_rng(0)
    layer, energy = Layer(rng.standard_normal((VOCAB, 200), dtype=np.float32)), np.arange(1.0, 201) ** -1.5
    hidden = rng.standard_normal((600, 200)) * energy
    some, engine = 1e21 * hidden[:64], built(monkeypatch, level, math.inf, layer, hidden)
    found, exact = engine.topk(some, 1), truth(layer, some)
    check_within(found.lse, exact.lse, found.error, exact.rounding)


@pytest.mark.parametrize("level", LEVELS[-1:])
def test_a_large_delta_is_kept(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    """One in ten may fail, over seeds: far fewer do, and the mean of what is off is a small part of eps."""
    layer, hidden = decaying(VOCAB, 64, 0.7, seed=5)
    engine = built(monkeypatch, level, 0.02, layer, hidden, delta=0.1)
    exact, failures, off = truth(layer, hidden[:64]), 0, []
    for seed in range(20):
        again = Engine(layer, engine.method, engine.plan, engine.norms, engine.promise, seed=seed, threads=1)
        found = again.topk(hidden[:64], 5)
        failures += int((np.abs(found.lse - exact.lse) > 0.02).sum())
        off.append(found.lse - exact.lse)
    check_rate(failures, 20 * 64, 0.1)
    assert abs(np.mean(off)) < 0.05 * 0.02 and np.std(off) > 1e-6  # a bet that ends when it is won leans a little
