"""A student's loss from teacher files: the k best classes one by one, and all others as one bucket.

    KL = sum over the k best of p (log p - log q) + m (log m - log q_tail)      m, q_tail: teacher's and student's tail mass

which is the Kullback-Leibler divergence of the distributions in which all other classes are one: a lower bound of the whole
divergence, 0 where the student has the teacher's k best and their mass. Without the bucket, a student may put any mass there.
"""

from __future__ import annotations

import torch
from torch import Tensor


def distillation_loss(logits: Tensor, ids: Tensor, teacher_logits: Tensor, tail: Tensor, reduction: str = "mean") -> Tensor:
    """``logits [n, vocab]`` of the student; ``ids``, ``logits [n, k]`` and ``tail [n]`` of a :class:`headlong.teacher.Teacher`.

    ``reduction``  "mean", "sum" or "none" ``[n]``. Gradients reach ``logits`` alone.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is {reduction!r}; choose from mean, sum, none")
    kind = torch.promote_types(logits.dtype, torch.float32)
    there = ids >= 0
    chosen = ids.long().clamp(min=0)
    # The teacher's normaliser over k classes and a tail: what its files round cancels.
    rest = torch.log1p(-tail.to(kind).exp()).detach()
    exponents = teacher_logits.to(kind).masked_fill(~there, -torch.inf)
    log_p = (exponents - exponents.logsumexp(1, keepdim=True) + rest[:, None]).detach()
    log_q = logits.to(kind).log_softmax(1)
    head = log_q.gather(1, chosen)
    others = log_q.scatter(1, torch.where(there, chosen, chosen[:, :1]), -torch.inf)
    bucket = others.logsumexp(1)
    p, m = log_p.exp(), tail.to(kind).exp()
    terms = torch.where(there, p * (log_p - head), 0.0).sum(1)
    empty = torch.isneginf(tail)
    loss = terms + torch.where(empty, 0.0, m * (torch.where(empty, 0.0, tail.to(kind)) - torch.where(empty, 0.0, bucket)))
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()
