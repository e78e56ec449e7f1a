"""Memory: a mapped layer of more than 2^31 numbers, where no index may pass through 32 bits, and arrays in large pages."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

import headlong as hl
from headlong import arrays
from headlong.arrays import LARGE_PAGE
from headlong.engines import build
from headlong.engines.build import LINE, arrays_of, in_large_pages
from headlong.plan import Plan
from thinned import left_out

VOCAB, DIM = 4_200_000, 512
NEEDED = 9 * 2**30
"""Bytes: the file in the page cache and the int8 codes, with room to spare."""


def _free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(_free_memory() < NEEDED, reason="needs 9 GiB of free memory")
@pytest.mark.parametrize("method", ["codes", left_out("full")])
def test_more_than_two_to_the_31_numbers(tmp_path: Path, method: str) -> None:
    path, rng = tmp_path / "large.safetensors", np.random.default_rng(3)
    ids = np.array([0, 5, 64, 2**20, VOCAB - 65, VOCAB - 2, VOCAB - 1])
    rows = (rng.standard_normal((len(ids), DIM)) * 2).astype(np.float16)
    entry = {"dtype": "F16", "shape": [VOCAB, DIM], "data_offsets": [0, VOCAB * DIM * 2]}
    header = json.dumps({"weight": entry}).encode()
    header += b" " * (-len(header) % 64)
    with path.open("wb") as file:  # sparse: only the rows that are written take room on the disk
        file.write(len(header).to_bytes(8, "little") + header)
        start = file.tell()
        for i, row in zip(ids, rows, strict=True):
            file.seek(start + int(i) * DIM * 2)
            file.write(row.tobytes())
        file.truncate(start + VOCAB * DIM * 2)
    layer = hl.Layer.load(path, weight="weight")
    assert layer.vocab * layer.dim > 2**31
    engine = hl.compile(layer, method, eps=0.1, delta=0)
    hidden = np.stack([rows[-1], rows[3] - rows[5]]).astype(np.float32)
    logits = hidden.astype(np.float64) @ rows.astype(np.float64).T
    top = engine.topk(hidden, 2)
    assert top.proved.all()
    for b in range(2):
        best = np.argsort(-logits[b])[:2]
        assert top.ids[b].tolist() == ids[best].tolist()
        np.testing.assert_allclose(top.logits[b], logits[b, best], rtol=1e-12)
        most = logits[b].max()
        exact = most + np.log(np.exp(logits[b] - most).sum() + (VOCAB - len(ids)) * np.exp(-most))
        assert abs(top.lse[b] - exact) <= top.error[b] + 1e-9 <= 0.1 + 1e-9
    np.testing.assert_allclose(engine.log_prob(hidden, ids[None].repeat(2, 0)).logits, logits, rtol=1e-12, atol=1e-9)


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
    one, other = moved.topk(hidden[:9]), left.topk(hidden[:9])
    assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("ids", "logits"))
