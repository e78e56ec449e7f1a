"""Cross-entropy over ``f(z)`` and over mixtures, in pieces: no ``[N, vocab]`` and no ``[N, components, vocab]`` is held::

    ce[n, k]  = lse(f(z[n, k])) - f(z[n, k, target_n])                z[n, k] = weight @ hidden[n, k] + bias
    loss[n]   = ce[n, 0]                                              without a prior
    loss[n]   = -lse_k(log prior[n, k] - ce[n, k])                    with one
    dloss/dz  = r[n, k] (softmax(f(z)) - onehot) f'(z)                r = softmax_k(log prior - ce), the responsibilities
    dloss/dlog prior = -r

A piece of logits is turned into its gradient where it lies, by the native kernels (float32 on the CPU) or by PyTorch
(float64, CUDA, curves that are not lowered). For a mean the gradients are computed on the way forward, from the same
logits; for losses row by row they wait for the upstream gradient and compute the logits again. Derived from Yang et al.
2018, section 4.2 of the mixture; the curve's part is in ``curves.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headlong import native
from headlong.heads.base import HeadOutput, refuse_graph
from headlong.heads.curves import Curve


class Problem(NamedTuple):
    """``hidden [N * components, dim]``, ``weight [vocab, dim]``, ``bias [vocab]`` or None, ``prior [N, components]`` (log) or
    None, ``target [N]``; ``rows`` of logits in a piece; ``kind``: the type that matrix products run in.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    prior: Tensor | None
    target: Tensor
    curve: Curve
    rows: int
    kind: torch.dtype


class Gradients(NamedTuple):
    """The gradients of ``hidden``, ``weight``, ``bias``, ``prior`` and the curve's parameters."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    prior: Tensor | None
    curve: list[Tensor]


def scored(problem: Problem) -> HeadOutput:
    """The mean, and each row's when it is asked for."""
    return HeadOutput(mean_loss(problem), lambda: -row_losses(problem))


def mean_loss(problem: Problem) -> Tensor:
    """The mean over ``N``, with gradients for everything that asks for one; under ``no_grad`` none is computed."""
    if not torch.is_grad_enabled():  # inside a function's forward neither the mode nor needs_input_grad tells
        losses, _ = solve(_plain(problem), None)
        return losses.mean().to(torch.promote_types(problem.weight.dtype, torch.float32))
    parameters = list(problem.curve.parameters())
    return _MeanLoss.apply(*problem[:4], problem, *parameters)  # type: ignore[no-any-return,no-untyped-call]


def row_losses(problem: Problem) -> Tensor:
    """``[N]``."""
    parameters = list(problem.curve.parameters())
    return _RowLosses.apply(*problem[:4], problem, *parameters)  # type: ignore[no-any-return,no-untyped-call]


class _MeanLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        problem: Problem = given[4]
        wanted = any(ctx.needs_input_grad)
        count = len(problem.target)
        upstream = torch.full((count,), 1 / max(1, count), dtype=torch.float64) if wanted else None
        losses, ctx.found = solve(problem, upstream)
        ctx.problem = _plain(problem), upstream
        return losses.mean().to(torch.promote_types(problem.weight.dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_graph()
        found, ctx.found = ctx.found, None  # the only reference: autograd takes the gradients over instead of copying them
        if found is None:  # a second time, for a graph that was retained
            _, found = solve(*ctx.problem)
        assert found is not None
        factor = float(upstream[0])
        parts = _listed(found)
        return tuple(part if part is None or factor == 1.0 else part * factor for part in parts)


class _RowLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        problem: Problem = given[4]
        ctx.problem = _plain(problem), None
        losses, _ = solve(ctx.problem[0], None)
        return losses.to(torch.promote_types(problem.weight.dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_graph()
        _, found = solve(ctx.problem[0], upstream[0].double())
        assert found is not None
        return _listed(found)


def _plain(problem: Problem) -> Problem:
    """The problem apart from the graph that its tensors came from."""
    bias, prior = (None if tensor is None else tensor.detach() for tensor in (problem.bias, problem.prior))
    return problem._replace(hidden=problem.hidden.detach(), weight=problem.weight.detach(), bias=bias, prior=prior)


def _listed(found: Gradients) -> tuple[Tensor | None, ...]:
    return (found.hidden, found.weight, found.bias, found.prior, None, *found.curve)


def solve(problem: Problem, upstream: Tensor | None) -> tuple[Tensor, Gradients | None]:
    """Losses ``[N]`` in float64 and, where ``upstream [N]`` says what each counts, the gradients of their sum."""
    with torch.no_grad():
        found = None if upstream is None else _zeros(problem)
        pieces = _Pieces(problem)
        losses = [_piece(problem, pieces, part, upstream, found) for part in _parts(problem)]
        kinds = [parameter.dtype for parameter in problem.curve.parameters()]
        if found is not None:
            found = found._replace(curve=[grad.to(kind) for grad, kind in zip(found.curve, kinds, strict=True)])
        return torch.cat(losses) if losses else torch.zeros(0, dtype=torch.float64), found


def _zeros(problem: Problem) -> Gradients:
    def zeros(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else torch.zeros_like(tensor)

    curve = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in problem.curve.parameters()]
    weight = torch.zeros_like(problem.weight)
    return Gradients(torch.empty_like(problem.hidden), weight, zeros(problem.bias), zeros(problem.prior), curve)


def _parts(problem: Problem) -> Iterator[slice]:
    """Some of the ``N`` at a time, all components of each together."""
    components = 1 if problem.prior is None else problem.prior.shape[1]
    step = max(1, problem.rows // components) if problem.rows else max(1, len(problem.target))
    return (slice(start, start + step) for start in range(0, len(problem.target), step))


def _piece(problem: Problem, pieces: _Pieces, part: slice, upstream: Tensor | None, found: Gradients | None) -> Tensor:
    prior, target = problem.prior, problem.target[part]
    components = 1 if prior is None else prior.shape[1]
    rows = slice(part.start * components, part.stop * components)
    hidden = problem.hidden[rows].to(problem.kind)
    repeated = target.repeat_interleave(components)
    ce = pieces.losses(hidden, repeated).view(-1, components)
    if prior is None:
        losses, share = ce[:, 0], torch.ones_like(ce)
    else:
        joint = prior[part].double() - ce
        losses, share = -joint.logsumexp(1), joint.softmax(1)
    if found is not None:
        assert upstream is not None
        share = share * upstream[part, None]
        grad, curve = pieces.gradients(repeated, share.flatten())
        pieces.spread(grad, hidden, rows, found)
        if found.prior is not None:
            found.prior[part] = -share.to(found.prior.dtype)
        for total, more in zip(found.curve, curve, strict=True):
            total += more
    return losses


class _Pieces:
    """The logits of one piece after the other, in one buffer."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.weight = problem.weight.detach().to(problem.kind)
        self.bias = None if problem.bias is None else problem.bias.detach().to(problem.kind)
        self.lowered = problem.curve.lowered() if self._is_native() else None
        self.buffer = self.weight.new_empty(0)
        self.wide = self.buffer
        self.logits = self.buffer
        self.lse = self.ce = self.logits

    def _is_native(self) -> bool:
        if self.problem.weight.device.type != "cpu" or self.problem.weight.dtype == torch.float64:
            return False
        return native.isa() != native.REFERENCE

    def losses(self, hidden: Tensor, target: Tensor) -> Tensor:
        """``ce [rows]`` in float64; the logits stay for :meth:`gradients`."""
        shape = (len(hidden), len(self.weight))
        if self.buffer.shape != shape:
            self.buffer = self.weight.new_empty(shape)
        if self.bias is None:
            torch.mm(hidden, self.weight.t(), out=self.buffer)
        else:
            torch.addmm(self.bias, hidden, self.weight.t(), out=self.buffer)
        self.logits = self.buffer
        if self.buffer.dtype not in (torch.float32, torch.float64):
            if self.wide.shape != shape:
                self.wide = torch.empty(shape, dtype=torch.float32, device=self.buffer.device)
            self.logits = self.wide.copy_(self.buffer)
        if self.lowered is not None:
            lse, at_target = native.link_losses(self.logits.numpy(), target.numpy(), self.lowered, torch.get_num_threads())
            self.lse = torch.from_numpy(lse)
            return self.lse - torch.from_numpy(at_target)
        with torch.enable_grad():
            self.logits.requires_grad_()
            f = self.problem.curve(self.logits)
            self.ce = (f.logsumexp(1) - f.gather(1, target[:, None])[:, 0]).double()
        return self.ce.detach()

    def gradients(self, target: Tensor, scale: Tensor) -> tuple[Tensor, list[Tensor]]:
        """``sum scale * ce``'s gradients: of the logits, in their own place, and of the curve's parameters."""
        if self.lowered is not None:
            given = self.logits.numpy(), target.numpy(), self.lse.numpy(), scale.float().numpy()
            sums = native.link_gradients(*given, self.lowered, torch.get_num_threads())
            return self.logits, list(self.problem.curve.gradients(torch.from_numpy(sums)))
        parameters = list(self.problem.curve.parameters())
        asked = [self.logits, *(one for one in parameters if one.requires_grad)]
        first, *rest = torch.autograd.grad(self.ce, asked, scale)
        self.logits = self.logits.detach()
        self.buffer = self.buffer.detach()
        self.wide = self.wide.detach()
        found = iter(rest)
        return first, [next(found).double() if one.requires_grad else torch.zeros_like(one).double() for one in parameters]

    def spread(self, grad: Tensor, hidden: Tensor, rows: slice, found: Gradients) -> None:
        """From the gradient of a piece's logits to those of what they were made of."""
        if found.bias is not None:
            found.bias.add_(grad.sum(0))
        low = grad if grad.dtype == self.weight.dtype else self.buffer.copy_(grad)
        found.hidden[rows] = torch.mm(low, self.weight).to(found.hidden.dtype)
        if low.dtype == found.weight.dtype:
            found.weight.addmm_(low.t(), hidden)
        else:
            found.weight.add_(torch.mm(low.t(), hidden))
