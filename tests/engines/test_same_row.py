"""Every field of a row's answer is the same to the last bit in any batch and on any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headlong as hl
from bounded import around_tastes, clustered

WAYS: dict[str, dict[str, Any]] = {
    "full": {"method": "full"}, "codes": {"method": "codes"}, "proved codes": {"method": "codes", "delta": 0.0},
    "blocks": {"method": "codes", "blocks": True}, "svd": {"method": "svd"}, "changed": {"method": "codes"},
}  # fmt: skip
VERBS = {
    "topk": lambda engine, rows: engine.topk(rows, 5), "lse": lambda engine, rows: engine.lse(rows),
    "entropy": lambda engine, rows: engine.entropy(rows),
    "log_prob": lambda engine, rows: engine.log_prob(rows, [[3, 7]] * len(rows)),
    "moments": lambda engine, rows: engine.entropy(rows, moments=True),
}  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("link", [hl.Affine(1.0), hl.SoftCap(20.0)])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("of", [clustered, around_tastes])
def test_a_row_does_not_know_its_batch(of: Any, way: str, link: Any, verb: str) -> None:
    layer, hidden = of(3000, 40)
    rows = np.concatenate([hidden.astype(np.float64) * 3, np.zeros((2, 40))])
    layer = hl.Layer(layer.weight, layer.bias, link)
    calibration = {"calibration": rows[:50].repeat(10, axis=0)} if way == "blocks" else {}
    found = []
    for threads in (1, 2, 3):
        engine: Any = hl.compile(layer, threads=threads, **WAYS[way], **calibration)
        if way == "changed":
            engine = engine.with_rows(layer.weight[:200], bias=layer.bias[:200]).without([4, 5])
        ask = VERBS[verb]
        found.append(ask(engine, rows))
        for size in (1, 2, 9, 17):
            start = 5 * size % (len(rows) - size)
            part = ask(engine, rows[start : start + size])
            for name in (name for name in part._fields if name != "cost" and getattr(part, name) is not None):
                np.testing.assert_array_equal(getattr(part, name), getattr(found[0], name)[start : start + size], err_msg=name)


def test_rows_beyond_those_that_are_answered_at_once_keep_their_own_excluded_classes() -> None:
    """Queries of 2,048 coordinates are answered in batches of some 2,000."""
    rng = np.random.default_rng(5)
    engine = hl.compile(hl.Layer(rng.standard_normal((300, 2048)).astype(np.float32)), "codes", threads=2)
    hidden, excluded = rng.standard_normal((2_100, 2048)), rng.integers(0, 300, (2_100, 3))
    whole, end = engine.topk(hidden, 5, exclude=excluded), engine.topk(hidden[1_900:], 5, exclude=excluded[1_900:])
    for field in ("ids", "logits", "log_probs", "lse", "error"):
        np.testing.assert_array_equal(getattr(whole, field)[1_900:], getattr(end, field))
    assert not (whole.ids[:, :, None] == excluded[:, None, :]).any()
