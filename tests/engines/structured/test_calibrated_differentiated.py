"""Parts of a blocks layer that are matrices: hidden vectors choose their plans, searches by blocks among them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import headlong as hl
from headlong.engines.structured.differentiated import BlocksEngine
from headlong.layers.differentiated import Block, BlocksLayer
from plans import directions

VOCAB, WIDTH, VECTORS, ASKED, K = 6000, 32, 400, 24, 10


@pytest.fixture(scope="module")
def layer() -> BlocksLayer:
    """A block reads a slice of the vector, the other one what a projection makes of all of it."""
    rng = np.random.default_rng(0)
    projection = np.concatenate([np.zeros((WIDTH, WIDTH)), np.eye(WIDTH)], axis=1).astype(np.float32)
    first, second = (hl.Layer(directions(rng, VOCAB, WIDTH), rng.normal(0, 0.1, VOCAB).astype(np.float32)) for _ in range(2))
    return BlocksLayer([Block(first, 0, None), Block(second, 0, projection)], 2 * WIDTH, rng.permutation(2 * VOCAB))


@pytest.fixture(scope="module")
def hidden() -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.concatenate([directions(rng, VECTORS + ASKED, WIDTH), directions(rng, VECTORS + ASKED, WIDTH)], axis=1)


def test_parts_search_by_blocks_where_vectors_show_that_they_read_less(
    layer: BlocksLayer, hidden: np.ndarray, tmp_path: Path
) -> None:
    plain = hl.compile(layer, eps=math.inf, threads=1)
    engine = hl.compile(layer, eps=math.inf, calibration=hidden[:VECTORS], threads=1)
    assert isinstance(engine, BlocksEngine)
    assert all(part.plan.blocks is not None for part in engine.parts)
    asked = hidden[VECTORS:]
    parts = (block.layer for block in layer.blocks)
    views = asked[:, :WIDTH], asked[:, WIDTH:]
    logits = np.empty((ASKED, 2 * VOCAB))
    assert layer.order is not None
    logits[:, layer.order] = np.concatenate(
        [x.astype(np.float64) @ one.weight.astype(np.float64).T + one.bias for x, one in zip(views, parts, strict=True)], axis=1
    )
    best = np.argsort(-logits, axis=1)[:, :K]
    for row, want in zip(asked, best, strict=True):
        found, slow = engine.topk(row[None], K), plain.topk(row[None], K)
        assert found.proved.all()
        assert (found.ids[0] == want).all()
        assert found.cost.bytes[0] < slow.cost.bytes[0] / 2
    engine.save(tmp_path / "engine")
    again = hl.load(tmp_path / "engine", threads=1)
    assert isinstance(again, BlocksEngine)
    assert all(part.plan.blocks is not None for part in again.parts)
    np.testing.assert_array_equal(again.topk(asked, K).ids, best)
