"""Where looks for a normaliser are in vain, rows are read at once, and ids are found as ever."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.engines.method_choice import FEW_TO_BET
from headlong.previews.sums.stand_ins import kernel_points, likely_queries

compiled_code = pytest.mark.skipif(native.isa() == native.REFERENCE, reason="what is read is chosen for native code")


def kernels(bandwidth: float) -> tuple[hl.Layer, np.ndarray]:
    rng = np.random.default_rng(1)
    centres = 3 * rng.standard_normal((64, 16))
    points = centres[rng.integers(0, 64, 40_000)] + rng.standard_normal((40_000, 16))
    return hl.Layer.gaussian_kernel(points, bandwidth), centres[:20] + rng.standard_normal((20, 16))


@compiled_code
@pytest.mark.parametrize("calibrated", [False, True])
def test_narrow_kernels_are_read_densely(calibrated: bool, tmp_path: Path) -> None:
    layer, hidden = kernels(0.2)
    assert layer.weight.nbytes >= FEW_TO_BET
    vectors = hidden if calibrated else None
    engine = hl.compile(layer, "cascade", eps=0.05, delta=0.01, calibration=vectors, blocks=False)
    assert engine.plan.levels and engine.plan.dense.normalised == 0 and "dense for normalisers" in repr(engine)
    engine.save(tmp_path / "a.safetensors")
    exact = hl.compile(layer, "full").lse(hidden)
    for one in (engine, hl.load(tmp_path / "a.safetensors")):
        found = one.lse(hidden[:1])
        assert found.cost.dense.all() and found.cost.bytes[0] < 1.3 * (layer.weight.nbytes + 12 * layer.vocab)
        assert abs(found.lse[0] - exact.lse[0]) <= found.error[0] + exact.error[0]
        assert one.log_prob(hidden[:1], [[3]]).cost.dense.all() and one.topk(hidden[:1], 3).cost.dense.all()
        assert one.lse(hidden[:1], allowed=np.arange(30_000)).cost.dense.all()  # the long way
        assert not one.topk(hidden[:1], 3, eps=math.inf).cost.dense.any()


@pytest.mark.parametrize("calibrated", [False, True])
def test_wide_kernels_are_looked_at(calibrated: bool) -> None:
    layer, hidden = kernels(4.0)
    engine = hl.compile(layer, eps=0.05, delta=0.01, calibration=hidden if calibrated else None)
    assert engine.plan.dense.normalised == math.inf
    assert not engine.lse(hidden[:1]).cost.dense.any()


def test_queries_of_a_kernel_are_between_its_points(rng: np.random.Generator) -> None:
    points = 5 + rng.standard_normal((3000, 3))
    found = likely_queries(hl.Layer.gaussian_kernel(points, 0.3))
    nearest = ((found[:, None] - points) ** 2).sum(axis=2).min(axis=1)
    assert found.shape == (32, 3) and (nearest < 0.5).all() and (nearest > 1e-9).all()
    weight, bias = rng.standard_normal((3000, 3)).astype(np.float32), rng.standard_normal(3000).astype(np.float32)
    for other in (hl.Layer(weight), hl.Layer(weight, bias), hl.Layer(weight * 0, bias), hl.Layer(weight, bias * 0)):
        assert kernel_points(other) is None and np.isfinite(likely_queries(other)).all()


def test_layers_that_are_no_kernels_have_no_points(rng: np.random.Generator) -> None:
    """Any biases are some squares of fewer rows than coordinates; and points beyond float32 are nobody's queries."""
    assert kernel_points(hl.Layer(rng.standard_normal((600, 700), dtype=np.float32), rng.random(600, dtype=np.float32))) is None
    points = rng.standard_normal((3000, 3)) * 1e-20
    bias = -3e37 * (points * points).sum(axis=1) / (points * points).max()
    assert kernel_points(hl.Layer(points.astype(np.float32), bias.astype(np.float32))) is None
    assert np.isfinite(likely_queries(hl.Layer(points.astype(np.float32), bias.astype(np.float32)))).all()
