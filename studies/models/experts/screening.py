"""Rows that the lasso sets to zero, found without waiting for steps to get there::

    G_c  =  E[ g x / Z ]  -  E[ g x  where c is the target ]        the gradient of the loss at w_c = 0
    row c leaves its expert where  ‖G_c‖ <= lasso

Where that holds, ``w_c = 0`` is the minimum of ``loss + lasso ‖w_c‖`` while every other row stays. So this is a step of block
coordinate descent on the same objective, and the end of the proximal steps of ``proximal.py``. Those shrink a row by the same
small length each time, which takes long for the rows of rare classes in a layer that Adam has trained: they are long. The
expectation over targets is taken over all training vectors; a mini-batch has no target at all of most classes. Left out: the
expert's ``Z``, on a sample, still has the row's own share ``exp(z_c)``, which for a row that may leave is small.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headlong.heads import ExpertsHead
from studies.models.experts.growth import ABSENT, SAMPLE, Vectors, place_of

PIECE = 1 << 16
AT_ONCE = 1 << 24
"""Logits of one piece."""


@torch.no_grad()
def screened(head: ExpertsHead, vectors: Vectors, lasso: float) -> Tensor:
    """Take out the rows whose zero is the minimum; the rows that stayed, ``[left]``. An expert keeps its most wanted row."""
    wanted = gradient_at_zero(head, vectors).norm(dim=1)
    alive = wanted > lasso
    for start, size in zip((head.sizes.cumsum(0) - head.sizes).tolist(), head.sizes.tolist(), strict=True):
        alive[start + int(wanted[start : start + size].argmax())] = True
    rows: Tensor = alive.nonzero()[:, 0]
    sizes = torch.stack([part.sum() for part in torch.split(alive, head.sizes.tolist())])
    head.replace(head.weight[rows], head.ids[rows], sizes)
    return rows


@torch.no_grad()
def gradient_at_zero(head: ExpertsHead, vectors: Vectors) -> Tensor:
    """``G [rows, width]``."""
    mean = _of_probabilities(head, vectors.sample(SAMPLE // 4), vectors.targets(SAMPLE // 4))
    return mean[torch.repeat_interleave(head.sizes)] - _of_targets(head, vectors)


def _of_targets(head: ExpertsHead, vectors: Vectors) -> Tensor:
    """``E[g x where c is the target] [rows, width]``, over all vectors."""
    total = torch.zeros_like(head.weight)
    starts = (head.sizes.cumsum(0) - head.sizes).tolist()
    for hidden, target in zip(torch.split(vectors.hidden, PIECE), torch.split(vectors.target, PIECE), strict=True):
        x = head.read(hidden.float())
        route = head.route(x)
        for start, (_, ids), mine in zip(starts, head.parts(), route.rows, strict=True):
            place = place_of(ids, target[mine])
            has = place != ABSENT
            mine = mine[has]
            total.index_add_(0, start + place[has], x[mine] * route.value[mine, None])
    return total / len(vectors.target)


def _of_probabilities(head: ExpertsHead, hidden: Tensor, target: Tensor) -> Tensor:
    """``E[g x / Z] [experts, width]``, a logit of zero times x, over the vectors whose target the expert has."""
    x = head.read(hidden)
    route, found = head.route(x), []
    for (weight, ids), rows in zip(head.parts(), route.rows, strict=True):
        mine, total = rows[place_of(ids, target[rows]) != ABSENT], x.new_zeros(x.shape[1])
        for some in torch.split(mine, max(16, AT_ONCE // len(ids))):
            scaled = x[some] * route.value[some, None]
            total += (-(scaled @ weight.T).logsumexp(1)).exp() @ scaled
        found.append(total / len(x))
    return torch.stack(found)
