"""Cross-entropy over classes that are spread over processes: no process ever holds another's weights or logits.

::

    loss = log(sum over ranks of sum_i exp(z_i)) - z_target            mean over rows
    d loss / d z_i = p_i - [i = target], kept by the rank of i          d loss / d hidden: summed over ranks
    mean_c log p_c = (sum over ranks of sum_i z_i) / vocab - lse        what label smoothing adds

Three all-reduces of ``[N]`` numbers forward (largest logit, sum, target's logit), one of ``[N, dim]`` backward, as in
Megatron-LM (Shoeybi et al., 2019, section 3); a fourth for label smoothing. Hidden vectors and targets are the same in every
process. Gradients cannot be differentiated again here: each process has its own part of them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headlong.errors import UnsupportedError
from headlong.heads.base import Head, HeadOutput
from headlong.integrations.distributed import share
from headlong.layers.matrix import Layer


class ShardedHead(Head):
    """The full softmax layer, ``vocab`` classes over the ranks of ``group``; ``weight [mine, dim]`` are this rank's."""

    def __init__(self, dim: int, vocab: int, group: dist.ProcessGroup | None = None, *, bias: bool = True) -> None:
        super().__init__(dim, vocab)
        part = share(vocab, dist.get_rank(group), dist.get_world_size(group))
        self.group, self.start, self.mine = group, part.start, part.stop - part.start
        self.weight = nn.Parameter(torch.empty(self.mine, dim).uniform_(-0.1, 0.1))
        self.bias = nn.Parameter(torch.zeros(self.mine)) if bias else None

    def score(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        logits = self.logits(hidden)
        output = self._of_target(logits, target) - _lse(logits, self.group)
        return HeadOutput(-output.mean(), lambda: output)

    def weighted(self, hidden: Tensor, target: Tensor, smoothing: float, weight: Tensor | None) -> HeadOutput:
        logits = self.logits(hidden)
        lse = _lse(logits, self.group)
        output = self._of_target(logits, target) - lse
        shares = logits.new_ones(self.vocab) if weight is None else weight.to(logits)
        mine = shares[self.start : self.start + self.mine]
        spread = (_total(logits @ mine, self.group) - lse * shares.sum()) / self.vocab
        chosen = shares[target]
        losses = -(1 - smoothing) * chosen * output - smoothing * spread
        return HeadOutput(losses.sum() / chosen.sum(), lambda: output)

    def _of_target(self, logits: Tensor, target: Tensor) -> Tensor:
        """``z_target [N]``, from the rank that has it."""
        place = target - self.start
        mine = (place >= 0) & (place < self.mine)
        found = logits.gather(1, place.clamp(0, self.mine - 1)[:, None])[:, 0]
        return _total(torch.where(mine, found, torch.zeros_like(found)), self.group)

    def logits(self, hidden: Tensor) -> Tensor:
        """``[N, mine]``: this rank's, with the gradient of ``hidden`` summed over ranks."""
        summed: Tensor = _SumGradient.apply(hidden, self.group)  # type: ignore[no-untyped-call]
        return nn.functional.linear(summed, self.weight, self.bias)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """``[N, vocab]`` on every rank, gathered, without a gradient."""
        with torch.no_grad():
            logits, size = self.logits(hidden), dist.get_world_size(self.group)
            full = logits.new_full((len(hidden), -(-self.vocab // size)), -torch.inf)
            full[:, : self.mine] = logits
            parts = [torch.empty_like(full) for _ in range(size)]
            dist.all_gather(parts, full, group=self.group)
            shares = [share(self.vocab, rank, size) for rank in range(size)]
            mine = [part[:, : one.stop - one.start] for part, one in zip(parts, shares, strict=True)]
            return torch.cat(mine, 1).log_softmax(-1)

    def to_layer(self) -> Layer:
        """This rank's rows: what :func:`headlong.integrations.distributed.compile` takes."""
        bias = None if self.bias is None else self.bias.detach().cpu().clone()
        return Layer(self.weight.detach().cpu().clone(), bias)


class _SumGradient(torch.autograd.Function):
    """The identity, whose gradient is summed over the group."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        _refuse_a_second_time()
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _Total(torch.autograd.Function):
    """The sum over the group of what each rank has, of which each keeps its own gradient."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        total = part.detach().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _LogSumExp(torch.autograd.Function):
    """``lse [N]`` of logits ``[N, mine]`` and the rest of them elsewhere."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        most = logits.amax(1)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
        exponents = (logits - most[:, None]).exp()
        total = exponents.sum(1)
        dist.all_reduce(total, group=group)
        ctx.save_for_backward(exponents.div_(total[:, None]))
        return most + total.log()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        _refuse_a_second_time()
        (probability,) = ctx.saved_tensors
        return probability * gradient[:, None], None


def _total(part: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    total: Tensor = _Total.apply(part, group)  # type: ignore[no-untyped-call]  # torch's is untyped
    return total


def _lse(logits: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    lse: Tensor = _LogSumExp.apply(logits, group)  # type: ignore[no-untyped-call]
    return lse


def _refuse_a_second_time() -> None:
    if torch.is_grad_enabled():  # create_graph=True
        raise UnsupportedError(
            "gradients of a ShardedHead were asked for with create_graph=True; they are not differentiated again: each process "
            "has its own part of them. Use a head that one process holds"
        )
