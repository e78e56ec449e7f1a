"""What a storm throws: a layer, hidden vectors, calibration vectors, a method with options, and calls, all from one number.

::

    case = draw(number)          plain facts, quick to print and to repeat
    layer, hidden, vectors = build(case)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from headlong import Affine, Gss, Layer, SoftCap, Table

Doubles = NDArray[np.float64]

SHAPES = {
    "vocab": ([1, 2, 63, 64, 65, 1000, 12_103, 20_011, 200_003], [2, 2, 6, 6, 6, 40, 10, 10, 2]),
    "dim": ([1, 2, 7, 16, 64, 100, 513], [1, 1, 2, 3, 5, 4, 2]),
    "batch": ([1, 2, 7, 8, 17, 64, 100, 200], [2, 1, 1, 3, 2, 4, 3, 6]),
}
SPECTRA = ("flat", "decaying", "one direction", "low rank", "duplicates", "zero rows", "one huge row", "sparse", "long tail")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
LINKS = {"none": None, "scaled": Affine(2.5, -3.0), "softcap": SoftCap(5.0), "gss": Gss(), "table": None}
BIASES = ("none", "plain", "large")
CALIBRATIONS = ("none", "good", "alien", "zeros", "equal", "one row", "far larger", "far smaller")
METHODS = {
    "full": ({},),
    "cascade": ({}, {"width": 0}, {"width": 8}, {"bits": 1}, {"bits": 2}, {"bits": 4}, {"bits": 8}, {"bits": 2.5},
                {"deeper": False}, {"bits": 4, "deeper": False}, {"bits": 4, "rotation": 3}),
    "adaptive": ({},),
    "svd": ({},),
    "auto": ({},),
}  # fmt: skip
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
    delta_ids: float
    over: str
    mask: str
    k: int
    threads: int


def draw(number: int) -> Case:
    """The case of this number."""
    rng = np.random.default_rng([2026, number])

    def one(values: Any, weights: Any = None) -> Any:
        chances = None if weights is None else np.asarray(weights, float) / sum(weights)
        return values[int(rng.choice(len(values), p=chances))]

    vocab, dim, batch = (one(*SHAPES[name]) for name in ("vocab", "dim", "batch"))
    while vocab * dim > MOST_NUMBERS:
        dim = one(*SHAPES["dim"])
    while vocab * batch > MOST_LOGITS and batch > 1:
        batch //= 2
    spread = one([10.0 ** rng.uniform(-30, 4), 10.0 ** rng.uniform(-1, 2), 16.0, 60.0], [2, 6, 1, 1])
    method = one([*METHODS], [1, 8, 2, 1, 3])
    options = dict(one(METHODS[method]))
    calibration = one(CALIBRATIONS, [8, 6, 2, 1, 1, 1, 1, 1]) if method in ("cascade", "auto") else "none"
    eps, delta = one([0.01, 0.1, 1e-4, math.inf], [6, 3, 1, 2]), one([1e-3, 0.05, 0.0], [3, 4, 3])
    over, delta_ids = "query", 0.0
    if method == "cascade" and delta > 0 and not math.isinf(eps):
        if calibration not in ("none",) and "bits" not in options and rng.random() < 0.4:
            over, delta_ids = one(["calibration", "likely"]), 0.05
        elif options.get("bits") in (1, 2, 4, 8) and rng.random() < 0.4:
            over, delta_ids = "rotation", 0.05
    if over == "likely":
        delta_ids = 0.0
    if method == "adaptive":
        delta, eps = max(delta, 1e-3), min(eps, 0.1)
    return Case(
        number, vocab, dim, batch, float(spread), one(SPECTRA), one([*DTYPES]), one(BIASES, [3, 2, 1]),
        one([*LINKS], [8, 1, 1, 1, 1]), method, options, calibration, float(eps), float(delta), delta_ids, over,
        one(["none", "few", "most", "by row", "exclude"], [6, 1, 1, 1, 1]), int(min(vocab, one([1, 5, 10, 100], [3, 4, 3, 1]))),
        one([1, 2, 3], [3, 3, 1]),
    )  # fmt: skip


def build(case: Case) -> tuple[Layer, Doubles, Doubles | None]:
    """Layer, hidden vectors ``[batch, dim]`` and calibration vectors, if any."""
    rng = np.random.default_rng([7, case.number])
    weight = _rows(case, rng)
    turn = np.exp(-np.arange(case.dim) / max(1.0, case.dim / 8)) if case.spectrum == "decaying" else np.ones(case.dim)

    def vectors(count: int) -> Doubles:
        rows = rng.standard_normal((count, case.dim)) * turn + 0.3 * np.ones(case.dim)
        return np.asarray(rows * np.exp(0.3 * rng.standard_normal((count, 1))))

    hidden = vectors(case.batch)
    scale = float(np.std(hidden[:8] @ weight[rng.integers(0, case.vocab, 256)].T)) or 1.0
    factor = case.spread / scale
    if case.batch > 4:
        hidden[1] = 0.0
        hidden[2] *= 10.0
    bias = {"none": None, "plain": rng.standard_normal(case.vocab), "large": 1000 * rng.standard_normal(case.vocab)}[case.bias]
    stored = weight.astype(DTYPES[case.dtype])
    hidden = np.clip(hidden * factor, -1e30, 1e30).astype(np.float32).astype(np.float64)
    link = bent() if case.link == "table" else LINKS[case.link]
    layer = Layer(stored, None if bias is None else bias.astype(np.float32), link)
    return layer, hidden, _calibration(case, lambda count: vectors(count) * factor, rng)


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
