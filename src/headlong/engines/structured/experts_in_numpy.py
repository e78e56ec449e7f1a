"""Every class of ``csrc/structured/experts.cpp`` in NumPy and float64, one query at a time.

::

    k, g = argmax and maximum of softmax(gate x)
    logits   of every class of expert k at g x
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headlong.dtypes import UNIT, Doubles
from headlong.layers.experts import ExpertsLayer


class Chosen(NamedTuple):
    """One query's expert, ``g x``, how far its logits may be off, and whether no rounding can have changed the choice."""

    expert: int
    x: Doubles
    error: float
    sure: bool


def chosen(layer: ExpertsLayer, hidden: Doubles) -> Chosen:
    """The route of ``hidden [dim]``."""
    x = np.append(hidden, 1.0) if layer.constant else hidden
    gate = layer.gate.astype(np.float64)
    scores = (gate * x).sum(axis=1)
    expert = int(np.argmax(scores))
    off = (layer.width + 4) * UNIT * float(np.linalg.norm(gate, axis=1).max() * np.linalg.norm(x))
    others = np.delete(scores, expert)
    value = 1 / float(np.exp(scores - scores[expert]).sum()) if layer.scaled else 1.0
    longest = float(np.linalg.norm(layer.weight[layer.part(expert)].astype(np.float64), axis=1).max())
    wrong = 2 * off + (layer.experts + 8) * UNIT if layer.scaled else 0.0
    error = (wrong + 2 * UNIT) * longest * float(np.linalg.norm(value * x)) * (1 + 2**-20)
    return Chosen(expert, value * x, error, bool((scores[expert] - others > 2 * off).all()))


def every_logit(layer: ExpertsLayer, routes: list[Chosen]) -> Doubles:
    """``[batch, vocab]``: -inf for what the expert lacks. Not a matrix product: equal rows have to tie."""
    out = np.full((len(routes), layer.vocab), -np.inf)
    for b, one in enumerate(routes):
        rows = layer.part(one.expert)
        out[b, layer.ids[rows]] = (layer.weight[rows].astype(np.float64) * one.x).sum(axis=1)
    return out
