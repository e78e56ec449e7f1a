"""Coordinates in which a linear problem is easy: hidden vectors less their mean, every direction as long as another::

    x' = (x - m) T,   T T^T = (C + RIDGE * trace(C) / D I)^-1,   C the covariance of x
    w' x' + b'  =  (T w') x + (b' - (T w') m)

A softmax over x' is a softmax over x with other weights, so the minimum is the same one. What changes is the way there: a
trained network's hidden vectors are a thousand times longer in one direction than in another, and a gradient step that suits
the long ones leaves the short ones where they were.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headlong.heads import BandsHead, DenseHead, Head, TreeHead, TwoLevelHead

RIDGE, SAMPLE, PIECE = 1e-3, 100_000, 65_536


class Turn(NamedTuple):
    """``mean [D]`` and ``matrix [D, D]``, the m and T above."""

    mean: Tensor
    matrix: Tensor

    def of(self, hidden: Tensor) -> Tensor:
        """The vectors in the new coordinates, in the type that they came in."""
        parts = [((part.float() - self.mean) @ self.matrix).to(hidden.dtype) for part in torch.split(hidden, PIECE)]
        return torch.cat(parts)


def turn_of(hidden: Tensor) -> Turn:
    """From ``SAMPLE`` vectors, evenly spread; in float64."""
    some = hidden[:: max(1, len(hidden) // SAMPLE)].double()
    mean = some.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov(some.T, correction=0))
    scale = (values + RIDGE * values.mean()).clamp_min(torch.finfo(torch.float32).tiny).rsqrt()
    return Turn(mean.float(), (vectors * scale).float())


@torch.no_grad()
def turned_back(head: Head, turn: Turn) -> None:
    """``head``, trained on rotated vectors, becomes the one that says the same of vectors as they are."""
    for weight, bias in _readers(head):
        weight.copy_(weight @ turn.matrix.T)
        bias.sub_(weight @ turn.mean)
    if isinstance(head, BandsHead):
        for weight, bias, projection in zip(head.weights, head.biases, head.projections, strict=True):
            projection.copy_(projection @ turn.matrix.T)
            bias.sub_(weight @ (projection @ turn.mean))


def _readers(head: Head) -> list[tuple[Tensor, Tensor]]:
    """Every weight that is multiplied with hidden vectors, and its bias; projections have none of their own."""
    if isinstance(head, TwoLevelHead):
        return [(head.class_weight, head.class_bias), (head.word_weight, head.word_bias)]
    if isinstance(head, BandsHead):
        return [(head.head_weight, head.head_bias)]
    assert isinstance(head, DenseHead | TreeHead)
    assert head.bias is not None
    return [(head.weight, head.bias)]
