"""``torch.nn.AdaptiveLogSoftmaxWithLoss`` itself, with an engine: ``topk`` opens only the bands that can matter, proved.

::

    layer = AdaptiveLogSoftmaxWithLoss.of(module)     # or (in_features, n_classes, cutoffs), as torch's
    output, loss = layer(input, target)               # torch's own; also log_prob(input), predict(input), state_dict()
    layer.topk(hidden, k=10)

Two things torch's lacks: targets may be of any integer type, and under autocast, where torch's raises, it computes in the
type of its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import headlong
from headlong.errors import OptionError
from headlong.integrations.generation.fingerprint import KeptEngine
from headlong.layers.bands import Band, BandsLayer
from headlong.layers.matrix import Layer


class AdaptiveLogSoftmaxWithLoss(nn.AdaptiveLogSoftmaxWithLoss):
    """Classes sorted by how often they occur, the most frequent first; band ``i`` reads ``in_features / div_value^(i + 1)``."""

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        widths = [int(in_features // div_value ** (place + 1)) for place in range(len(cutoffs))]
        if min(widths, default=1) < 1:
            raise OptionError(f"div_value={div_value} leaves bands of widths {widths}; expected 1 at the least: lower it")
        super().__init__(in_features, n_classes, cutoffs, div_value, head_bias, device, dtype)
        self._kept: KeptEngine | None = None

    @classmethod
    def of(cls, module: nn.AdaptiveLogSoftmaxWithLoss) -> AdaptiveLogSoftmaxWithLoss:
        """A copy of torch's module, its numbers included."""
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
        bands = [Band(_matrix(read), _own(project.weight)) for project, read in tail]
        return BandsLayer(_matrix(self.head), bands)

    def refresh(self, **options: Any) -> AdaptiveLogSoftmaxWithLoss:
        """Compile for the current weights; ``options`` go to :func:`headlong.compile`."""
        self._kept = KeptEngine(headlong.compile(self.to_layer(), **options), tuple(self.parameters()))
        return self

    @property
    def engine(self) -> Any:
        """The engine over the current weights; InputError if they have changed since it was compiled."""
        if self._kept is None:
            self.refresh()
        assert self._kept is not None
        return self._kept.of(tuple(self.parameters()))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def topk(self, hidden: Any, k: int = 10, **options: Any) -> headlong.TopK:
        """The ``k`` likeliest classes, proved."""
        answer: headlong.TopK = self.engine.topk(hidden.detach() if isinstance(hidden, Tensor) else hidden, k, **options)
        return answer

    def train(self, mode: bool = True) -> AdaptiveLogSoftmaxWithLoss:
        if mode and self._kept is not None:  # an optimiser may write without being counted
            self._kept.suspect = True
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}


def _matrix(linear: Any) -> Layer:
    return Layer(_own(linear.weight), None if linear.bias is None else _own(linear.bias))


def _own(parameter: Tensor) -> Any:
    return parameter.detach().cpu().clone()
