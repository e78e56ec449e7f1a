"""Codes and queries at the ends of what they may be: the largest sums that a scan's integers have to hold."""

import numpy as np
import pytest

import headlong as hl
from headlong import native


@pytest.mark.parametrize("level", native.levels()[1:])
@pytest.mark.parametrize("dim", [256, 508, 512, 516, 1024, 1540])
def test_rows_that_lie_along_the_query(monkeypatch: pytest.MonkeyPatch, level: str, dim: int) -> None:
    monkeypatch.setenv("HEADLONG_ISA", level)
    signs = np.where(np.random.default_rng(dim).random((8, dim)) < 0.5, -1.0, 1.0).astype(np.float32)
    weight = np.concatenate([np.tile(signs * step, (16, 1)) for step in (1.0, -1.0, 0.5)])  # +-127 in every coordinate
    engine = hl.compile(hl.Layer(weight), "codes", eps=1e-3, delta=0.0)
    logits = signs.astype(np.float64) @ weight.T.astype(np.float64)
    for rows in (signs[:1], signs[:3], signs):
        found = engine.topk(rows, 16)
        np.testing.assert_array_equal(found.logits[:, 0], logits[: len(rows)].max(axis=1))
        np.testing.assert_array_equal(np.take_along_axis(logits[: len(rows)], found.ids, 1), found.logits)
        assert found.proved.all() and (found.logits == dim).all()
