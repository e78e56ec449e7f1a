"""Training of a doubly sparse head: train and prune, and where it is asked for divide every expert, and train and prune again::

    every growth.prune steps: revive experts that no vector picks, take out short rows

The first stage has few experts with all classes; when there are many they know few each, so memory and time stay near
those of one full softmax. Optimiser moments follow their rows through pruning. The hidden vectors may come through a
``body`` that is trained as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headlong.bench.measure import Progress
from headlong.errors import OptionError
from headlong.heads import ExpertsHead
from headlong.heads.expert_pruning import follow, mitosis, prune, revive

SAMPLE = 20_000
"""Vectors that gates are placed by."""
ABSENT = -100


def place_of(ids: Tensor, target: Tensor) -> Tensor:
    """Where each target stands in ascending ``ids``; ABSENT where it does not."""
    place = torch.searchsorted(ids, target).clamp_max(len(ids) - 1)
    return torch.where(ids[place] == target, place, ABSENT)


@dataclass(frozen=True)
class Growth:
    """``steps``    of the first stage
    ``copies``   how many children each expert has after it (1: there is no other stage), and ``last``: steps with them
    ``prune``    steps between prunings, which begin once a stage has done ``settle`` steps
    ``alive``    revive experts that no vector picks from a stage's first steps on, not only once pruning has begun
    ``rate``     of Adam, falling along a cosine to ``end`` times it over each stage
    """

    steps: int
    copies: int = 1
    last: int = 0
    batch: int = 1024
    rate: float = 3e-3
    end: float = 0.1
    prune: int = 100
    settle: int = 100
    seed: int = 0
    alive: bool = False


class Vectors(NamedTuple):
    """``hidden [n, dim]`` of any float type, ``target [n]``."""

    hidden: Tensor
    target: Tensor

    def sample(self, count: int) -> Tensor:
        """``count`` rows, evenly spread."""
        return self.hidden[:: self._apart(count)].float()

    def targets(self, count: int) -> Tensor:
        """Of the same rows."""
        return self.target[:: self._apart(count)]

    def _apart(self, count: int) -> int:
        return max(1, -(-len(self.hidden) // count))


def grow(
    head: ExpertsHead, vectors: Vectors, growth: Growth, body: nn.Module | None = None, progress: Progress | None = None
) -> int:
    """Train ``head`` (and ``body``) through its stages; how often an expert that no vector picked was revived."""
    final = head.experts * growth.copies
    if final > head.vocab:
        raise OptionError(f"copies={growth.copies} make {final} experts for {head.vocab} classes; expected as many at most")
    body = nn.Identity() if body is None else body
    done = revived = 0
    for stage, steps in enumerate((growth.steps, growth.last)[: 1 + (growth.copies > 1)]):
        torch.manual_seed(growth.seed * 1000 + stage)
        if stage:
            scattered(head, growth.copies, _through(body, vectors.sample(SAMPLE)))
        for step, count in enumerate(_stage(head, body, vectors, growth, steps), 1):
            revived += count
            if progress is not None:
                progress(done + step, growth.steps + growth.last)
        done += steps
    return revived


def _stage(head: ExpertsHead, body: nn.Module, vectors: Vectors, growth: Growth, steps: int) -> Iterator[int]:
    """After each step: how many experts it revived."""
    optimiser = torch.optim.Adam([*body.parameters(), *head.parameters()], growth.rate)
    batches = _batches(len(vectors.target), growth.batch)
    for step in range(1, steps + 1):
        for group in optimiser.param_groups:
            group["lr"] = growth.rate * (growth.end + (1 - growth.end) * 0.5 * (1 + math.cos(math.pi * step / steps)))
        head.train()
        body.train()
        rows = next(batches)
        loss = head(body(vectors.hidden[rows].float()), vectors.target[rows]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        settled, revived = step >= growth.settle, 0
        if step % growth.prune == 0 or step == steps:
            if step < steps and (settled or growth.alive):
                hidden = _through(body, vectors.sample(SAMPLE))
                revived = unpicked(head, hidden)
                changed(head, optimiser, partial(revive, head, hidden))
            if settled:
                changed(head, optimiser, partial(prune, head))
        yield revived


@torch.no_grad()
def scattered(head: ExpertsHead, copies: int, hidden: Tensor) -> Tensor:
    """Mitosis by chance: each child's gate is its parent's and a new one, drawn as a first one is; the logits keep their scale.

    Nothing is clustered, so what the children come to share out is learned.
    """
    x = head.read(hidden)
    before, parents = head.route(x).value.mean(), head.gate.detach().repeat_interleave(copies, 0)
    rows = mitosis(head, copies)
    drawn = nn.init.kaiming_uniform_(torch.empty_like(parents), a=math.sqrt(5))
    head.gate.copy_(parents + drawn)
    head.weight.mul_(before / head.route(x).value.mean())
    return rows


@torch.no_grad()
def unpicked(head: ExpertsHead, hidden: Tensor, share: float = 0.01) -> int:
    """How many experts get less than ``share`` of an even load of ``hidden``: those that ``revive`` starts anew."""
    loads = torch.bincount(head.route(head.read(hidden)).best, minlength=head.experts)
    return int((loads < share * len(hidden) / head.experts).sum())


def changed(head: ExpertsHead, optimiser: torch.optim.Optimizer, change: Callable[[], Tensor | None]) -> None:
    """``change`` the head; the optimiser follows the rows that are left, and starts afresh on new gates."""
    head.eval()
    before = dict(head.named_parameters())
    rows = change()
    for name, after in head.named_parameters():
        if rows is not None and after is not before[name]:
            if name != "weight":
                optimiser.state.pop(before[name], None)
            follow(optimiser, before[name], after, rows)


def _batches(count: int, batch: int) -> Iterator[Tensor]:
    while True:
        order = torch.randperm(count)
        yield from torch.split(order, batch)


@torch.no_grad()
def _through(body: nn.Module, hidden: Tensor) -> Tensor:
    body.eval()
    out: Tensor = body(hidden)
    return out
