"""``torch.nn.AdaptiveLogSoftmaxWithLoss`` with an engine: the same model, interface and parameters, and proofs.

::

    layer = AdaptiveLogSoftmaxWithLoss.of(module)     # or of(in_features, n_classes, cutoffs), as torch's
    output, loss = layer(input, target)               # also log_prob(input), predict(input)
    layer.topk(hidden, k=10)                          # opens only the bands that can matter
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import headlong
from headlong.errors import OptionError
from headlong.heads.bands import BandsHead
from headlong.integrations.generation.fingerprint import KeptEngine


class AdaptiveLogSoftmaxWithLoss(BandsHead):
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
        edges = [int(cutoff) for cutoff in cutoffs]
        widths = [int(in_features // div_value ** (place + 1)) for place in range(len(edges))]
        if min(widths, default=1) < 1:
            raise OptionError(f"div_value={div_value} leaves bands of widths {widths}; expected 1 at the least: lower it")
        super().__init__(in_features, n_classes, cutoffs=edges, widths=widths, bias=False, narrowest=1)
        self.head_bias.requires_grad_(head_bias)
        self.has_head_bias, self.div_value = head_bias, div_value
        self._kept: KeptEngine | None = None
        self.to(device=device, dtype=dtype)

    @classmethod
    def of(cls, module: nn.AdaptiveLogSoftmaxWithLoss) -> AdaptiveLogSoftmaxWithLoss:
        """A copy of torch's module, its numbers included."""
        made = cls(module.in_features, module.n_classes, module.cutoffs[:-1], module.div_value, module.head_bias)
        with torch.no_grad():
            made.to(module.head.weight.dtype).head_weight.copy_(module.head.weight)
            if module.head_bias:
                made.head_bias.copy_(module.head.bias)
            for number, band in enumerate(module.tail):
                project, weight = list(band.parameters())
                made.projections[number].copy_(project)
                made.weights[number].copy_(weight)
        return made.train(module.training)

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
    def topk(self, hidden: Tensor, k: int = 10, **options: Any) -> headlong.TopK:
        """The ``k`` likeliest classes, proved."""
        answer: headlong.TopK = self.engine.topk(hidden.detach(), k, **options)
        return answer

    def train(self, mode: bool = True) -> AdaptiveLogSoftmaxWithLoss:
        if mode and self._kept is not None:  # an optimiser may write without being counted
            self._kept.suspect = True
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}
