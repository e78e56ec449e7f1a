"""The arrays of a plan in large pages: the same numbers, one behind the other."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

import headlong as hl
from headlong import arrays
from headlong.arrays import LARGE_PAGE
from headlong.engines import build
from headlong.engines.build import LINE, arrays_of, in_large_pages
from headlong.plan import Plan


def plan_of(*found: np.ndarray) -> Plan:
    return Plan(arrays={str(number): array for number, array in enumerate(found)})


@pytest.fixture
def least(monkeypatch: pytest.MonkeyPatch) -> int:
    for module in (arrays, build):
        monkeypatch.setattr(module, "LEAST_LARGE", 4096)
    return 4096


def test_smaller_arrays_lie_together(least: int, rng: np.random.Generator) -> None:
    large, turned = rng.standard_normal((64, 64)), rng.standard_normal((8, 9)).T
    small = [rng.integers(0, 255, (100, 31), np.uint8), rng.standard_normal((7, 33)).astype(np.float16), np.zeros((0, 3))]
    small[1].flags.writeable = False
    plan = plan_of(small[0], large, small[1], turned, small[2], rng.standard_normal(77))
    found = in_large_pages(plan)
    assert isinstance(found, Plan)
    before, after = list(arrays_of(plan)), list(arrays_of(found))
    assert len(before) == len(after) == 6
    for one, other in zip(before, after, strict=True):
        assert one.dtype == other.dtype and np.array_equal(one, other) and one.flags.writeable == other.flags.writeable
    assert after[1] is large and after[3] is turned  # a large one, and one that no copy could lie in as it does
    moved = [array for array in after if array is not large and array is not turned]
    assert all(array.ctypes.data % LINE == 0 for array in moved)
    assert max(array.ctypes.data for array in moved) - min(array.ctypes.data for array in moved) < 2 * least
    if hasattr(mmap, "MADV_HUGEPAGE"):
        assert moved[0].ctypes.data % LARGE_PAGE == 0


def test_engines_answer_as_before(least: int, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    layer, hidden = hl.Layer(rng.standard_normal((3000, 48)).astype(np.float32)), rng.standard_normal((600, 48))
    moved = hl.compile(layer, "codes", calibration=hidden, eps=np.inf, blocks=True, threads=1)
    monkeypatch.setattr(build, "in_large_pages", lambda plan: plan)
    left = hl.compile(layer, "codes", calibration=hidden, eps=np.inf, blocks=True, threads=1)
    assert moved.plan.blocks is not None and moved.plan.blocks.closer is not None
    for one, other in zip(arrays_of(moved.plan), arrays_of(left.plan), strict=True):
        assert np.array_equal(one, other)
    assert all(np.array_equal(a, b) for a, b in zip(moved.topk(hidden[:9])[:3], left.topk(hidden[:9])[:3], strict=True))
