"""Layers and hidden vectors that break careless bounds: ties, zeros, spikes, extremes, sizes around the lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from headlong import Affine, Layer, SoftCap
from layers import DTYPES, bent, shaped


class Case(NamedTuple):
    """A layer, hidden vectors ``[batch, dim]``, and whether all arithmetic on them is exact (so ties are to the bit)."""

    layer: Layer
    hidden: NDArray[np.float64]  # of float32's numbers: answers have the precision of what is asked
    exact: bool = False


def build(name: str, dtype: str) -> Case:
    """The case ``name`` with weights stored as ``dtype``."""
    rng = np.random.default_rng([sum(map(ord, name)), len(dtype)])
    kind = DTYPES[dtype]
    weight, bias, hidden, exact = CASES[name](rng, float(ml_dtypes.finfo(kind).max), float(ml_dtypes.finfo(kind).tiny))
    link = {"softcap": SoftCap(5.0), "scaled": Affine(2.5, -3.0), "table": bent(), "beyond the knots": bent()}.get(name)
    with np.errstate(over="ignore"):
        stored = weight.astype(kind)
    return Case(Layer(stored, bias, link), hidden.astype(np.float32).astype(np.float64), exact)


Made = tuple[NDArray[np.float64], NDArray[np.float32] | None, NDArray[np.float64], bool]


def vectors(rng: np.random.Generator, dim: int, scale: float = 1.0) -> NDArray[np.float64]:
    """A zero vector, plain ones, one with a single spike, one far smaller and one far larger."""
    hidden = rng.standard_normal((6, dim)) * scale
    hidden[0] = 0.0
    hidden[3] = 0.0
    hidden[3, dim // 2] = 30.0 * scale
    hidden[4] *= 1e-6
    hidden[5] *= 20.0
    return hidden


def _random(vocab: int, dim: int) -> Callable[..., Made]:
    def make(rng: np.random.Generator, most: float, least: float) -> Made:
        bias = rng.standard_normal(vocab).astype(np.float32)
        return rng.standard_normal((vocab, dim)) / np.sqrt(dim) * 3, bias, vectors(rng, dim), False

    return make


def _duplicates(rng: np.random.Generator, most: float, least: float) -> Made:
    rows = rng.integers(-3, 4, (7, 17)).astype(np.float64)
    return rows[rng.integers(0, 7, 301)], None, rng.integers(-3, 4, (5, 17)).astype(np.float64), True


def _equal(rng: np.random.Generator, most: float, least: float) -> Made:
    hidden = np.concatenate([np.zeros((1, 9)), rng.integers(-3, 4, (2, 9))]).astype(np.float64)
    return np.tile(rng.integers(-3, 4, (1, 9)), (200, 1)).astype(np.float64), None, hidden, True


def _one_hot(rng: np.random.Generator, most: float, least: float) -> Made:
    weight = np.zeros((130, 64))
    weight[np.arange(130), np.arange(130) % 64] = 1.0
    return weight, None, rng.integers(-4, 5, (4, 64)).astype(np.float64), True


def _zero_rows(rng: np.random.Generator, most: float, least: float) -> Made:
    weight = rng.integers(-2, 3, (150, 33)).astype(np.float64)
    weight[::2] = 0.0
    return weight, None, rng.integers(-2, 3, (4, 33)).astype(np.float64), True


def _huge_column(rng: np.random.Generator, most: float, least: float) -> Made:
    weight, hidden = rng.standard_normal((400, 40)), vectors(rng, 40)
    weight[:, 7] *= 1000
    hidden[1:3, 7] *= 100
    return weight, None, hidden, False


def _spiky_rows(rng: np.random.Generator, most: float, least: float) -> Made:
    weight = rng.standard_normal((500, 48)) * 0.01
    weight[np.arange(500), rng.integers(0, 48, 500)] = 100.0 * rng.choice([-1, 1], 500)
    return weight, rng.standard_normal(500).astype(np.float32), vectors(rng, 48), False


def _flat(rng: np.random.Generator, most: float, least: float) -> Made:
    return rng.standard_normal((700, 24)) * 1e-4, None, vectors(rng, 24), False


def _subnormal(rng: np.random.Generator, most: float, least: float) -> Made:
    return rng.uniform(-1, 1, (200, 20)) * least, None, vectors(rng, 20), False


def _huge(rng: np.random.Generator, most: float, least: float) -> Made:
    return rng.uniform(-1, 1, (200, 20)) * most / 8, None, vectors(rng, 20), False


def _mixed(rng: np.random.Generator, most: float, least: float) -> Made:
    size = np.exp(rng.uniform(np.log(least), np.log(most / 8), (300, 1)))
    bias = rng.standard_normal(300).astype(np.float32)
    return rng.uniform(-1, 1, (300, 20)) * size, bias, vectors(rng, 20), False


def _huge_hidden(rng: np.random.Generator, most: float, least: float) -> Made:
    hidden = vectors(rng, 20)
    hidden[1], hidden[2] = 1e37, -1e30
    return rng.standard_normal((200, 20)), None, hidden, False


def _huge_bias(rng: np.random.Generator, most: float, least: float) -> Made:
    bias = rng.standard_normal(200).astype(np.float32)
    bias[::3] = -3e38
    bias[5] = 40.0
    return rng.standard_normal((200, 20)), bias, vectors(rng, 20), False


def _peaked(rng: np.random.Generator, most: float, least: float) -> Made:
    weight = rng.standard_normal((900, 32))
    return weight, None, weight[[3, 500, 899]] * 4, False


def _steep(rng: np.random.Generator, most: float, least: float) -> Made:
    """Logits up to 1e5, where float32 has few digits left for an exponent, and one class has nearly all of the mass."""
    return rng.standard_normal((40, 33)) * 8, None, rng.standard_normal((6, 33)) * np.logspace(-1, 3, 6)[:, None], False


def _far_rows(rng: np.random.Generator, most: float, least: float) -> Made:
    """Rows of very different lengths: looks whose estimates lie hundreds of nats above their logits, or below."""
    size = np.exp(2 * rng.standard_normal((90, 1)))
    return rng.standard_normal((90, 4)) * size, None, rng.standard_normal((40, 4)), False


def _shape(name: str) -> Callable[..., Made]:
    return lambda rng, most, least: (shaped(name, (640, 40), rng), None, vectors(rng, 40), False)


CASES: dict[str, Callable[..., Made]] = {
    "random": _random(777, 65), "softcap": _random(300, 31), "scaled": _random(300, 16), "table": _random(300, 21),
    "beyond the knots": _steep, "one class": _random(1, 7), "one coordinate": _random(100, 1), "one number": _random(1, 1),
    "a block": _random(64, 63), "a block and one": _random(65, 64), "duplicates": _duplicates, "equal": _equal,
    "one-hot": _one_hot, "zero rows": _zero_rows, "huge column": _huge_column, "spiky rows": _spiky_rows, "flat": _flat,
    "subnormal": _subnormal, "huge": _huge, "mixed": _mixed, "huge hidden": _huge_hidden, "huge bias": _huge_bias,
    "peaked": _peaked, "steep": _steep, "far rows": _far_rows,
    "one direction": _shape("one direction"), "one huge row": _shape("one huge row"),
}  # fmt: skip
