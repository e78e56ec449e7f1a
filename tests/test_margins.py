"""Which roundings can turn a row's likeliest class over: never one that is said not to, and near ties are said to be open."""

from __future__ import annotations

import ml_dtypes
import numpy as np

import headlong as hl
from headlong.margins import ROUNDINGS, margins

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((900, 40)).astype(np.float32)
WEIGHT[1::2] = WEIGHT[::2] + 10.0 ** RNG.uniform(-5, 0, (450, 1)).astype(np.float32) * WEIGHT[1::2]  # pairs, near and far
HIDDEN = RNG.standard_normal((300, 40)).astype(np.float32)


def rounded(name: str) -> np.ndarray:
    if name == "bf16 weights":
        return WEIGHT.astype(ml_dtypes.bfloat16).astype(np.float64)
    step = np.abs(WEIGHT).max(axis=1, keepdims=True).astype(np.float64) / 127
    return np.rint(WEIGHT / step) * step


def test_rows_that_are_decided_come_out_the_same_after_the_rounding() -> None:
    found = margins(hl.Layer(WEIGHT), HIDDEN)
    exact = HIDDEN.astype(np.float64) @ WEIGHT.T.astype(np.float64)
    order = np.argsort(-exact, axis=1, kind="stable")
    assert (found.first == order[:, 0]).all() and (found.second == order[:, 1]).all()
    np.testing.assert_allclose(found.gap, -np.diff(np.take_along_axis(exact, order[:, :2], 1), axis=1)[:, 0], atol=1e-12)
    flipped = {name: (HIDDEN @ rounded(name).T).argmax(axis=1) != found.first for name in ("bf16 weights", "int8 weights")}
    output = (HIDDEN @ WEIGHT.T).astype(ml_dtypes.bfloat16).astype(np.float32)
    flipped["bf16 output"] = (output == output.max(axis=1, keepdims=True)).sum(axis=1) > 1
    for name, turned in flipped.items():
        assert turned.any() and not (turned & found.decided[name]).any(), name
    for name in ROUNDINGS[:3]:
        assert 0.02 < found.decided[name].mean() < 0.98, name


def test_equal_rows_are_never_decided() -> None:
    found = margins(hl.Layer(np.concatenate([WEIGHT, WEIGHT])), HIDDEN[:20])
    assert (found.gap == 0).all() and (found.second == found.first + 900).all()
    assert not any(flags.any() for flags in found.decided.values())
