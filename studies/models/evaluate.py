"""The figures of a model on one feed, in float32, without dropout: ``loss = -sum(log p(target)) / targets``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from studies.models.backbones.base import Model, State
from studies.models.feeds import Feed

Tell = Callable[[int, int], None]


class Figures(NamedTuple):
    """``loss`` in nats per target."""

    loss: float
    targets: int

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))


def vectors(model: Model, feed: Feed) -> Iterator[tuple[Tensor, Tensor]]:
    """``(hidden, target)`` of one batch of the feed's first epoch after the other."""
    state: State = ()
    for step in range(feed.steps(0)):
        batch = feed.batch(0, step)
        with torch.no_grad():
            features = model.backbone(batch.inputs, state)
        state = features.state
        yield features.hidden, batch.target


@torch.no_grad()
def evaluate(model: Model, feed: Feed) -> Figures:
    """One pass over the feed's first epoch."""
    was_training = model.training
    model.eval()
    total, count = 0.0, 0
    try:
        for hidden, target in vectors(model, feed):
            total -= float(model.head(hidden, target).output.double().sum())
            count += len(target)
    finally:
        model.train(was_training)
    return Figures(total / count, count)
