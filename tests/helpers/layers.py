"""Rows by the name of what is hard about them, and what else layers are made of: for the storm, for hypothesis and for tables.

::

    shaped("low rank", (700, 64), rng)       [vocab, dim], float64 or float32 as the generator gave it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from headlong import Table

Doubles = NDArray[np.float64]
Rng = np.random.Generator
DTYPES: dict[str, Any] = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def bent() -> Table:
    """Slopes from 0.05 to 4 between knots at -8, -7.5, ..., 8; steeper and flatter beyond."""
    slopes = np.exp(np.random.default_rng(5).uniform(-3, 1.4, 32))
    return Table(-8.0, 0.5, np.concatenate([[-3.0], -3 + np.cumsum(slopes * 0.5)]), 1.5, 0.25)


def _half_zero(rows: Any, rng: Rng) -> Any:
    rows[rng.random(len(rows)) < 0.5] = 0
    return rows


def _row_times(factor: float) -> Callable[[Any, Rng], Any]:
    def make(rows: Any, rng: Rng) -> Any:
        rows[len(rows) // 2] *= factor
        return rows

    return make


def _columns_of_ones(rows: Any, rng: Rng) -> Any:
    rows[:, rng.random(rows.shape[1]) < 0.7] = 1
    return rows


def _low_rank(rows: Any, rng: Rng) -> Any:
    rank = max(1, rows.shape[1] // 10)
    return rng.standard_normal((len(rows), rank)) @ rng.standard_normal((rank, rows.shape[1]))


def falling(dim: int, kind: Any = np.float64) -> Any:
    """Energies of coordinates that fall off by e every eighth of them."""
    return np.exp(-np.arange(dim, dtype=kind) / max(1.0, dim / 8))


SHAPES: dict[str, Callable[[Any, Rng], Any]] = {
    "flat": lambda rows, rng: rows,
    "decaying": lambda rows, rng: rows * falling(rows.shape[1], np.float32),
    "one direction": lambda rows, rng: 0.01 * rows + rng.standard_normal((len(rows), 1)).astype(rows.dtype),
    "low rank": _low_rank,
    "duplicates": lambda rows, rng: rows[rng.integers(0, max(1, len(rows) // 20), len(rows))],
    "zero rows": _half_zero,
    "one huge row": _row_times(100),
    "sparse": lambda rows, rng: rows * (rng.random(rows.shape) < 0.05),
    "long tail": lambda rows, rng: rows * np.exp(0.4 * rng.standard_normal((len(rows), 1), np.float32)),
    "ties by the hundred": lambda rows, rng: rows[rng.integers(0, int(rng.integers(2, 9)), len(rows))],
    "equal": lambda rows, rng: np.tile(rows[:1], (len(rows), 1)),
    "zeros": lambda rows, rng: 0 * rows,
    "lengths apart": lambda rows, rng: rows * np.exp(rng.normal(0, 3, (len(rows), 1))),
    "constant columns": _columns_of_ones,
}
"""A recommender's rows are "long tail"."""


def shaped(name: str, shape: tuple[int, int], rng: Rng, kind: Any = np.float64) -> Any:
    return SHAPES[name](rng.standard_normal(shape, kind), rng)


def around_tastes(vocab: int, dim: int, rng: Rng) -> tuple[Doubles, Callable[[int], Doubles]]:
    """Multiples of a few directions and a little in all others; and what makes hidden vectors near some of them."""
    tastes = rng.standard_normal((max(2, vocab // 40), dim))
    rows = tastes[rng.integers(0, len(tastes), vocab)] + 0.35 * rng.standard_normal((vocab, dim))
    rows *= np.exp(0.3 * rng.standard_normal((vocab, 1)))
    return rows, lambda count: tastes[rng.integers(0, len(tastes), count)] + 0.5 * rng.standard_normal((count, dim))
