"""What every trainable output layer does::

    out = head(hidden, target)      # hidden [N, dim], target [N] -> out.output [N] target log-probabilities, out.loss
    head.log_prob(hidden)           # [N, vocab]
    head.predict(hidden)            # [N], the most probable class
    head.freeze()                   # the finished layer: data only, what engines read

``loss`` is what training minimises (a scalar; for a plain softmax ``-output.mean()``). ``output`` costs a pass of its own
and is computed when it is first asked for, so a training step that never looks at it pays nothing. A head is a
constructor ``Kind(dim, vocab, weight=None, **options)``; ``weight`` is the embedding that a tied model shares with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headlong.errors import DtypeError, IdError, OptionError, ShapeError


class HeadOutput:
    """``loss``, a scalar with a gradient; ``output [N]``, the targets' log-probabilities, or what computes them."""

    def __init__(self, loss: Tensor, output: Tensor | Callable[[], Tensor]) -> None:
        self.loss = loss
        self._output = output

    @property
    def output(self) -> Tensor:
        if not isinstance(self._output, Tensor):
            self._output = self._output()
        return self._output


class Head(nn.Module, ABC):
    """A module from ``hidden [N, dim]`` and ``target [N]`` to a :class:`HeadOutput`."""

    def __init__(self, dim: int, vocab: int) -> None:
        super().__init__()
        if dim < 1 or vocab < 2:
            raise OptionError(f"a head of dim {dim} and vocab {vocab}; expected dim of 1 or more and two classes or more")
        self.dim, self.vocab = dim, vocab

    def forward(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        if not torch.compiler.is_compiling():  # ids are data: looking at them would break the graph
            self.check(hidden, target)
        return self.score(hidden, target)

    @abstractmethod
    def score(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        """``forward`` on checked input."""

    @abstractmethod
    def log_prob(self, hidden: Tensor) -> Tensor:
        """``[N, vocab]``, rows that sum to one."""

    def predict(self, hidden: Tensor) -> Tensor:
        """``[N]``, the most probable class; a head whose ranking is cheaper than its probabilities overrides this."""
        return self.log_prob(hidden).argmax(-1)

    @abstractmethod
    def freeze(self) -> Any:
        """The finished layer, a copy that later training does not change."""

    def check(self, hidden: Tensor, target: Tensor) -> None:
        """ShapeError, DtypeError or IdError where the two do not fit this head or each other."""
        if hidden.ndim != 2 or hidden.shape[1] != self.dim:
            raise ShapeError(f"hidden has shape {list(hidden.shape)}; expected [N, {self.dim}]: flatten batch and time")
        if target.shape != hidden.shape[:1]:
            raise ShapeError(f"target has shape {list(target.shape)}; expected [{hidden.shape[0]}], one class per row")
        if target.dtype != torch.int64:
            raise DtypeError(f"target is {target.dtype}; expected int64 class ids: pass target.long()")
        if target.numel() and (int(target.min()) < 0 or int(target.max()) >= self.vocab):
            raise IdError(f"target holds {int(target.min())}..{int(target.max())}; class ids run from 0 to {self.vocab - 1}")

    def refuse_tied(self, weight: Tensor | None) -> None:
        """OptionError for a weight that this head cannot share with an embedding."""
        if weight is not None:
            raise OptionError(f"a {type(self).__name__} has no [vocab, dim] matrix to share; build the model with tied=false")

    def extra_repr(self) -> str:
        return f"dim={self.dim}, vocab={self.vocab}"
