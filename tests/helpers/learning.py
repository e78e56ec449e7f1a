"""A layer whose queries have leading directions, and engines that learned them."""

from __future__ import annotations

from typing import Any

import numpy as np

import headlong as hl

VOCAB, DIM = 21_000, 128


def world(seed: int = 0) -> tuple[hl.Layer, np.ndarray]:
    """Rows and queries with energies that fall off: a few coordinates say most of a logit."""
    rng = np.random.default_rng(seed)
    fall = 0.93 ** np.arange(DIM)
    turn = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0]
    weight = (rng.standard_normal((VOCAB, DIM)) * fall) @ turn
    hidden = (rng.standard_normal((4000, DIM)) * fall) @ turn
    return hl.Layer(weight.astype(np.float32)), (4 * hidden).astype(np.float32)


def learned(layer: hl.Layer, hidden: np.ndarray, **options: Any) -> Any:
    engine = hl.compile(layer, "codes", adapt=True, threads=1, **options)
    for row in hidden[: 2 * DIM]:
        engine.topk(row[None], 5)
    engine.wait()
    return engine
