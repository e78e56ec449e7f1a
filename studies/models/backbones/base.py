"""The seam between a backbone and a head, and what a training step passes around::

    features = backbone(batch.inputs, state)            # hidden [N, dim], the state for the next batch
    out = head(features.hidden, batch.target)           # any head

A :class:`Backbone` knows no classes beyond its input embedding; a head knows no time. Padding never
reaches a head: a backbone returns a row of ``hidden`` for each target and no others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

from torch import Tensor, nn

from headlong.errors import OptionError
from headlong.heads import Head, HeadOutput

State = tuple[Tensor, ...]


WIDEST, DEEPEST = 1 << 16, 1000
"""No model is as wide or as deep as this."""


def check_sizes(options: Any, most: int, *names: str) -> None:
    """OptionError that names the first option that is not a size from 1 to ``most``."""
    for name in names:
        if not 1 <= getattr(options, name) <= most:
            raise OptionError(f"model.{name} = {getattr(options, name)}; expected 1 to {most:,}")


def check_rates(options: Any, *names: str) -> None:
    """OptionError that names the first drop rate outside [0, 1)."""
    for name in names:
        if not 0 <= getattr(options, name) < 1:
            raise OptionError(f"model.{name} = {getattr(options, name)}; expected 0 or more and less than 1")


class Batch(NamedTuple):
    """What a backbone reads, and the classes of the rows it will return."""

    inputs: tuple[Tensor, ...]
    target: Tensor


class Features(NamedTuple):
    """``hidden [N, dim]``; ``state`` of a recurrent model, else empty."""

    hidden: Tensor
    state: State = ()


class Backbone(nn.Module, ABC):
    """Everything in front of the output layer."""

    dim: int

    @abstractmethod
    def forward(self, inputs: tuple[Tensor, ...], state: State = ()) -> Features:
        """One batch; an empty ``state`` starts anew."""

    def tied(self) -> Tensor | None:
        """The input embedding that the head shares, or None."""
        return None


class Model(nn.Module):
    """A backbone and a head."""

    def __init__(self, backbone: Backbone, head: Head) -> None:
        super().__init__()
        if backbone.dim != head.dim:
            raise OptionError(f"the backbone ends in {backbone.dim} numbers, the head reads {head.dim}; make them equal")
        self.backbone, self.head = backbone, head

    def forward(self, batch: Batch, state: State = ()) -> tuple[Tensor, HeadOutput, State]:
        """The loss to minimise (the head's penalties included), the head's answer, and the state for the next batch."""
        features = self.backbone(batch.inputs, state)
        out: HeadOutput = self.head(features.hidden, batch.target)
        return out.loss, out, tuple(part.detach() for part in features.state)
