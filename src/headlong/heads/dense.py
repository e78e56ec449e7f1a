"""The full softmax layer::

    log_prob = log_softmax(hidden @ weight.T + bias)            loss = -log_prob[target].mean()

The loss is ``torch.nn.functional.linear_cross_entropy`` in pieces of ``chunk`` rows, so that ``[N, vocab]`` logits are
never held; where one piece takes all rows it is one plain pass, which is as fast as PyTorch's. Under autocast the loss
and its products are of that type: ``linear_cross_entropy`` does not look at autocast by itself, and on a CPU it multiplies in
float32 whatever it is given, so there ``chunked_loss.py`` takes its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from headlong.errors import MissingPackageError
from headlong.heads.base import MOST, Head, HeadOutput, product_type, widened
from headlong.heads.chunked_loss import Problem, mean_loss
from headlong.heads.curves import Identity
from headlong.layers.matrix import Layer
from headlong.links import IDENTITY, Link
from headlong.number_checks import flag, whole

PIECE = 1 << 24
"""By default a piece has at most this many logits: 64 MB in float32."""


def rows_of_a_piece(chunk: int | None, vocab: int) -> int:
    """``chunk``, 0 for all at once; for None a power of two with at most :data:`PIECE` logits."""
    return 1 << (max(16, PIECE // vocab).bit_length() - 1) if chunk is None else whole(chunk, "chunk", 0, MOST)


def copied(weight: Tensor, bias: Tensor | None, link: Link = IDENTITY) -> Layer:
    """The two as a layer, apart from what training makes of them later."""
    kept = None if bias is None else bias.detach().cpu().clone()
    return Layer(weight.detach().cpu().clone(), kept, link)


class DenseHead(Head):
    """``weight [vocab, dim]`` (its own or the embedding's), ``bias [vocab]``.

    ``chunk``  rows of ``hidden`` in one piece; None: a power of two with at most 2^24 logits; 0: all rows at once
    """

    def __init__(
        self, dim: int, vocab: int, weight: Tensor | None = None, *, bias: bool = True, chunk: int | None = None
    ) -> None:
        super().__init__(dim, vocab)
        if not hasattr(functional, "linear_cross_entropy"):
            raise MissingPackageError(f"torch {torch.__version__} has no linear_cross_entropy; install torch 2.13 or later")
        self.check_tied(weight, (vocab, dim))
        self.weight = nn.Parameter(torch.empty(vocab, dim).uniform_(-0.1, 0.1)) if weight is None else weight
        self.bias = nn.Parameter(torch.zeros(vocab)) if flag(bias, "bias") else None
        self.rows = rows_of_a_piece(chunk, vocab)

    def score(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        loss = self._loss(hidden, target)
        return HeadOutput(loss, lambda: -self._cross_entropy(hidden, target, "none"))

    def weighted(self, hidden: Tensor, target: Tensor, smoothing: float, weight: Tensor | None) -> HeadOutput:
        """In pieces: smoothing needs no ``[N, vocab]`` here."""
        options = {"weight": weight, "label_smoothing": smoothing}
        loss = self._cross_entropy(hidden, target, "mean", **options)
        return HeadOutput(loss, lambda: -self._cross_entropy(hidden, target, "none"))

    def _loss(self, hidden: Tensor, target: Tensor) -> Tensor:
        if hidden.device.type == "cpu" and torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling():
            kind = torch.get_autocast_dtype("cpu")
            return mean_loss(Problem(hidden, self.weight, self.bias, None, target, Identity(), self.rows, kind))
        return self._cross_entropy(hidden, target, "mean")

    def _cross_entropy(self, hidden: Tensor, target: Tensor, reduction: str, **more: Any) -> Tensor:
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        kind = product_type(hidden, weight)
        hidden, weight, bias = hidden.to(kind), weight.to(kind), None if bias is None else bias.to(kind)
        options = None
        rows = self.rows
        if 0 < rows < hidden.shape[0]:
            options = nn.LinearCrossEntropyOptions(batch_chunk_size=rows, chunking_method=None)
        loss: Tensor = functional.linear_cross_entropy(
            hidden, weight, target, linear_bias=bias, reduction=reduction, options=options, **more
        )
        return widened(loss)

    def logits(self, hidden: Tensor) -> Tensor:
        """``[N, vocab]``, raw."""
        return functional.linear(hidden.to(self.weight.dtype), self.weight, self.bias)

    def log_prob(self, hidden: Tensor) -> Tensor:
        return widened(self.logits(hidden)).log_softmax(-1)

    def predict(self, hidden: Tensor) -> Tensor:
        rows = self.rows or max(1, hidden.shape[0])
        return torch.cat([self.logits(piece).argmax(-1) for piece in torch.split(hidden, rows)])

    def to_layer(self) -> Layer:
        return copied(self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bias={self.bias is not None}, rows={self.rows}"
