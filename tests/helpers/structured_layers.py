"""Heads of some size with random weights, their finished layers and their log-probabilities in float64."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headlong.heads import Head, build_head

Doubles = NDArray[np.float64]


TOLERANCE = 1e-10
"""Several float64 roundings of numbers below a hundred."""


class Case(NamedTuple):
    """A head with random weights of some size, its finished layer, hidden vectors, and their log-probabilities in float64."""

    head: Head
    layer: Any
    hidden: Doubles  # of float32's numbers: answers have the precision of what is asked
    log_probs: Doubles


def made(kind: str, dim: int, vocab: int, rows: int = 6, **options: Any) -> Case:
    torch.manual_seed(7)
    head = build_head(kind, dim, vocab, **options)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn_like(parameter))
    hidden = torch.randn(rows, dim)
    hidden[0] = 0.0
    return Case(head, head.to_layer(), hidden.double().numpy(), dense(head, hidden))


def dense(head: Head, hidden: Any) -> Doubles:
    with torch.no_grad():
        wide = copy.deepcopy(head).double().log_prob(torch.as_tensor(hidden).double())
    return np.asarray(wide.numpy(), np.float64)
