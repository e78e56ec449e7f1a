"""The figures of a model on one feed, in float32, without dropout: ``loss = -sum(log p(target)) / targets``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

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


@torch.no_grad()
def evaluate(model: Model, feed: Feed) -> Figures:
    """One pass over the feed's first epoch."""
    was_training = model.training
    model.eval()
    total, count = 0.0, 0
    state: State = ()
    try:
        for step in range(feed.steps(0)):
            batch = feed.batch(0, step)
            features = model.backbone(batch.inputs, state)
            state = features.state
            total -= float(model.head(features.hidden, batch.target).output.double().sum())
            count += len(batch.target)
    finally:
        model.train(was_training)
    return Figures(total / count, count)
