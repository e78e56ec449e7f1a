"""The softmax loss under autocast on a CPU, in pieces of ``rows``::

    z = hidden @ weight.T + bias;   p = softmax(z);   loss = (lse(z) - z[target]).mean()
    d_z = p - onehot(target);       d_hidden = d_z @ weight;       d_weight = d_z.T @ hidden

``linear_cross_entropy`` multiplies in float32 on a CPU whatever autocast says. Here all three products are of autocast's
type, which a processor with bfloat16 instructions does at twice the rate; sums over pieces and the loss are float32.
Gradients are made on the way forward, as ``linear_cross_entropy`` makes them, so no logits outlive their piece.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headlong.errors import InputError
from headlong.heads.base import refuse_graph

Gradients = tuple[Tensor, Tensor, Tensor | None]


class AutocastCrossEntropy(torch.autograd.Function):
    """``apply(hidden [N, dim], weight [vocab, dim], bias [vocab] or None, target [N], rows, kind) -> loss``, a scalar.

    ``kind`` is the type of the products. Backward once; gradients have the types of their tensors.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, rows: int, kind: torch.dtype
    ) -> Tensor:
        loss, ctx.gradients = _pieces(hidden, weight, bias, target, rows, kind)
        return loss

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        refuse_graph()
        gradients: Gradients | None = ctx.gradients
        if gradients is None:
            raise InputError("backward was called twice; expected one call, gradients are not kept: compute the loss again")
        ctx.gradients = None  # the only reference: autograd then takes them over instead of copying them
        if float(outer[0]) != 1.0:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(outer[0])
        return (*gradients, None, None, None)


def _pieces(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, rows: int, kind: torch.dtype
) -> tuple[Tensor, Gradients]:
    count, vocab = len(hidden), len(weight)
    x, matrix = hidden.to(kind), weight.to(kind)
    offset = torch.zeros(vocab, dtype=kind) if bias is None else bias.to(kind)
    # written again by every piece: fresh pages cost as much as a softmax
    logits, chances = (torch.empty(min(rows, count), vocab, dtype=kind) for _ in range(2))
    share = torch.empty_like(matrix)
    d_hidden, d_weight = torch.empty_like(hidden), torch.zeros_like(weight)
    d_bias = None if bias is None else torch.zeros_like(bias)
    total = torch.zeros((), dtype=torch.promote_types(kind, torch.float32))
    for piece, truth, d_piece in zip(*(torch.split(part, rows) for part in (x, target, d_hidden)), strict=True):
        z = torch.addmm(offset, piece, matrix.T, out=logits[: len(piece)])
        p = torch.softmax(z, -1, out=chances[: len(piece)])
        total += _losses(z, p, truth).sum()
        p[torch.arange(len(truth)), truth] -= 1
        torch.mul(p @ matrix, 1 / count, out=d_piece)
        d_weight.add_(torch.mm(p.T, piece, out=share), alpha=1 / count)
        if d_bias is not None:
            d_bias.add_((p.new_ones(1, len(piece)) @ p)[0], alpha=1 / count)
    return total / count, (d_hidden, d_weight, d_bias)


def _losses(z: Tensor, p: Tensor, target: Tensor) -> Tensor:
    """``lse(z) - z[target]``, row by row: the best class's logit and probability are the least rounded lse there is."""
    wide = torch.promote_types(z.dtype, torch.float32)
    lse = z.amax(-1).to(wide) - p.amax(-1).to(wide).log()  # argmax would take as long as the softmax
    return lse - z.gather(1, target[:, None])[:, 0].to(wide)
