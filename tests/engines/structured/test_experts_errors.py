"""What an expert's answer says of its error: its own and the gate's."""

from __future__ import annotations

import numpy as np
import pytest

import headlong as hl


@pytest.mark.parametrize("batch", [1, 6])
def test_the_rounding_of_the_gate_is_part_of_the_error(batch: int) -> None:
    """Long vectors and long rows of the gate: its rounding is most of all."""
    rng = np.random.default_rng(3)
    vocab, dim = 3000, 64
    gate = (1e2 * rng.normal(size=(2, dim))).astype(np.float32)
    ids = np.tile(np.arange(vocab), 2)
    weight = (1e-3 * rng.normal(size=(2 * vocab, dim))).astype(np.float32)
    layer = hl.structured.ExpertsLayer(gate, weight, ids, np.array([0, vocab, 2 * vocab]), vocab, constant=False, scaled=True)
    hidden = 1e3 * rng.normal(size=(batch, dim))
    engine = hl.compile(layer, eps=0.003, threads=1)
    top, scored, whole = engine.topk(hidden, 5), engine.log_prob(hidden, [[0, 7]] * batch), engine.lse(hidden)
    wide = hidden.astype(np.longdouble)
    gates = wide @ gate.T
    g = 1 / np.exp(gates - gates.max(axis=1, keepdims=True)).sum(axis=1)
    logits = np.stack([weight[vocab * k :][:vocab] @ (v * x) for k, v, x in zip(gates.argmax(axis=1), g, wide, strict=True)])
    lse = np.log(np.exp(logits).sum(axis=1))
    assert (np.abs(whole.lse - lse) <= whole.error).all()
    assert (np.abs(scored.log_probs - (logits[:, [0, 7]] - lse[:, None])) <= scored.error[:, None]).all()
    for error in (top.error, scored.error, whole.error):
        assert ((error > 1e-9) & (error <= 0.003)).all()
