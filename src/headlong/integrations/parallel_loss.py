"""Cross-entropy over classes that are spread over processes: no process ever holds another's weights or logits.

::

    loss = log(sum over ranks of sum_i exp(z_i)) - z_target            mean over rows
    d loss / d z_i = p_i - [i = target], kept by the rank of i          d loss / d hidden: summed over ranks

Three all-reduces of ``[N]`` numbers forward (largest logit, sum, target's logit), one of ``[N, dim]`` backward, as in
Megatron-LM (Shoeybi et al., 2019, section 3). Hidden vectors and targets are the same in every process.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headlong.heads.base import Head, HeadOutput
from headlong.integrations.distributed import share
from headlong.layers.matrix import Layer


class ShardedHead(Head):
    """The full softmax layer, ``vocab`` classes over the ranks of ``group``; ``weight [mine, dim]`` are this rank's."""

    def __init__(self, dim: int, vocab: int, group: Any = None, *, bias: bool = True) -> None:
        super().__init__(dim, vocab)
        part = share(vocab, dist.get_rank(group), dist.get_world_size(group))
        self.group, self.start, self.mine = group, part.start, part.stop - part.start
        self.weight = nn.Parameter(torch.empty(self.mine, dim).uniform_(-0.1, 0.1))
        self.bias = nn.Parameter(torch.zeros(self.mine)) if bias else None

    def score(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        output: Tensor = _TargetLogProb.apply(self.logits(hidden), target - self.start, self.group)  # type: ignore[no-untyped-call]
        return HeadOutput(-output.mean(), lambda: output)

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
    def forward(ctx: Any, hidden: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _TargetLogProb(torch.autograd.Function):
    """``log p[target]`` of logits ``[N, mine]`` and the rest of them elsewhere; ``target`` counts from this rank's first."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, group: Any) -> Tensor:
        most = logits.amax(1)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
        exponents = (logits - most[:, None]).exp()
        total = exponents.sum(1)
        dist.all_reduce(total, group=group)
        mine = (target >= 0) & (target < logits.shape[1])
        place = target.clamp(0, logits.shape[1] - 1)[:, None]
        chosen = torch.where(mine, logits.gather(1, place)[:, 0], torch.zeros_like(most))
        dist.all_reduce(chosen, group=group)
        ctx.save_for_backward(exponents / total[:, None], place, mine)
        return chosen - most - total.log()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        probability, place, mine = ctx.saved_tensors
        change = -probability * gradient[:, None]
        change.scatter_add_(1, place, torch.where(mine, gradient, torch.zeros_like(gradient))[:, None])
        return change, None, None
