"""What to expect of a layer: how the measured layer that is most like it fared against the fastest dense product.

::

    energy   sum(values[:dim // 8]) / sum(values)    values: eigenvalues of S W~^T W~ S, the largest first
    most like it:  argmin ((energy - e) / 0.1)^2 + log2(weights / w)^2      over the measured layers

``S^2`` are the second moments of the hidden vectors, ``W~`` the rows less their mean, which adds one number to every logit.
``measured_layers.json`` has what ``results/`` have of each; ``tools/tables.py`` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from math import log2
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from headlong.arrays import evenly
from headlong.bench.oracle import wide_rows
from headlong.layers.matrix import Layer

FILE = Path(__file__).with_name("measured_layers.json")
LIKE = 0.1
"""A difference of energy that weighs as much as twice the weights."""
VECTORS = 8192
"""Hidden vectors that are looked at."""


class Measured(NamedTuple):
    """``times``: ``{"log-probabilities" or "ids only": [cold, in a loop]}``, over the fastest dense product, one query."""

    about: str
    vocab: int
    dim: int
    energy: float
    times: dict[str, list[float]]
    cpu: str


def energy(layer: Layer, hidden: ArrayLike, part: int = 8) -> float:
    """The share of the logits' energy in the first ``dim / part`` directions: what an estimate from few of them can see."""
    dim, gram = layer.dim, np.zeros((layer.dim, layer.dim))
    for _, rows in wide_rows(layer):
        gram += rows.T @ rows
    mean = np.mean(layer.weight, axis=0, dtype=np.float64)
    gram -= layer.vocab * np.outer(mean, mean)
    seen = np.asarray(evenly(hidden, VECTORS), np.float64)
    values, directions = np.linalg.eigh(seen.T @ seen / len(seen))
    root = (directions * np.sqrt(np.maximum(values, 0.0))) @ directions.T
    found = np.maximum(np.linalg.eigvalsh(root @ gram @ root)[::-1], 0.0)
    return float(found[: max(1, dim // part)].sum() / max(float(found.sum()), 1e-300))


@cache
def measured() -> tuple[Measured, ...]:
    """The layers that the project's own tables have."""
    return tuple(Measured(**entry) for entry in json.loads(FILE.read_text(encoding="utf-8")))


def most_like(share: float, weights: int, among: Sequence[Measured]) -> Measured:
    """The one whose energy and size are nearest."""
    return min(among, key=lambda one: ((share - one.energy) / LIKE) ** 2 + log2(weights / (one.vocab * one.dim)) ** 2)
