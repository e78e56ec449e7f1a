"""Rays where they differ from boxes (test_blocks.py has what both do): what they answer, and where they are chosen."""

from __future__ import annotations

import math

import numpy as np
import pytest

import headlong as hl
from bounded import IDS, around_tastes, check, rays_wherever
from headlong.engines.base import Engine
from headlong.engines.methods import blocks as by_blocks
from headlong.layers.matrix import Layer
from headlong.previews.blocks.rays import rays_of
from headlong.previews.whitening import whiten


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rays wherever they can be made."""
    monkeypatch.setattr(by_blocks, "tighter", rays_wherever)


def test_rows_out_of_reach_have_no_rays() -> None:
    layer, hidden = around_tastes(100, 20)
    weight = layer.weight.copy()
    weight[3] *= 1e12
    far = Layer(weight, layer.bias)
    assert rays_of(far, whiten(far.weight, hidden.astype(np.float64))) is None


@pytest.mark.usefixtures("forced")
def test_classes_come_and_go() -> None:
    layer, hidden = around_tastes(3000, 32)
    engine = hl.compile(layer, "codes", eps=math.inf, delta=0.0, calibration=hidden, blocks=True)
    assert isinstance(engine, Engine)
    best = engine.topk(hidden[:1], 3).ids[0]
    fewer = engine.without(best[:1])
    assert best[0] not in fewer.topk(hidden[:1], 10).ids
    more = fewer.with_rows(layer.weight[best[:1]] * 2, layer.bias[best[:1]], ids=best[:1])  # type: ignore[index]
    for changed in (more, more.compact()):
        weight = layer.weight.copy()
        weight[best[0]] *= 2
        check(changed.topk(hidden, 10), Layer(weight, layer.bias), hidden)
    assert more.compact().plan.blocks.rays is not None  # type: ignore[union-attr]


def test_they_are_chosen_where_they_read_less_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = around_tastes(5000, 48)
    chosen = hl.compile(layer, calibration=hidden, **IDS)
    rng = np.random.default_rng(0)
    energy = np.arange(1, 49.0) ** -1.5
    other = Layer((rng.standard_normal((5000, 48)) * energy).astype(np.float32))
    boxed = hl.compile(other, calibration=(rng.standard_normal((60, 48)) * energy).astype(np.float32), **IDS)
    assert chosen.plan.blocks.rays is not None  # type: ignore[union-attr]
    assert boxed.plan.blocks.rays is None  # type: ignore[union-attr]
    monkeypatch.setattr(by_blocks, "tighter", lambda layer, plan, boxes, *more: boxes)
    boxes = hl.compile(layer, calibration=hidden, **IDS)
    assert chosen.topk(hidden[:1]).cost.bytes < boxes.topk(hidden[:1]).cost.bytes
