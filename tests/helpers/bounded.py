"""Whether bounds on blocks hold, class by class, and answers are float64's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import headlong as hl
from block_bounds import bounds, closer, halves_of
from headlong import native
from headlong.encode.blocks.boxes import blocks_of
from headlong.encode.whitening import whiten
from headlong.engines.base import Engine
from headlong.engines.method import Running
from headlong.engines.methods.blocks import EVERY
from headlong.layers.matrix import Layer
from headlong.plan import NEIGHBOURS, Blocks
from oracle import check_topk, truth

LEVELS = native.levels()[1:]
IDS = {"method": "codes", "eps": math.inf, "delta": 0.0, "blocks": True}


def clustered(vocab: int, dim: int, seed: int = 0, count: int = 60) -> tuple[Layer, np.ndarray]:
    """Classes around a few centres, of falling energy, with a bias; and hidden vectors to match."""
    rng = np.random.default_rng(seed)
    energy = np.arange(1, dim + 1.0) ** -0.7
    centres = rng.standard_normal((max(2, vocab // 40), dim)) * energy
    weight = centres[rng.integers(0, len(centres), vocab)] + 0.2 * rng.standard_normal((vocab, dim)) * energy
    hidden = (rng.standard_normal((count, dim)) * energy + 0.3) * 4
    return Layer(weight.astype(np.float32), rng.standard_normal(vocab).astype(np.float32)), hidden.astype(np.float32)


def boxes(layer: Layer, hidden: np.ndarray, **more: Any) -> Blocks:
    return blocks_of(layer, whiten(layer.weight, hidden.astype(np.float64)), **more)


def through(layer: Layer, blocks: Blocks, eps: float = 0.01) -> Engine:
    """An engine whose ids and samples come from ``blocks``, whatever is asked and whether they are worth it."""
    plain = hl.compile(layer, "codes", eps=eps, delta=0.0, blocks=False)
    return always(plain, blocks)


def always(engine: Engine, blocks: Blocks, **options: Any) -> Engine:
    """The engine with ``blocks`` that answer every call."""
    affine = isinstance(engine.layer.link, hl.Affine)  # samples go by blocks under no other link
    blocks = blocks._replace(max_batch=EVERY, max_k=engine.layer.vocab, samples=affine)
    plan = engine.plan._replace(blocks=blocks)
    return Engine(engine.layer, engine.method, plan, engine.norms, engine.promise, Running(**options))


def check(top: hl.TopK, layer: Layer, hidden: np.ndarray, exact: bool = False) -> None:
    """Every row is that of float64, and proved."""
    expected = truth(layer, hidden)
    assert top.proved.all()
    for row in range(len(hidden)):
        check_topk(expected.logits[row], top.ids[row], top.logits[row], 0.0 if exact else expected.rounding[row])


def check_bounds_at(scale: float, shape: tuple[int, int], seed: int) -> None:
    """Bounds of a random layer with rows of very different lengths, constant coordinates and duplicates."""
    rng = np.random.default_rng(seed)
    vocab, dim = shape
    weight = rng.standard_normal(shape) * np.exp(rng.normal(0, 2.0, (vocab, 1)))
    weight[:, rng.random(dim) < 0.2] = 1.0
    weight[rng.random(vocab) < 0.2] = weight[0]
    layer = Layer((weight * scale).astype(np.float32), rng.standard_normal(vocab).astype(np.float32))
    hidden = (rng.standard_normal((3, dim)) * np.exp(rng.normal(0, 2, dim))).astype(np.float32)
    check_bounds(layer, boxes(layer, hidden), np.concatenate([hidden, rng.standard_normal((2, dim)).astype(np.float32)]))


def check_bounds(layer: Layer, blocks: Blocks, hidden: np.ndarray) -> int:
    """No logit lies above the bound of its class, of its closer look, or of any box around it; returns what was compared."""
    there = blocks.order >= 0
    assert sorted(blocks.order[there]) == list(range(layer.vocab))
    checked = 0
    for row in hidden.astype(np.float64):
        query = halves_of(blocks, row)
        logits = np.full(len(there), -np.inf)
        exact = truth(layer, row[None])
        logits[there] = exact.logits[0, blocks.order[there]]
        for depth in reversed(range(len(blocks.levels))):
            level = blocks.levels[depth]
            box, groups = depth < len(blocks.levels) - 1, np.arange(len(level.records))
            estimate, upper = (side.ravel() for side in bounds(blocks, level, box, query, groups))
            logits = np.concatenate([logits, np.full(len(upper) - len(logits), -np.inf)])
            assert (logits <= upper + exact.rounding[0]).all()
            checked += len(logits)
            if depth == len(blocks.levels) - 1 and blocks.closer is not None:
                places = np.arange(len(there))
                _, narrow = closer(blocks, query, places, estimate)
                assert (logits[: len(there)] <= narrow + exact.rounding[0]).all()
            logits = np.concatenate([logits, np.full(-len(logits) % NEIGHBOURS, -np.inf)]).reshape(-1, NEIGHBOURS).max(axis=1)
    return checked
