"""Heads that put an increasing curve between the logits and the softmax (Ganea et al. 2019, "LMS")::

    log_prob = log_softmax(f(hidden @ weight.T + bias))            one scalar f for all classes and contexts

Ranking is that of the raw logits, always; the loss is :mod:`headlong.heads.chunked_loss`'s: a step holds no more than the dense
head's. ``to_layer()`` gives a layer of one matrix whose link is the finished curve, which every engine reads with its proofs.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from headlong.errors import OptionError
from headlong.heads.base import Head, HeadOutput, product_type, widened
from headlong.heads.chunked_loss import Problem, scored
from headlong.heads.curves import Cap, Curve, Identity, Monotone, Sigmoidal, SigSoftmax, Temperature
from headlong.heads.dense import DenseHead, copied
from headlong.heads.plif import Plif
from headlong.layers.matrix import Layer

CURVES: dict[str, type[Curve]] = {
    "identity": Identity,
    "temperature": Temperature,
    "softcap": Cap,
    "sigsoftmax": SigSoftmax,
    "gss": Sigmoidal,
    "monotone": Monotone,
    "plif": Plif,
}


def build_curve(name: str, **options: Any) -> Curve:
    """``CURVES[name](**options)``; OptionError names what there is."""
    if not isinstance(name, str) or name not in CURVES:
        raise OptionError(f"no curve is called {name!r}; there are {', '.join(sorted(CURVES))}")
    return CURVES[name](**options)


class LinkHead(DenseHead):
    """``weight [vocab, dim]`` (its own or the embedding's), ``bias [vocab]``, and the curve ``name`` with its ``options``."""

    name: ClassVar[str] = "identity"
    opaque: ClassVar[bool] = True

    def __init__(
        self, dim: int, vocab: int, weight: Tensor | None = None, *, bias: bool = True, chunk: int | None = None, **options: Any
    ) -> None:
        super().__init__(dim, vocab, weight, bias=bias, chunk=chunk)
        self.curve = build_curve(self.name, **options)

    def score(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        problem = Problem(
            hidden, self.weight, self.bias, None, target, self.curve, self.rows, product_type(hidden, self.weight)
        )
        return scored(problem)

    def weighted(self, hidden: Tensor, target: Tensor, smoothing: float, weight: Tensor | None) -> HeadOutput:
        return Head.weighted(self, hidden, target, smoothing, weight)  # the dense head's loss knows no curve

    def log_prob(self, hidden: Tensor) -> Tensor:
        found: Tensor = self.curve(widened(self.logits(hidden)))
        return found.log_softmax(-1)

    def to_layer(self) -> Layer:
        return copied(self.weight, self.bias, self.curve.to_link())


class TemperatureHead(LinkHead):
    """``f(y) = e^a y``, one learned number: the control of every learned curve."""

    name = "temperature"


class SoftCapHead(LinkHead):
    """``f(y) = cap tanh(y / cap)``; option ``cap``."""

    name = "softcap"


class SigSoftmaxHead(LinkHead):
    """``p ~ exp(y) sigmoid(y)`` (Kanai et al. 2018)."""

    name = "sigsoftmax"


class GssHead(LinkHead):
    """The generalised SigSoftmax (Parthiban et al. 2021); options ``centre``, ``power``."""

    name = "gss"


class MonotoneHead(LinkHead):
    """A monotone network of one hidden layer (Ganea et al. 2019); options ``units``, ``gain``."""

    name = "monotone"


class PlifHead(LinkHead):
    """A piecewise-linear increasing function (Ganea et al. 2019); ``knots``, ``reach``, ``start``, ``gain``, ``frozen``.

    The defaults are ours: 256 knots from the identity. As published: ``knots=100_000, start="random", gain=1.0``.
    """

    name = "plif"
