"""The log-probability of each row's class within its own group of classes, as one operation::

    out[n] = log_softmax(x[n] @ weight[first:last].T + bias[first:last])[place[n]]      rows of group g = group[n]: starts[g] ..
    out[n] = 0                                                                          where group[n] is -1

Rows of one group meet in one matrix product. How many rows a group has is data, so this is an operation of its own to
PyTorch (``headlong::grouped_log_prob``): ``torch.compile(fullgraph=True)`` sees one node, autocast's type is decided here,
and the backward pass computes the logits again instead of keeping them. One group alone needs no such care outside a graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headlong.heads.base import product_type, refuse_graph


def grouped_log_prob(x: Tensor, group: Tensor, place: Tensor, weight: Tensor, bias: Tensor | None, starts: Tensor) -> Tensor:
    """``[N]`` float32 (float64 for float64 weights). ``x [N, width]``, ``group, place [N]``, ``weight [rows, width]``."""
    kind = product_type(x, weight)
    x, weight = x.to(kind), weight.to(kind)
    with torch.autocast(x.device.type, enabled=False):
        if len(starts) == 2 and not torch.compiler.is_compiling():
            # One group: what its gradients need is kept, which is quicker than computing the logits again.
            rows = (group == 0).nonzero()[:, 0]
            one = linear_log_prob(x.index_select(0, rows), weight, bias, place[rows])
            return one.new_zeros(len(x)).index_copy(0, rows, one)
        rest = torch.zeros(len(weight), device=weight.device) if bias is None else bias
        rest = rest.to(torch.promote_types(kind, torch.float32))
        found: Tensor = torch.ops.headlong.grouped_log_prob(x, torch.stack([group, place]), weight, rest, starts)
    return found


def linear_log_prob(x: Tensor, weight: Tensor, bias: Tensor | None, place: Tensor) -> Tensor:
    """``log_softmax(x @ weight.T + bias)[n, place[n]]``, ``[N]``: products in autocast's type or the weight's, sums wide.

    Where a gradient is wanted, ``softmax - onehot`` is made on the way forward, and it is all that is kept.
    """
    kind = product_type(x, weight)
    x, weight = x.to(kind), weight.to(kind)
    with torch.autocast(x.device.type, enabled=False):
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            found: Tensor = _LinearLogProb.apply(x, weight, bias, place)  # type: ignore[no-untyped-call]  # torch's is untyped
            return found
        return -functional.cross_entropy(_logits(x, weight, bias), place, reduction="none")


def _logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    kind = torch.promote_types(weight.dtype, torch.float32)
    if kind == weight.dtype:
        return functional.linear(x, weight, None if bias is None else bias.to(kind))
    logits = functional.linear(x, weight).to(kind)
    return logits if bias is None else logits + bias


class _LinearLogProb(torch.autograd.Function):
    """``dout/dz = onehot - softmax``: with d = softmax - onehot, the gradient of x is ``-(g d) @ weight`` and so on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, place: Tensor) -> Tensor:
        logits, at = _logits(x, weight, bias), place[:, None]
        chosen, top = logits.gather(1, at), logits.amax(1)
        d = logits.softmax(1)
        lse = top - d.amax(1).log()
        d.scatter_add_(1, at, d.new_full((), -1).expand_as(at))
        ctx.save_for_backward(x, weight, d)
        return chosen[:, 0] - lse

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_graph()
        x, weight, d = ctx.saved_tensors
        g, kind = -upstream[0], weight.dtype
        to_x, to_weight, to_bias, _ = ctx.needs_input_grad
        low = d.to(kind)
        return (
            ((low @ weight) * g[:, None]).to(kind) if to_x else None,
            low.T @ (x * g[:, None]).to(kind) if to_weight else None,
            g @ d if to_bias else None,
            None,
        )


def _pieces(group: Tensor, starts: Tensor) -> Iterator[tuple[Tensor, int, int]]:
    """``(rows, first, last)`` of every group that has rows."""
    groups = len(starts) - 1
    order = torch.argsort(group, stable=True)
    counts = torch.bincount(group + 1, minlength=groups + 1).tolist()
    bounds = starts.tolist()
    at = counts[0]
    for number, count in enumerate(counts[1:]):
        if count:
            yield order[at : at + count], bounds[number], bounds[number + 1]
            at += count


@torch.library.custom_op("headlong::grouped_log_prob", mutates_args=())
def _forward(x: Tensor, where: Tensor, weight: Tensor, bias: Tensor, starts: Tensor) -> Tensor:
    """``where [2, N]``: group and place."""
    out = torch.zeros(len(x), dtype=bias.dtype, device=x.device)
    for rows, first, last in _pieces(where[0], starts):
        logits = (x[rows] @ weight[first:last].T).to(bias.dtype) + bias[first:last]
        out[rows] = logits.gather(1, where[1, rows, None])[:, 0] - logits.logsumexp(1)
    return out


@_forward.register_fake
def _(x: Tensor, where: Tensor, weight: Tensor, bias: Tensor, starts: Tensor) -> Tensor:
    return torch.empty(x.shape[0], dtype=bias.dtype, device=x.device)


@torch.library.custom_op("headlong::grouped_log_prob_backward", mutates_args=())
def _backward(
    grad: Tensor, x: Tensor, where: Tensor, weight: Tensor, bias: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias: ``dz = (one-hot - softmax) * grad``."""
    to_x, to_weight, to_bias = torch.zeros_like(x), torch.zeros_like(weight), torch.zeros_like(bias)
    for rows, first, last in _pieces(where[0], starts):
        some, part = x[rows], weight[first:last]
        wide = some.dtype == bias.dtype
        z = torch.addmm(bias[first:last], some, part.T) if wide else (some @ part.T).to(bias.dtype) + bias[first:last]
        back = z.softmax(1).mul_(-grad[rows, None])
        back.scatter_add_(1, where[1, rows, None], grad[rows, None])
        to_bias[first:last] = back.sum(0)
        back = back.to(weight.dtype)
        torch.mm(back.T, some, out=to_weight[first:last])
        to_x[rows] = back @ part
    return to_x, to_weight, to_bias


@_backward.register_fake
def _(
    grad: Tensor, x: Tensor, where: Tensor, weight: Tensor, bias: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    refuse_graph()
    to_x, to_weight, to_bias = torch.ops.headlong.grouped_log_prob_backward(grad, *ctx.saved_tensors)
    return to_x, None, to_weight, to_bias, None


_forward.register_autograd(_gradients, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs))
