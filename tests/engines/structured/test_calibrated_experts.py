"""Experts whose plans hidden vectors choose: each by those that the gate sends to it, searches by blocks among them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import headlong as hl
from headlong.engines.structured.experts import FEWEST, ExpertsEngine, routed
from headlong.layers.experts import ExpertsLayer
from plans import directions

VOCAB, DIM, VECTORS, ASKED, K = 9000, 32, 400, 24, 10


@pytest.fixture(scope="module")
def layer() -> ExpertsLayer:
    """Two large experts that share a third of the classes, and one of few."""
    rng = np.random.default_rng(0)
    ids = [np.sort(rng.choice(VOCAB, count, replace=False)) for count in (6000, 6000, 50)]
    biases = [rng.normal(0, 0.1, (len(mine), 1)).astype(np.float32) for mine in ids]
    rows = [np.concatenate([directions(rng, len(bias), DIM), bias], axis=1) for bias in biases]
    gate = rng.standard_normal((3, DIM + 1)).astype(np.float32)
    gate[2] = 0.0
    gate[2, -1] = -8.0  # chosen by none of the vectors below
    starts = np.concatenate([[0], np.cumsum([len(mine) for mine in ids])])
    return ExpertsLayer(gate, np.concatenate(rows), np.concatenate(ids), starts, VOCAB, constant=True)


def logits_of(layer: ExpertsLayer, row: np.ndarray) -> np.ndarray:
    """All logits in float64, -inf where the expert has no row."""
    x = np.append(row.astype(np.float64), 1.0)
    scores = layer.gate.astype(np.float64) @ x
    rows = layer.part(int(scores.argmax()))
    out = np.full(layer.vocab, -np.inf)
    out[layer.ids[rows]] = layer.weight[rows].astype(np.float64) @ (x / np.exp(scores - scores.max()).sum())
    return out


def test_experts_search_by_blocks_where_vectors_show_that_they_read_less(layer: ExpertsLayer, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    hidden, asked = directions(rng, VECTORS, DIM), directions(rng, ASKED, DIM)
    plain = hl.compile(layer, eps=math.inf, threads=1)
    engine = hl.compile(layer, eps=math.inf, calibration=hidden, threads=1)
    assert isinstance(engine, ExpertsEngine)
    assert [part.plan.blocks is not None for part in engine.parts] == [True, True, False]
    logits = np.array([logits_of(layer, row) for row in asked])
    best = np.argsort(-logits, axis=1, kind="stable")[:, :K]
    saved = [0.0, 0.0]
    for row, want in zip(asked, best, strict=True):
        found, slow = engine.topk(row[None], K), plain.topk(row[None], K)
        assert found.proved.all()
        assert (found.ids[0] == want).all()
        saved = [saved[0] + found.cost.bytes[0], saved[1] + slow.cost.bytes[0]]
    assert saved[0] < saved[1] / 2
    np.testing.assert_array_equal(engine.topk(asked, K).ids, best)
    within = engine.topk(asked, K, eps=0.1)
    exact = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)) + logits.max(axis=1)
    assert (np.abs(within.lse - exact) <= within.error).all()
    assert (within.error <= 0.1).all()
    np.testing.assert_array_equal(
        engine.sample(asked, 3, top_k=K, seed=5).ids, plain.sample(asked, 3, top_k=K, seed=5).ids
    )
    engine.save(tmp_path / "engine")
    again = hl.load(tmp_path / "engine", threads=1)
    assert [part.plan.blocks is not None for part in again.parts] == [True, True, False]
    np.testing.assert_array_equal(again.topk(asked, K).ids, best)


def test_vectors_go_to_the_expert_that_reads_them(layer: ExpertsLayer) -> None:
    hidden = directions(np.random.default_rng(2), VECTORS, DIM).astype(np.float64)
    mine = routed(layer, hidden)
    assert mine[2] is None
    assert sum(len(one) for one in mine if one is not None) == VECTORS
    engine = hl.compile(layer, eps=math.inf, threads=1)
    assert isinstance(engine, ExpertsEngine)
    counts = np.bincount(engine.route(hidden), minlength=layer.experts)
    assert [0 if one is None else len(one) for one in mine] == counts.tolist()
    assert routed(layer, hidden[: FEWEST - 1]) == [None] * layer.experts
