"""Layers on which a preview is paid in vain: a sample notices it before the preview is read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import headlong as hl
from headlong import native
from oracle import check_topk, truth

VOCAB, DIM = 12_000, 256

KINDS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "a normaliser that many rows decide": lambda rng: rng.standard_normal((VOCAB, DIM)) / DIM**0.5,
    "two rows and noise": lambda rng: (
        rng.standard_normal((2, DIM))[rng.integers(0, 2, VOCAB)] + 1e-3 * rng.standard_normal((VOCAB, DIM))
    ),
    "two rows": lambda rng: rng.standard_normal((2, DIM))[rng.integers(0, 2, VOCAB)],
    "zeros": lambda rng: np.zeros((VOCAB, DIM)),
}


@pytest.fixture(params=[level for level in native.levels() if level != native.REFERENCE])
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HEADLONG_ISA", request.param)
    return str(request.param)


@pytest.mark.parametrize("batch", [1, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_all_that_is_read_in_vain(kind: str, batch: int, level: str) -> None:
    rng = np.random.default_rng(3)
    layer = hl.Layer(KINDS[kind](rng).astype(np.float32))
    hidden = rng.standard_normal((batch, DIM))
    eps = 1e-4 if "many rows" in kind else 0.02  # all classes together are bounded well
    engine = hl.compile(layer, "codes", eps=eps, delta=0.0, threads=2)
    top = engine.topk(hidden, 10)
    assert top.cost.dense.all() and top.proved.all() and (top.error <= eps).all()
    found = truth(layer, hidden)
    for b in range(batch):
        check_topk(found.logits[b], top.ids[b], top.logits[b], 2 * found.rounding[b])
    plain = hl.compile(layer, "full", threads=2).topk(hidden, 10, eps=eps)
    rows = top.cost.rows - plain.cost.rows
    assert rows.max() <= VOCAB // 4
    codes = 0 if engine.plan.codes is None else engine.plan.codes.tiles.nbytes + engine.plan.codes.rotation.nbytes
    assert (top.cost.bytes - plain.cost.bytes - rows * layer.row_bytes).mean() < 1.1 * codes / batch + 1


def test_rows_that_are_nearly_one_row_are_told_apart_by_codes_of_what_differs(level: str) -> None:
    rng = np.random.default_rng(3)
    layer = hl.Layer((rng.standard_normal((1, DIM)) + 1e-3 * rng.standard_normal((VOCAB, DIM))).astype(np.float32))
    hidden = rng.standard_normal((3, DIM))
    found = truth(layer, hidden)
    for row in range(3):
        top = hl.compile(layer, "codes", eps=0.02, delta=0.0, threads=2).topk(hidden[row : row + 1], 10)
        assert not top.cost.dense.any() and top.proved.all() and (top.error <= 0.02).all()
        check_topk(found.logits[row], top.ids[0], top.logits[0], 2 * found.rounding[row])
