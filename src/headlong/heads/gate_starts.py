"""Dividing hidden vectors among experts: spherical means, and gates that are as sure as asked.

::

    nearest(h) = argmax_j <m_j, h / |h|>        m_j = the direction of the mean of the unit vectors nearest to it

A gate without a bias cuts along planes through the origin, which is what spherical means do; hence they start it well.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

ROUNDS = 10
SHARE = 0.9
"""The share of its parent's gate that the likelier child gets, in the mean over rows."""


def split(gate: Tensor, hidden: Tensor, copies: int, trials: int = 1) -> tuple[Tensor, float]:
    """``[copies, dim]`` gates of the children of an expert that gets ``hidden``, and what their weights gain.

    A child's gate is its parent's plus a spherical mean of the vectors, as long as gives the best child ``SHARE``; the
    logits g <w, h> stay as they were on average when the weights grow by 1 / SHARE.
    """
    hidden = hidden.to(gate.dtype)
    means = spherical_means(functional.normalize(hidden, dim=1), copies, trials)
    return gate + means * sharpness(hidden @ means.T, SHARE), 1 / SHARE


def spherical_means(unit: Tensor, count: int, trials: int = 1) -> Tensor:
    """``count`` unit vectors, each the direction of the mean of the unit vectors that are nearest to it.

    ``trials``  starts that are drawn for each mean, of which the one that leaves the vectors nearest stays
    """
    if len(unit) < count:
        means = torch.randn(count, unit.shape[1], dtype=unit.dtype, device=unit.device)
        return functional.normalize(means, dim=1)
    means = _far_apart(unit, count, trials)
    for _ in range(ROUNDS):
        nearest = (unit @ means.T).argmax(-1)
        sums = torch.zeros_like(means).index_add(0, nearest, unit)
        empty = torch.bincount(nearest, minlength=count) == 0
        means = torch.where(empty[:, None], means, functional.normalize(sums, dim=1))
    return means


def _far_apart(unit: Tensor, count: int, trials: int) -> Tensor:
    """Greedy k-means++ starts: each next one in proportion to its distance from those before (Arthur, Vassilvitskii 2007)."""
    chosen = [unit[int(torch.randint(len(unit), ()))]]
    far = 1 - unit @ chosen[0]
    while len(chosen) < count:
        drawn = unit[torch.multinomial(far.clamp_min(1e-9), min(trials, len(unit)))]
        left = torch.minimum(far[:, None], 1 - unit @ drawn.T)
        best = int(left.sum(0).argmin())
        chosen.append(drawn[best])
        far = left[:, best]
    return torch.stack(chosen)


def sharpness(scores: Tensor, share: float) -> float:
    """The factor that makes the mean of the largest softmax over each row ``share``."""
    if len(scores) == 0:
        return 1.0
    low, high = 1e-3, 1e4
    for _ in range(40):
        middle = math.sqrt(low * high)
        if float((scores * middle).softmax(-1).max(-1).values.mean()) < share:
            low = middle
        else:
            high = middle
    return high
