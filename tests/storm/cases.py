"""What a storm throws: a layer, hidden vectors, calibration vectors, a method with options, and calls, all from one number.

::

    case = draw(number)          plain facts, quick to print and to repeat
    thrown = build(case)         layer, hidden and calibration vectors, and what is true of them
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from structured import MAKERS, Oracle, Wanted, build_structured

import headlong as hl
from headlong import Affine, Gss, Layer, SoftCap, Table
from headlong.engines.shards import here
from headlong.layers.structured import StructuredLayer
from oracle import Truth, logsumexp, truth

Doubles = NDArray[np.float64]

SHAPES = {
    "vocab": ([1, 2, 63, 64, 65, 1000, 12_103, 20_011, 200_003], [2, 2, 6, 6, 6, 40, 10, 10, 2]),
    "dim": ([1, 2, 7, 16, 64, 100, 513], [1, 1, 2, 3, 5, 4, 2]),
    "batch": ([1, 2, 7, 8, 17, 64, 100, 200], [1, 1, 1, 2, 1, 3, 2, 20]),
}
TASTES, ONE_IN = "around tastes", 16
"""Layers whose classes point the same way, which rays bound; one case in so many is of one, and asks for blocks."""
SPECTRA = ("flat", "decaying", "one direction", "low rank", "duplicates", "zero rows", "one huge row", "sparse", "long tail")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
LINKS = {"none": None, "scaled": Affine(2.5, -3.0), "softcap": SoftCap(5.0), "gss": Gss(), "table": None}
BIASES = ("none", "plain", "large")
CALIBRATIONS = ("none", "good", "alien", "zeros", "equal", "one row", "far larger", "far smaller")
METHODS = {
    "full": ({},),
    "codes": ({}, {"bits": 2.5}, {"blocks": True}),
    "svd": ({},),
    "auto": ({},),
    "shards": ({},),
    **dict.fromkeys(MAKERS, ({},)),
}
OFTEN = {"codes": 14, "auto": 4, "mixture": 3}
LARGE_TREE = 20_011
"""Classes beyond which a structured layer is not thrown: its distribution in float64 is walked, not multiplied."""
MOST_NUMBERS, MOST_LOGITS = 13_000_000, 2_500_000
"""Of a layer, and of a batch over it in float64: what one case may weigh."""


@dataclass(frozen=True)
class Case:
    number: int
    vocab: int
    dim: int
    batch: int
    spread: float
    spectrum: str
    dtype: str
    bias: str
    link: str
    method: str
    options: dict[str, Any]
    calibration: str
    eps: float
    delta: float
    mask: str
    k: int
    threads: int


def draw(number: int) -> Case:
    """The case of this number."""
    rng = np.random.default_rng([2026, number])
    case = _any(number, rng)
    return case if number % ONE_IN != ONE_IN // 2 - 2 else _around_tastes(case, rng)


def _around_tastes(case: Case, rng: np.random.Generator) -> Case:
    """The case on a layer that rays are for, asked for blocks."""
    vocab, dim = int(rng.choice([5_000, 12_103, 20_011])), int(rng.choice([16, 48, 64, 100]))
    calibration, eps = ("none", "good", "good", "alien")[int(rng.integers(4))], (0.01, 0.1, math.inf)[int(rng.integers(3))]
    return replace(
        case, vocab=vocab, dim=dim, batch=min(case.batch, MOST_LOGITS // vocab), spectrum=TASTES, method="codes",
        options={"blocks": True}, calibration=calibration, eps=eps,
    )  # fmt: skip


def _any(number: int, rng: np.random.Generator) -> Case:
    def one(values: Any, weights: Any = None) -> Any:
        chances = None if weights is None else np.asarray(weights, float) / sum(weights)
        return values[int(rng.choice(len(values), p=chances))]

    vocab, dim, batch = (one(*SHAPES[name]) for name in ("vocab", "dim", "batch"))
    while vocab * dim > MOST_NUMBERS:
        dim = one(*SHAPES["dim"])
    while vocab * batch > MOST_LOGITS and batch > 1:
        batch //= 2
    spread = one([10.0 ** rng.uniform(-30, 4), 10.0 ** rng.uniform(-1, 2), 16.0, 60.0], [2, 6, 1, 1])
    method = one([*METHODS], [OFTEN.get(name, 1.5) for name in METHODS])
    options = dict(one(METHODS[method]))
    if method in MAKERS:
        vocab = min(vocab, LARGE_TREE)
    calibration = one(CALIBRATIONS, [8, 6, 2, 1, 1, 1, 1, 1]) if method in ("codes", "auto") else "none"
    eps, delta = one([0.01, 0.1, 1e-4, math.inf], [6, 3, 1, 2]), one([1e-6, 1e-3, 0.05, 0.0], [2, 2, 3, 3])
    if "blocks" in options and rng.random() < 0.5:
        eps = math.inf  # ids alone: what blocks are for
    return Case(
        number, vocab, dim, batch, float(spread), one(SPECTRA), one([*DTYPES]), one(BIASES, [3, 2, 1]),
        one([*LINKS], [8, 1, 1, 1, 1]), method, options, calibration, float(eps), float(delta),
        one(["none", "few", "most", "by row", "exclude"], [6, 1, 1, 1, 1]), int(min(vocab, one([1, 5, 10, 100], [3, 4, 3, 1]))),
        one([1, 2, 3], [3, 3, 1]),
    )  # fmt: skip


class Thrown(NamedTuple):
    """``oracle`` says what is true of a structured layer; None: a matrix and a link, which the tests' own oracle knows."""

    layer: Layer | StructuredLayer
    hidden: Doubles
    vectors: Doubles | None
    oracle: Oracle | None


def build(case: Case) -> Thrown:
    """Layer, hidden vectors ``[batch, dim]`` and calibration vectors, if any."""
    rng = np.random.default_rng([7, case.number])
    structured = case.method in MAKERS
    around = around_tastes(case.vocab, case.dim, rng) if case.spectrum == TASTES else None
    weight = None if structured else around[0].astype(np.float32) if around else _rows(case, rng)
    turn = np.exp(-np.arange(case.dim) / max(1.0, case.dim / 8)) if case.spectrum == "decaying" else np.ones(case.dim)

    def vectors(count: int) -> Doubles:
        rows = around[1](count) if around else rng.standard_normal((count, case.dim)) * turn + 0.3 * np.ones(case.dim)
        return np.asarray(rows * np.exp(0.3 * rng.standard_normal((count, 1))))

    hidden, factor = vectors(case.batch), 1.0
    if weight is not None:
        factor = case.spread / (float(np.std(hidden[:8] @ weight[rng.integers(0, case.vocab, 256)].T)) or 1.0)
    seen = hidden[:8].copy()
    if case.batch > 4:
        hidden[1] = 0.0
        hidden[2] *= 10.0
    hidden = np.clip(hidden * factor, -1e30, 1e30).astype(np.float32).astype(np.float64)
    calibration = _calibration(case, lambda count: vectors(count) * factor, rng)
    if weight is None:
        wanted = Wanted(case.vocab, case.dim, min(case.spread, 300.0), DTYPES[case.dtype], seen, rng)
        layer, oracle = build_structured(case.method, wanted)
        return Thrown(layer, hidden, calibration, oracle)
    bias = {"none": None, "plain": rng.standard_normal(case.vocab), "large": 1000 * rng.standard_normal(case.vocab)}[case.bias]
    link = bent() if case.link == "table" else LINKS[case.link]
    matrix = Layer(weight.astype(DTYPES[case.dtype]), None if bias is None else bias.astype(np.float32), link)
    return Thrown(matrix, hidden, calibration, None)


def bent() -> Table:
    """Slopes from 0.05 to 4 between knots at -8, -7.5, ..., 8."""
    slopes = np.exp(np.random.default_rng(5).uniform(-3, 1.4, 32))
    return Table(-8.0, 0.5, np.concatenate([[-3.0], -3 + np.cumsum(slopes * 0.5)]), 1.5, 0.25)


def _rows(case: Case, rng: np.random.Generator) -> NDArray[np.float32]:
    vocab, dim = case.vocab, case.dim
    rows = rng.standard_normal((vocab, dim), np.float32)
    if case.spectrum == "decaying":
        rows *= np.exp(-np.arange(dim, dtype=np.float32) / max(1.0, dim / 8))
    elif case.spectrum == "one direction":
        rows = 0.01 * rows + np.outer(rng.standard_normal(vocab), np.ones(dim)).astype(np.float32)
    elif case.spectrum == "low rank":
        rank = max(1, dim // 10)
        rows = (rng.standard_normal((vocab, rank)) @ rng.standard_normal((rank, dim))).astype(np.float32)
    elif case.spectrum == "duplicates":
        rows = rows[rng.integers(0, max(1, vocab // 20), vocab)]
    elif case.spectrum == "zero rows":
        rows[rng.random(vocab) < 0.5] = 0
    elif case.spectrum == "one huge row":
        rows[vocab // 2] *= 100
    elif case.spectrum == "sparse":
        rows *= rng.random((vocab, dim)) < 0.05
    elif case.spectrum == "long tail":  # a recommender's: norms spread by exp(0.4 N)
        rows *= np.exp(0.4 * rng.standard_normal((vocab, 1), np.float32))
    return rows


def around_tastes(vocab: int, dim: int, rng: np.random.Generator) -> tuple[Doubles, Callable[[int], Doubles]]:
    """Multiples of a few directions and a little in all others; and what makes hidden vectors near some of them."""
    tastes = rng.standard_normal((max(2, vocab // 40), dim))
    rows = tastes[rng.integers(0, len(tastes), vocab)] + 0.35 * rng.standard_normal((vocab, dim))
    rows *= np.exp(0.3 * rng.standard_normal((vocab, 1)))
    return rows, lambda count: tastes[rng.integers(0, len(tastes), count)] + 0.5 * rng.standard_normal((count, dim))


def _calibration(case: Case, vectors: Any, rng: np.random.Generator) -> Doubles | None:
    count = 600
    made: dict[str, Any] = {
        "none": lambda: None,
        "good": lambda: vectors(count),
        "alien": lambda: np.abs(rng.standard_cauchy((count, case.dim))),
        "zeros": lambda: np.zeros((count, case.dim)),
        "equal": lambda: np.tile(vectors(1), (count, 1)),
        "one row": lambda: vectors(1),
        "far larger": lambda: vectors(count) * 1e6,
        "far smaller": lambda: vectors(count) * 1e-6,
    }
    found = made[case.calibration]()
    return None if found is None else np.clip(found, -1e30, 1e30)


def compiled(case: Case, layer: Any, options: Any, threads: int | None = None) -> Any:
    """The case's engine: for shards, three over a third of the classes each."""

    def one(part: Any, method: str, asked: Any) -> Any:
        return hl.compile(part, method, threads=threads or case.threads, **asked)

    if case.method in MAKERS:
        return hl.compile(layer, case.method, threads=threads or case.threads, **options)
    if case.method != "shards":
        return one(layer, case.method, options)
    cuts = sorted({0, layer.vocab // 3, 2 * layer.vocab // 3, layer.vocab})
    parts = [slice(*pair) for pair in itertools.pairwise(cuts)]
    share = options | {"delta": options["delta"] / len(parts)}
    layers = [Layer(layer.weight[at], None if layer.bias is None else layer.bias[at], layer.link) for at in parts]
    return here([one(part, "codes", share) for part in layers])


def facts_of(thrown: Thrown, live: Any) -> Truth:
    """What is true of the layer, under a mask where there is one."""
    if thrown.oracle is None:
        return truth(thrown.layer, thrown.hidden, live)
    found = thrown.oracle(thrown.hidden)
    exponents = found.exponents if live is None else np.where(live, found.exponents, -np.inf)
    return Truth(exponents, exponents, logsumexp(exponents), found.rounding)
