"""Where looks for a normaliser are in vain, rows are read at once, and ids are found as ever."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.engines.method_choice import FEW_TO_BET

compiled_code = pytest.mark.skipif(native.isa() == native.REFERENCE, reason="what is read is chosen for native code")


def kernels(bandwidth: float) -> tuple[hl.Layer, np.ndarray]:
    rng = np.random.default_rng(1)
    centres = 3 * rng.standard_normal((64, 16))
    points = centres[rng.integers(0, 64, 40_000)] + rng.standard_normal((40_000, 16))
    square = bandwidth**2
    layer = hl.Layer((points / square).astype(np.float32), ((points**2).sum(axis=1) / (-2 * square)).astype(np.float32))
    return layer, centres[:20] + rng.standard_normal((20, 16))


@compiled_code
@pytest.mark.parametrize("calibrated", [False, True])
def test_narrow_kernels_are_read_densely(calibrated: bool, tmp_path: Path) -> None:
    layer, hidden = kernels(0.1)
    assert layer.weight.nbytes >= FEW_TO_BET
    vectors = hidden if calibrated else None
    engine = hl.compile(layer, "cascade", eps=0.05, delta=0.01, calibration=vectors, blocks=False)
    assert engine.plan.levels and engine.plan.dense.normalised == 0 and "dense for normalisers" in repr(engine)
    engine.save(tmp_path / "a.safetensors")
    exact = hl.compile(layer, "full").lse(hidden)
    for one in (engine, hl.load(tmp_path / "a.safetensors")):
        found = one.lse(hidden[:1])
        assert found.cost.dense.all()
        assert found.cost.bytes[0] < 2 * (layer.weight.nbytes + 12 * layer.vocab)  # float64 after float32
        assert abs(found.lse[0] - exact.lse[0]) <= found.error[0] + exact.error[0]
        assert one.log_prob(hidden[:1], [[3]]).cost.dense.all() and one.topk(hidden[:1], 3).cost.dense.all()
        assert one.lse(hidden[:1], allowed=np.arange(30_000)).cost.dense.all()  # the long way
        assert not one.topk(hidden[:1], 3, eps=math.inf).cost.dense.any()


def test_wide_kernels_are_looked_at() -> None:
    layer, hidden = kernels(4.0)
    engine = hl.compile(layer, eps=0.05, delta=0.01, calibration=hidden)
    assert engine.plan.dense.normalised == math.inf
    assert not engine.lse(hidden[:1]).cost.dense.any()
