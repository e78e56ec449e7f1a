"""``torch.nn.AdaptiveLogSoftmaxWithLoss`` itself, with an engine: ``topk`` opens only the bands that can matter, proved.

::

    layer = AdaptiveLogSoftmaxWithLoss.of(module)     # or (in_features, n_classes, cutoffs), as torch's
    output, loss = layer(input, target)               # torch's own; also log_prob(input), predict(input), state_dict()
    layer.topk(hidden, k=10)

Two things torch's lacks: targets may be of any integer type, and under autocast, where torch's raises, it computes in the
type of its weights.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

import headlong
from headlong.errors import InputError, named
from headlong.integrations.generation.fingerprint import KeptEngine, Refreshed
from headlong.layers.bands import Band, BandsLayer
from headlong.layers.matrix import Layer


class AdaptiveLogSoftmaxWithLoss(Refreshed, nn.AdaptiveLogSoftmaxWithLoss):
    """Classes sorted by how often they occur, the most frequent first; band ``i`` reads ``in_features / div_value^(i + 1)``."""

    @classmethod
    def of(cls, module: nn.AdaptiveLogSoftmaxWithLoss) -> AdaptiveLogSoftmaxWithLoss:
        """A copy of torch's module, its numbers included."""
        if type(module) not in (nn.AdaptiveLogSoftmaxWithLoss, cls):  # what another computes is not known
            raise InputError(f"{named(module)} was given; expected torch.nn.AdaptiveLogSoftmaxWithLoss")
        weight = module.head.weight
        sizes = module.in_features, module.n_classes, module.cutoffs[:-1], module.div_value, module.head_bias
        made = cls(*sizes, device=weight.device, dtype=weight.dtype)
        made.load_state_dict(module.state_dict())
        return made.train(module.training)

    def forward(self, input_: Tensor, target_: Tensor) -> Any:
        """``(output, loss)``, torch's named tuple."""
        target = target_ if target_.is_floating_point() else target_.long()
        if not torch.is_autocast_enabled(input_.device.type):
            return super().forward(input_, target)
        with torch.autocast(input_.device.type, enabled=False):
            return super().forward(input_.to(self.head.weight.dtype), target)

    def to_layer(self) -> BandsLayer:
        """The finished layer: data only, a copy."""
        tail: Any = self.tail
        bands = [_band(project.weight, read) for project, read in tail]
        return BandsLayer(_matrix(self.head), bands)

    def refresh(self, **options: Any) -> AdaptiveLogSoftmaxWithLoss:
        """Compile for the current weights; ``options`` go to :func:`headlong.compile`."""
        self._kept = KeptEngine(headlong.compile(self.to_layer(), **options), tuple(self.parameters()))
        return self

    @property
    def engine(self) -> Any:
        """The engine over the current weights; InputError if they have changed since it was compiled."""
        return self._kept_engine().of(tuple(self.parameters()))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def topk(self, hidden: ArrayLike | Tensor, k: int = 10, **options: Any) -> headlong.TopK:
        """The ``k`` likeliest classes, proved."""
        answer: headlong.TopK = self.engine.topk(hidden.detach() if isinstance(hidden, Tensor) else hidden, k, **options)
        return answer


def _band(project: Tensor, read: Any) -> Band:
    """A band of width 0, where ``div_value`` leaves none, has scores of 0: that is one coordinate of zeros."""
    if len(project):
        return Band(_matrix(read), _own(project))
    nothing: Any = project.new_zeros(1, project.shape[1])
    return Band(Layer(read.weight.new_zeros(len(read.weight), 1)), nothing)


def _matrix(linear: Any) -> Layer:
    return Layer(_own(linear.weight), None if linear.bias is None else _own(linear.bias))


def _own(parameter: Tensor) -> Any:
    return parameter.detach().cpu().clone()
