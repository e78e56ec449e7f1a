"""A student's loss from teacher files: the k best classes one by one, and all others as one bucket.

    KL = sum over the k best of p (log p - log q) + m (log m - log q_tail)      m, q_tail: teacher's and student's tail mass

which is the Kullback-Leibler divergence of the distributions in which all other classes are one: a lower bound of the whole
divergence, 0 where the student has the teacher's k best and their mass. Without the bucket, a student may put any mass there.

It is summed in float64, a few rows at a time, as ``P KL(p / P, q / Q) + P log(P / Q) + m log(m / q_tail)``, ``P`` and ``Q``
the masses of the k best: the last two terms nearly cancel where the student is near the teacher, so of two masses that add up
to one the smaller decides, and the other's log is ``log1p(-smaller)``. The gradient is ``q - p`` of the k best, and
``q (1 - m / q_tail)`` of all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headlong.heads.base import refuse_graph
from headlong.number_checks import choice

AT_ONCE = 1 << 22
"""Exponentials that are held in float64."""


def distillation_loss(logits: Tensor, ids: Tensor, teacher_logits: Tensor, tail: Tensor, reduction: str = "mean") -> Tensor:
    """``logits [n, vocab]`` of the student; ``ids``, ``logits [n, k]`` and ``tail [n]`` of a :class:`headlong.teacher.Teacher`.

    ``reduction``  "mean", "sum" or "none" ``[n]``. Gradients reach ``logits`` alone.
    """
    choice(reduction, "reduction", ("mean", "sum", "none"))
    loss: Tensor = _Divergence.apply(logits, ids, teacher_logits, tail)  # type: ignore[no-untyped-call]
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, teacher_logits: Tensor, tail: Tensor) -> Tensor:
        there = ids >= 0
        chosen = torch.where(there, ids, ids[:, :1]).long().clamp(min=0)  # ids that pad are last, and are the first's again
        # Where every class is one of the k nothing is behind, whatever rounding says of it.
        behind = tail.double().masked_fill(there.sum(1) == logits.shape[1], -torch.inf)
        p, m = -torch.expm1(behind), behind.exp()
        q, q_tail, lse = (behind.new_empty(len(logits)) for _ in range(3))
        for rows in _pieces(logits):
            z = logits[rows].double()
            top = z.amax(1, keepdim=True)
            mass = (z - top).exp()
            mine, every = mass.gather(1, chosen[rows]), mass.sum(1)
            lse[rows] = top[:, 0] + every.log()
            q[rows] = torch.where(there[rows], mine, 0.0).sum(1) / every
            q_tail[rows] = mass.scatter(1, chosen[rows], torch.where(there[rows, :1], 0.0, mine)).sum(1) / every
        among = [part.double().masked_fill(~there, -torch.inf) for part in (teacher_logits, logits.gather(1, chosen))]
        ours, theirs = (torch.where(there, part.log_softmax(1), -torch.inf) for part in among)
        inside = torch.where(ours > -torch.inf, ours.exp() * (ours - theirs), 0.0).sum(1)
        loss = p * inside + _times(p, _log(p, m) - _log(q, q_tail)) + _times(m, behind - _log(q_tail, q))
        apart = torch.where(q < q_tail, p - q, q_tail - m)  # both are q_tail - m
        others = torch.where(q_tail > 0, apart / q_tail, 1.0)[:, None]
        each = q[:, None] * (theirs.exp() - ours.exp()) - apart[:, None] * ours.exp()
        ctx.save_for_backward(logits, chosen, there[:, :1], torch.where(there, each, each[:, :1]), lse[:, None], others)
        return loss.to(torch.promote_types(logits.dtype, torch.float32))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_graph()
        logits, chosen, any_there, each, lse, others = ctx.saved_tensors
        found = torch.empty_like(logits)
        for rows in _pieces(logits):
            moved = (logits[rows].double() - lse[rows]).exp() * others[rows]
            moved.scatter_(1, chosen[rows], torch.where(any_there[rows], each[rows], moved.gather(1, chosen[rows])))
            found[rows] = (moved * grad[rows, None]).to(logits.dtype)
        return found, None, None, None


def _log(mass: Tensor, other: Tensor) -> Tensor:
    """``log mass``, of two masses that add up to one."""
    return torch.where(mass < other, mass.log(), torch.log1p(-other))


def _times(mass: Tensor, nats: Tensor) -> Tensor:
    """Their product, 0 where there is no mass."""
    return torch.where(mass > 0, mass * nats, 0.0)


def _pieces(logits: Tensor) -> Iterator[slice]:
    step = max(1, AT_ONCE // logits.shape[1])
    return (slice(start, start + step) for start in range(0, len(logits), step))
