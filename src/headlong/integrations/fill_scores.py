"""A dense vector of scores from the best classes and the normaliser: the rest gets one score that makes the mass right."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headlong import Affine, SoftCap

LEAST = -80.0
"""Log of the share of one class in the mass that is left where rounding ate it: as good as nothing, and finite."""


def tail_score(top: Any, link: Any, vocab: int) -> NDArray[np.float64]:
    """``[batch]``: the raw logit whose exponent, for each class that is not in ``top``, adds up to the mass left.

    ``log_probs [batch, k]`` and ``lse [batch]`` of ``top``; never above the worst logit there, which the others are below.
    """
    log_probs, lse, worst = (np.asarray(part, np.float64) for part in (top.log_probs, top.lse, top.logits[:, -1]))
    count = max(1, vocab - log_probs.shape[1])
    mass = np.maximum(1.0 - np.exp(log_probs).sum(axis=1), 0.0)
    with np.errstate(divide="ignore"):
        share = np.maximum(np.log(mass) - np.log(count), LEAST - np.log(count))
    return np.minimum(_undone(link, lse + share), worst)


def _undone(link: Any, exponents: NDArray[np.float64]) -> NDArray[np.float64]:
    """``f^-1``: what the model will apply ``f`` to."""
    if isinstance(link, SoftCap):
        edge = 1 - 1e-9
        return np.asarray(link.cap * np.arctanh(np.clip(exponents / link.cap, -edge, edge)))
    if isinstance(link, Affine):
        return np.asarray((exponents - link.shift) / link.scale)
    raise TypeError(f"{type(link).__name__} has no inverse here; expected Affine or SoftCap")


def scattered(top: Any, link: Any, vocab: int) -> Tensor:
    """``[batch, vocab]`` float32: raw logits at ``top.ids``, the tail's score elsewhere."""
    tail = torch.from_numpy(tail_score(top, link, vocab)).to(torch.float32)
    filled = tail[:, None].repeat(1, vocab)
    return filled.scatter_(1, top.ids, top.logits.to(torch.float32))
