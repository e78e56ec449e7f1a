"""What a sampling step has to draw, in float64 over all classes: the truth beside which draws are checked.

::

    nucleus = classes of which those before them (larger exponents, then smaller ids) have less than top_p of the whole
    id      = argmax over the nucleus of f(z) / T + gumbel(seed, row, 0, class)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.engines.gumbel import gumbels
from headlong.layers.matrix import Layer

Doubles = NDArray[np.float64]
PIECE = 1 << 23
"""Weights turned into float64 at a time."""


def exponents(layer: Layer, hidden: Any) -> Doubles:
    """``f(z) [queries, vocab]`` in float64."""
    wide, step = np.asarray(hidden, np.float64), max(1, PIECE // layer.dim)
    z = np.empty((len(wide), layer.vocab))
    for start in range(0, layer.vocab, step):
        z[:, start : start + step] = wide @ np.asarray(layer.weight[start : start + step], np.float64).T
    return np.asarray(layer.link(z if layer.bias is None else z + layer.bias), np.float64)


def true_draws(f: Doubles, temperature: float, seed: int, filters: dict[str, dict[str, float]]) -> dict[str, NDArray[np.int64]]:
    """The ids ``[queries]`` that each step of ``filters`` draws from exponents ``f [queries, vocab]``, rows numbered from 0."""
    found: dict[str, list[int]] = {step: [] for step in filters}
    classes = np.arange(f.shape[1])
    for row, values in enumerate(f / temperature):
        score = values + gumbels(seed, row, 0, classes)
        for step, ids in _kept(values, filters):
            found[step].append(int(ids[np.argmax(score[ids])]))
    return {step: np.array(ids, np.int64) for step, ids in found.items()}


def _kept(values: Doubles, filters: dict[str, dict[str, float]]) -> Iterator[tuple[str, NDArray[np.int64]]]:
    """The classes that each step leaves, by one sort."""
    order = np.argsort(-values, kind="stable")
    mass = np.exp(values[order] - values[order[0]])
    total = mass.sum()
    before = np.cumsum(mass) - mass
    for step, wish in filters.items():
        yield step, np.sort(order[before < wish.get("top_p", np.inf) * total])
