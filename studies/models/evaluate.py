"""The figures of a model on one feed, in float32, without dropout::

perplexity = exp(-sum(output) / targets)          accuracy = 100 * sum(predict(hidden) == target) / targets
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from studies.models.backbones.base import Model, State
from studies.models.feeds import Feed

Tell = Callable[[int, int], None]


class Figures(NamedTuple):
    """``loss`` in nats per target; ``accuracy`` in percent."""

    loss: float
    accuracy: float
    targets: int

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    def value(self, metric: str) -> float:
        return self.perplexity if metric == "perplexity" else self.accuracy

    def cost(self, metric: str) -> float:
        """Smaller is better."""
        return self.loss if metric == "perplexity" else -self.accuracy


@torch.no_grad()
def evaluate(model: Model, feed: Feed, predict: bool = True, tell: Tell | None = None) -> Figures:
    """One pass over the feed's first epoch; ``predict`` off saves the second reading of the weights.

    ``tell(step, steps)`` is called after each batch.
    """
    was_training = model.training
    model.eval()
    total, right, count = 0.0, 0, 0
    state: State = ()
    try:
        for step in range(steps := feed.steps(0)):
            batch = feed.batch(0, step)
            features = model.backbone(batch.inputs, state)
            state = features.state
            total -= float(model.head(features.hidden, batch.target).output.double().sum())
            if predict:
                right += int((model.head.predict(features.hidden) == batch.target).sum())
            count += len(batch.target)
            if tell is not None:
                tell(step + 1, steps)
    finally:
        model.train(was_training)
    return Figures(total / count, 100 * right / count if predict else math.nan, count)
