"""The hidden hierarchy that doubly sparse experts have to find (Liao et al. 2019).

::

    super_s ~ N(0, 100 I)      class_c ~ N(super, 10 I)      item ~ N(class, I)              100 dimensions, 100 items a class
    net: dropout 0.2 -> linear -> relu -> doubly sparse softmax, trained together; nothing says which super a class is of

Two experts (ten, at 100 x 100) start with every class and divide until there is one for each super-class. ``purity``: the
share of an expert's classes that are of its commonest super-class, mean over experts; ``exact``: experts whose classes are
one super-class, all of it. The full softmax has the same net, steps and optimiser.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from headlong.measure import Progress

if TYPE_CHECKING:
    from torch import Tensor

    from headlong.models.mitosis import Vectors

DIM, ITEMS = 100, 100


class Case(NamedTuple):
    """``supers`` super-classes of ``supers`` classes each, how experts divide, and how long each stage is."""

    supers: int
    start: int
    copies: tuple[int, ...]
    steps: int
    batch: int
    lasso: float


CASES = {"10x10": Case(10, 10, (), 1500, 500, 1e-3), "100x100": Case(100, 10, (10,), 900, 1000, 3e-5)}


def run(case: Case, seed: int, progress: Progress) -> dict[str, float]:
    """One net trained with doubly sparse softmax and one with the full softmax."""
    import torch
    from torch import nn

    from headlong.heads.dense import DenseHead
    from headlong.heads.experts import ExpertsHead
    from headlong.models.mitosis import Growth, grow

    torch.manual_seed(seed)
    train, test = items(case.supers)
    vocab = case.supers**2
    body = net()
    head = ExpertsHead(
        DIM, vocab, experts=case.start, bias=False, load=10.0, lasso=case.lasso, expert_lasso=case.lasso, gamma=0.3,
    )  # fmt: skip
    growth = Growth(case.copies, case.steps, 0, case.batch, 3e-3, 0.3, 20, 100, seed)
    grow(head, train, growth, body, progress=progress)
    body.eval()
    head.eval()
    full_body, full = net(), DenseHead(DIM, vocab, bias=False)
    optimiser = torch.optim.Adam([*full_body.parameters(), *full.parameters()], 3e-3)
    for rows in batches(len(train.target), case.batch, case.steps * (1 + len(case.copies))):
        loss = full(full_body(train.hidden[rows]), train.target[rows]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    full_body.eval()
    with torch.no_grad():
        hidden = body(test.hidden)
        mine = (head.predict(hidden) == test.target).double().mean()
        theirs = (full.predict(full_body(test.hidden)) == test.target).double().mean()
        route = head.route(head.read(hidden))
    pure, exact = purity([ids for _, ids in head.parts()], case.supers)
    used = torch.bincount(route.best, minlength=head.experts).double() / len(hidden)
    flops = vocab / (head.experts + float((used * head.sizes).sum()))
    assert isinstance(body, nn.Module)
    return {
        "purity": round(pure, 4), "exact": exact, "experts": head.experts, "top1": round(float(mine), 4),
        "full_top1": round(float(theirs), 4), "flops": round(flops, 2),
    }  # fmt: skip


def items(supers: int) -> tuple[Vectors, Vectors]:
    """Training and test items in random order; a tenth as many for the test."""
    import torch

    from headlong.models.mitosis import Vectors

    centres = 10 * torch.randn(supers, DIM)
    classes = centres.repeat_interleave(supers, 0) + math.sqrt(10) * torch.randn(supers * supers, DIM)
    target = torch.arange(supers * supers).repeat(ITEMS)
    tests = torch.arange(supers * supers).repeat(ITEMS // 10)
    return (
        Vectors(classes[target] + torch.randn(len(target), DIM), target),
        Vectors(classes[tests] + torch.randn(len(tests), DIM), tests),
    )


def net() -> torch.nn.Module:  # type: ignore[name-defined]  # noqa: F821  # torch is imported inside functions only
    from torch import nn

    return nn.Sequential(nn.Dropout(0.2), nn.Linear(DIM, DIM), nn.ReLU())


def batches(count: int, size: int, steps: int) -> Iterator[Tensor]:
    import torch

    for _ in range(steps):
        yield torch.randint(count, (size,))


def purity(experts: list[Tensor], supers: int) -> tuple[float, int]:
    """Mean share of each expert's commonest super-class; how many experts are exactly one super-class."""
    import torch

    shares, exact = [], 0
    for ids in experts:
        counts = torch.bincount(ids // supers, minlength=supers)
        shares.append(float(counts.max()) / len(ids))
        exact += int(len(ids) == supers and int(counts.max()) == supers)
    return sum(shares) / len(shares), exact
