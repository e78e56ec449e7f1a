"""What an expert's answer says of its error: its own and the gate's, within what was promised together."""

from __future__ import annotations

import numpy as np
import pytest

import headlong as hl


@pytest.mark.parametrize("batch", [1, 6])
def test_the_rounding_of_the_gate_is_within_the_promise(batch: int) -> None:
    """Long vectors and long rows of the gate: its rounding alone takes a thousandth of what is promised."""
    rng = np.random.default_rng(3)
    vocab, dim = 3000, 64
    gate = (1e2 * rng.normal(size=(2, dim))).astype(np.float32)
    ids = np.tile(np.arange(vocab), 2)
    weight = (1e-3 * rng.normal(size=(2 * vocab, dim))).astype(np.float32)
    layer = hl.structured.ExpertsLayer(gate, weight, ids, np.array([0, vocab, 2 * vocab]), vocab, constant=False, scaled=True)
    hidden = 1e3 * rng.normal(size=(batch, dim))
    engine = hl.compile(layer, parts="codes", eps=0.003, delta=0.05, threads=1)
    top, scored, whole = engine.topk(hidden, 5), engine.log_prob(hidden, [[0, 7]] * batch), engine.lse(hidden)
    own = engine.topk(hidden, 5, eps=np.inf)
    assert (own.ids == top.ids).all()
    for error in (top.error, scored.error, whole.error):
        assert (error <= 0.003).all()
        assert (error > 0.0029).all()  # a bet was made, whose error is what was left to it
