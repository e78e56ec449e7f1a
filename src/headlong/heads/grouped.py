"""The log-probability of each row's class within its own group of classes, as one operation::

    x = hidden[n] @ projection.T   (or hidden[n])
    out[n] = log_softmax(x @ weight[first:last].T + bias[first:last])[place[n]]      rows of group g = group[n]: starts[g] ..
    out[n] = 0                                                                      where group[n] is -1

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


def grouped_log_prob(
    hidden: Tensor, group: Tensor, place: Tensor, weight: Tensor, bias: Tensor | None, starts: Tensor,
    projection: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """``[N]`` float32 (float64 for float64 weights). ``hidden [N, dim]``, ``group, place [N]``, ``weight [rows, width]``."""
    kind = product_type(hidden, weight)
    parts = [None if part is None else part.to(kind) for part in (hidden, weight, projection)]
    with torch.autocast(hidden.device.type, enabled=False):
        if len(starts) == 2 and not torch.compiler.is_compiling():
            return _one_group(parts, group, place, bias)
        rest = torch.zeros(len(weight), device=weight.device) if bias is None else bias
        found: Tensor = torch.ops.headlong.grouped_log_prob(
            parts[0], group, place, parts[1], rest.to(torch.promote_types(kind, torch.float32)), starts, parts[2]
        )
    return found


def _one_group(parts: list[Any], group: Tensor, place: Tensor, bias: Tensor | None) -> Tensor:
    """The same for one group: what its gradients need is kept, which is quicker than computing the logits again."""
    hidden, weight, projection = parts
    rows = (group == 0).nonzero()[:, 0]
    some = hidden.index_select(0, rows)
    x = some if projection is None else functional.linear(some, projection)
    found = linear_log_prob(x, weight, bias, place[rows])
    return found.new_zeros(len(hidden)).index_copy(0, rows, found)


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
    if groups == 1:
        rows = (group == 0).nonzero()[:, 0]
        if len(rows):
            yield rows, int(starts[0]), int(starts[1])
        return
    order = torch.argsort(group, stable=True)
    counts = torch.bincount(group + 1, minlength=groups + 1).tolist()
    bounds = starts.tolist()
    at = counts[0]
    for number, count in enumerate(counts[1:]):
        if count:
            yield order[at : at + count], bounds[number], bounds[number + 1]
            at += count


@torch.library.custom_op("headlong::grouped_log_prob", mutates_args=())
def _forward(
    hidden: Tensor, group: Tensor, place: Tensor, weight: Tensor, bias: Tensor, starts: Tensor, projection: Tensor | None
) -> Tensor:
    out = torch.zeros(len(hidden), dtype=bias.dtype, device=hidden.device)
    for rows, first, last in _pieces(group, starts):
        x = hidden[rows]
        x = x if projection is None else x @ projection.T
        logits = (x @ weight[first:last].T).to(bias.dtype) + bias[first:last]
        out[rows] = logits.gather(1, place[rows, None])[:, 0] - logits.logsumexp(1)
    return out


@_forward.register_fake
def _(
    hidden: Tensor, group: Tensor, place: Tensor, weight: Tensor, bias: Tensor, starts: Tensor, projection: Tensor | None
) -> Tensor:
    return torch.empty(hidden.shape[0], dtype=bias.dtype, device=hidden.device)


@torch.library.custom_op("headlong::grouped_log_prob_backward", mutates_args=())
def _backward(
    grad: Tensor, hidden: Tensor, group: Tensor, place: Tensor, weight: Tensor, bias: Tensor, starts: Tensor,
    projection: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of hidden, weight, bias and projection (empty without one): ``dz = (one-hot - softmax) * grad``."""
    to_hidden, to_weight, to_bias = torch.zeros_like(hidden), torch.zeros_like(weight), torch.zeros_like(bias)
    to_projection = weight.new_zeros(0) if projection is None else torch.zeros_like(projection)
    for rows, first, last in _pieces(group, starts):
        inputs = hidden[rows]
        x = inputs if projection is None else inputs @ projection.T
        z = torch.addmm(bias[first:last], x.to(bias.dtype), weight[first:last].T) if x.dtype == bias.dtype else (
            (x @ weight[first:last].T).to(bias.dtype) + bias[first:last]
        )  # fmt: skip
        back = z.softmax(1).mul_(-grad[rows, None])
        back.scatter_add_(1, place[rows, None], grad[rows, None])
        to_bias[first:last] = back.sum(0)
        back = back.to(weight.dtype)
        torch.mm(back.T, x, out=to_weight[first:last])
        to_x = back @ weight[first:last]
        if projection is None:
            to_hidden[rows] = to_x
        else:
            to_projection += to_x.T @ inputs
            to_hidden[rows] = to_x @ projection
    return to_hidden, to_weight, to_bias, to_projection


@_backward.register_fake
def _(
    grad: Tensor, hidden: Tensor, group: Tensor, place: Tensor, weight: Tensor, bias: Tensor, starts: Tensor,
    projection: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    projected = weight.new_empty(0) if projection is None else torch.empty_like(projection)
    return torch.empty_like(hidden), torch.empty_like(weight), torch.empty_like(bias), projected


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    hidden, group, place, weight, bias, starts, projection = inputs
    ctx.save_for_backward(hidden, group, place, weight, bias, starts, *([] if projection is None else [projection]))


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    refuse_graph()
    hidden, group, place, weight, bias, starts, *rest = ctx.saved_tensors
    projection = rest[0] if rest else None
    found = torch.ops.headlong.grouped_log_prob_backward(grad, hidden, group, place, weight, bias, starts, projection)
    to_hidden, to_weight, to_bias, to_projection = found
    return to_hidden, None, None, to_weight, to_bias, None, None if projection is None else to_projection


_forward.register_autograd(_gradients, setup_context=_keep)
