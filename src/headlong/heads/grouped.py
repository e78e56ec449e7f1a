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


def grouped_log_prob(
    hidden: Tensor, group: Tensor, place: Tensor, weight: Tensor, bias: Tensor, starts: Tensor, projection: Tensor | None = None
) -> Tensor:
    """``[N]`` float32 (float64 for float64 weights). ``hidden [N, dim]``, ``group, place [N]``, ``weight [rows, width]``."""
    device = hidden.device.type
    kind = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    parts = [None if part is None else part.to(kind) for part in (hidden, weight, projection)]
    with torch.autocast(device, enabled=False):
        if len(starts) == 2 and not torch.compiler.is_compiling():
            return _one_group(parts, group, place, bias.to(wide(kind)))
        found: Tensor = torch.ops.headlong.grouped_log_prob(
            parts[0], group, place, parts[1], bias.to(wide(kind)), starts, parts[2]
        )
    return found


def _one_group(parts: list[Any], group: Tensor, place: Tensor, bias: Tensor) -> Tensor:
    """The same for one group by PyTorch's own gradients: its logits are kept, which is quicker than computing them again."""
    hidden, weight, projection = parts
    rows = (group == 0).nonzero()[:, 0]
    x = hidden[rows] if projection is None else functional.linear(hidden[rows], projection)
    same = weight.dtype == bias.dtype
    logits = functional.linear(x, weight, bias) if same else functional.linear(x, weight).to(bias.dtype) + bias
    found = -functional.cross_entropy(logits, place[rows], reduction="none")
    return bias.new_zeros(len(hidden)).index_copy(0, rows, found)


def wide(kind: torch.dtype) -> torch.dtype:
    """The type that sums and exponentials are taken in."""
    return torch.float64 if kind == torch.float64 else torch.float32


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
    hidden, group, place, weight, bias, starts, *rest = ctx.saved_tensors
    projection = rest[0] if rest else None
    found = torch.ops.headlong.grouped_log_prob_backward(grad, hidden, group, place, weight, bias, starts, projection)
    to_hidden, to_weight, to_bias, to_projection = found
    return to_hidden, None, None, to_weight, to_bias, None, None if projection is None else to_projection


_forward.register_autograd(_gradients, setup_context=_keep)
