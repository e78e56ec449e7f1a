"""Layers with a known spectrum, readers of their codes, and engines that learned their queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import headlong as hl
from headlong import native
from headlong.answers import Answer
from headlong.encode.basis import basis_for
from headlong.encode.tiles import codes_of
from headlong.engines.reference.codes import CodesInNumPy
from headlong.layers.matrix import Layer
from headlong.plan import Plan, Segment
from headlong.question import About, Question
from layers import SHAPES, shaped


def decaying(vocab: int, dim: int, power: float = 1.0, seed: int = 0) -> tuple[Layer, np.ndarray]:
    """A layer whose logits' energy falls as ``j ** -power`` in a hidden basis, and vectors with an offset to match."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    energy = np.arange(1, dim + 1.0) ** (-power / 2)
    weight = (rng.standard_normal((vocab, dim)) * energy) @ turn.T * 2
    hidden = (rng.standard_normal((400, dim)) * energy) @ turn.T + rng.standard_normal(dim)
    return Layer(weight.astype(np.float32), rng.standard_normal(vocab).astype(np.float32)), hidden.astype(np.float32)


SEGMENTS = (
    (Segment(0, 19, 8, 2), Segment(19, 51, 3), Segment(51, 100, 1)),
    (Segment(0, 64, 5), Segment(64, 100, 2)),
    (Segment(0, 100, 6),),
)


def gaussian(vocab: int, dim: int, seed: int, steep: float = 1.0) -> tuple[hl.Layer, np.ndarray]:
    """A layer whose columns fall off, with a bias, and hidden vectors."""
    rng = np.random.default_rng(seed)
    weight = (rng.standard_normal((vocab, dim)) * np.geomspace(1, 1 / steep, dim)).astype(np.float32)
    return hl.Layer(weight, rng.standard_normal(vocab).astype(np.float32)), rng.standard_normal((40, dim))


def awkward() -> list[tuple[str, hl.Layer, np.ndarray]]:
    """Layers made to break a bound: nothing of a query, of a row or of their likeness may be assumed."""
    rng = np.random.default_rng(3)
    hidden = rng.standard_normal((24, 64))
    rows = {name: shaped(name, (700, 64), rng).astype(np.float32) for name in SHAPES if name != "zeros"}
    spiky, own = rows["flat"].copy(), rows["flat"]
    spiky[:, 5] *= 300
    return [
        *((name, hl.Layer(part), hidden) for name, part in rows.items() if name != "flat"),
        ("one large coordinate", hl.Layer(spiky), hidden * np.where(np.arange(64) == 5, 50, 1)),
        ("hidden vectors that are rows", hl.Layer(own), own[:24] * 3.0),
        ("a spike of a query", hl.Layer(own), np.eye(64)[:24] * 40.0),
    ]


def reader(layer: hl.Layer, segments: tuple[Segment, ...], level: str, seed: int = 0, delta: float = 0.0):
    """The native reader at ``level``, the twin in NumPy, and the codes."""
    codes = codes_of(layer, basis_for(layer, None), segments, seed)
    assert codes is not None
    norms = native.row_norms(layer.weight, 1)
    rows = native.rows_of(layer.weight, layer.bias, norms, layer.link, Plan(), level)
    twin = CodesInNumPy(layer, codes)
    found = native.NativeReader(rows, About(delta=delta, seed=seed, threads=1), native.code_reader(rows, codes, level))
    return found, twin, rows


def entropies(
    layer: hl.Layer, segments: tuple[Segment, ...], level: str
) -> Callable[[np.ndarray, float, np.ndarray | None, float, int], Answer]:
    """Entropies of ``hidden`` within ``eps`` under a mask, bets lost with probability ``delta``, by one reader's codes."""
    codes = codes_of(layer, basis_for(layer, None), segments, 0)
    rows = native.rows_of(layer.weight, layer.bias, native.row_norms(layer.weight, 1), layer.link, Plan(), level)
    bound = native.code_reader(rows, codes, level)

    def ask(hidden: np.ndarray, eps: float, mask: np.ndarray | None, delta: float, seed: int) -> Answer:
        about = About(delta=delta, seed=seed, threads=1)
        return native.NativeReader(rows, about, bound).ask(hidden, Question("functional", eps=eps, mask=mask))

    return ask


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
