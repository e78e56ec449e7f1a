"""The hidden hierarchy that doubly sparse experts have to find (Liao et al. 2019).

::

    super_s ~ N(0, 100 I)      class_c ~ N(super, 10 I)      item ~ N(class, I)              100 dimensions, 100 items a class
    net: dropout 0.2 -> linear -> relu -> doubly sparse softmax; nothing says which super a class is of

10 x 10: ten experts start at random with every class in each, and the net learns with them. 100 x 100: the same, and then each
of the ten becomes ten, whose gates are drawn anew around their parent's (a hundred whole experts at once would be a hundred
million weights). An expert that no vector picks becomes half of the busiest one: ``revived`` says how often. ``purity``: the
share of an expert's classes that are of its commonest super-class, mean over experts; ``exact``: experts whose classes are one
super-class, all of it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headlong.bench.measure import Progress
from headlong.heads import ExpertsHead
from studies.models.experts.growth import Growth, Vectors, grow

DIM, ITEMS, RATE = 100, 100, 3e-3


class Case(NamedTuple):
    """``supers`` super-classes of ``supers`` classes each, ``steps`` of training.

    ``copies``: what each expert becomes after ``steps``, for ``last`` more; pruning waits ``settle`` steps of either.
    """

    supers: int
    steps: int
    batch: int
    lasso: float
    copies: int = 1
    last: int = 0
    settle: int = 100


CASES = {"10x10": Case(10, 1500, 500, 1e-3), "100x100": Case(100, 500, 1000, 3e-4, copies=10, last=900, settle=300)}


def run(case: Case, seed: int, progress: Progress) -> dict[str, float]:
    """What one net trained with doubly sparse softmax finds."""
    torch.manual_seed(seed)
    train, test = items(case.supers)
    vocab, divides = case.supers**2, case.copies > 1
    penalties: dict[str, Any] = {"load": 10.0, "lasso": case.lasso, "expert_lasso": case.lasso, "gamma": 0.3}
    body = nn.Sequential(nn.Dropout(0.2), nn.Linear(DIM, DIM), nn.ReLU())
    head = ExpertsHead(DIM, vocab, experts=case.supers // case.copies, bias=False, **penalties)
    growth = Growth(case.steps, case.copies, case.last, case.batch, RATE, 0.3, 20, case.settle, seed, alive=divides)
    revived = grow(head, train, growth, body, progress)
    body.eval()
    head.eval()
    with torch.no_grad():
        hidden = body(test.hidden)
        mine = (head.predict(hidden) == test.target).double().mean()
        best = head.route(head.read(hidden)).best
    pure, exact = purity([ids for _, ids in head.parts()], case.supers)
    used = torch.bincount(best, minlength=head.experts).double() / len(hidden)
    return {
        "purity": round(pure, 4),
        "exact": exact,
        "experts": head.experts,
        "revived": revived,
        "top1": round(float(mine), 4),
        "flops": round(vocab / (head.experts + float((used * head.sizes).sum())), 2),
    }


def items(supers: int) -> tuple[Vectors, Vectors]:
    """Training and test items; a tenth as many for the test."""
    centres = 10 * torch.randn(supers, DIM)
    classes = centres.repeat_interleave(supers, 0) + math.sqrt(10) * torch.randn(supers * supers, DIM)
    targets = [torch.arange(supers * supers).repeat(each) for each in (ITEMS, ITEMS // 10)]
    train, test = (Vectors(classes[target] + torch.randn(len(target), DIM), target) for target in targets)
    return train, test


def purity(experts: list[Tensor], supers: int) -> tuple[float, int]:
    """Mean share of each expert's commonest super-class; how many experts are exactly one super-class."""
    shares, exact = [], 0
    for ids in experts:
        counts = torch.bincount(ids // supers, minlength=supers)
        shares.append(float(counts.max()) / len(ids))
        exact += int(len(ids) == supers and int(counts.max()) == supers)
    return sum(shares) / len(shares), exact
