"""The hidden hierarchy that doubly sparse experts have to find (Liao et al. 2019).

::

    super_s ~ N(0, 100 I)      class_c ~ N(super, 10 I)      item ~ N(class, I)              100 dimensions, 100 items a class
    net: dropout 0.2 -> linear -> relu -> doubly sparse softmax; nothing says which super a class is of

10 x 10: ten experts start at random with every class in each, and the net learns with them. 100 x 100: the same, and then each
of the ten becomes ten, whose gates are drawn anew around their parent's (a hundred whole experts at once would be a hundred
million weights). An expert that no vector picks becomes half of the busiest one: ``revived`` says how often. ``purity``: the
share of an expert's classes that are of its commonest super-class, mean over experts; ``routed``: the share of an expert's
vectors that are of its commonest; ``exact``: experts whose classes are one super-class, all of it. The full softmax beside it
has a net of its own, and as many steps; not where experts divide. A training in which they do keeps its stages in
``runs/liao2019/synthetic`` and goes on there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headlong.bench.measure import Progress

if TYPE_CHECKING:
    from torch import Tensor

    from headlong.heads import DenseHead, ExpertsHead
    from studies.models.experts.growth import Vectors

DIM, ITEMS, RATE = 100, 100, 3e-3
RUNS = Path("runs") / "liao2019" / "synthetic"


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


class TrainedNet(NamedTuple):
    """A net and its doubly sparse head as trained, and the items that it was trained and is tested on."""

    body: Any
    head: ExpertsHead
    train: Vectors
    test: Vectors
    revived: int


def trained(case: Case, seed: int, progress: Progress) -> TrainedNet:
    """One net trained with doubly sparse softmax."""
    import torch

    from headlong.heads import ExpertsHead
    from studies.models.experts.growth import Growth, grow

    torch.manual_seed(seed)
    train, test = items(case.supers)
    vocab = case.supers**2
    penalties: dict[str, Any] = {"load": 10.0, "lasso": case.lasso, "expert_lasso": case.lasso, "gamma": 0.3}
    body, head = net(), ExpertsHead(DIM, vocab, experts=case.supers // case.copies, bias=False, **penalties)
    divides = case.copies > 1
    copies = (case.copies,) if divides else ()
    growth = Growth(copies, case.steps, case.last, case.batch, RATE, 0.3, 20, case.settle, seed, alive=divides, drawn=divides)
    folder = RUNS / f"{case.supers}x{case.supers}-{seed}" if divides else None
    revived = grow(head, train, growth, body, folder, progress=progress)
    return TrainedNet(body.eval(), head.eval(), train, test, revived)


def plain(train: Vectors, vocab: int, batch: int, steps: int, progress: Progress) -> tuple[Any, DenseHead]:
    """A net of its own and a full softmax on it."""
    import torch

    from headlong.heads import DenseHead

    body, full = net(), DenseHead(DIM, vocab, bias=False)
    optimiser = torch.optim.Adam([*body.parameters(), *full.parameters()], RATE)
    for step, rows in enumerate(batches(len(train.target), batch, steps)):
        loss = full(body(train.hidden[rows]), train.target[rows]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        progress(step + 1, steps)
    return body.eval(), full


def run(case: Case, seed: int, progress: Progress) -> dict[str, float]:
    """What it finds, and beside it one net trained with the full softmax."""
    import torch

    steps = case.steps + case.last
    whole = steps if case.last else 2 * steps
    body, head, train, test, revived = trained(case, seed, lambda done, _: progress(done, whole))
    vocab = case.supers**2
    with torch.no_grad():
        hidden = body(test.hidden)
        mine = (head.predict(hidden) == test.target).double().mean()
        route = head.route(head.read(hidden))
    pure, exact = purity([ids for _, ids in head.parts()], case.supers)
    used = torch.bincount(route.best, minlength=head.experts).double() / len(hidden)
    flops = vocab / (head.experts + float((used * head.sizes).sum()))
    found = {
        "purity": round(pure, 4),
        "exact": exact,
        "experts": head.experts,
        "revived": revived,
        "top1": round(float(mine), 4),
    }
    if case.last:
        pairs = torch.bincount(route.best * case.supers + test.target // case.supers, minlength=head.experts * case.supers)
        routed = pairs.view(head.experts, case.supers).max(1).values.sum() / len(hidden)
        return {**found, "routed": round(float(routed), 4), "flops": round(flops, 2), "steps": steps}
    full_body, full = plain(train, vocab, case.batch, steps, lambda done, _: progress(steps + done, whole))
    with torch.no_grad():
        theirs = (full.predict(full_body(test.hidden)) == test.target).double().mean()
    return {**found, "full_top1": round(float(theirs), 4), "flops": round(flops, 2)}


def items(supers: int) -> tuple[Vectors, Vectors]:
    """Training and test items in random order; a tenth as many for the test."""
    import torch

    from studies.models.experts.growth import Vectors

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
