"""Training of a doubly sparse head: stages of training and pruning, and between them every expert divides::

    for copies in (1, *growth.copies):   divide;   train growth.steps;   every growth.prune steps: revive, prune

The first stage has few experts with all classes; when there are many they know few each, so memory and time stay near
those of one full softmax. Optimiser moments follow their rows through pruning. The hidden vectors may come through a
``body`` that is trained as well. A stage that is done is kept in ``folder`` and not run again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headlong.bench.measure import Progress
from headlong.errors import OptionError
from headlong.heads import ExpertsHead
from headlong.heads.expert_pruning import follow, mitosis, prune, revive
from headlong.store import open_file, write_file

SAMPLE = 20_000
"""Vectors that gates are placed by."""
ABSENT = -100


def place_of(ids: Tensor, target: Tensor) -> Tensor:
    """Where each target stands in ascending ``ids``; ABSENT where it does not."""
    place = torch.searchsorted(ids, target).clamp_max(len(ids) - 1)
    return torch.where(ids[place] == target, place, ABSENT)


@dataclass(frozen=True)
class Growth:
    """``copies``   how many children each expert has after a stage; ``(2, 2)``: three stages of K, 2K and 4K experts
    ``steps``    of each stage; ``last``: of the last one (0: the same)
    ``prune``    steps between prunings, which begin once a stage has done ``settle`` steps
    ``alive``    revive experts that no vector picks from a stage's first steps on, not only once pruning has begun
    ``drawn``    gates of children are their parent's and new random ones, not placed along the means of its vectors
    ``rate``     of Adam, falling along a cosine to ``end`` times it over each stage
    ``unseen``   allow classes that no target names
    """

    copies: tuple[int, ...] = (2, 2, 2, 2, 2)
    steps: int = 1000
    last: int = 0
    batch: int = 1024
    rate: float = 3e-3
    end: float = 0.1
    prune: int = 100
    settle: int = 100
    seed: int = 0
    unseen: bool = False
    alive: bool = False
    drawn: bool = False


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


Report = Callable[[int, ExpertsHead], None]


def grow(
    head: ExpertsHead,
    vectors: Vectors,
    growth: Growth,
    body: nn.Module | None = None,
    folder: Path | None = None,
    report: Report | None = None,
    progress: Progress | None = None,
) -> int:
    """Train ``head`` (and ``body``) through all stages; how often an expert that no vector picked was revived.

    ``report(stage, head)`` is called at the end of each stage.
    """
    _check(head, vectors, growth)
    body = nn.Identity() if body is None else body
    done = revived = 0
    for stage, copies in enumerate((1, *growth.copies)):
        file = None if folder is None else folder / f"stage{stage}.safetensors"
        if file is not None and file.is_file():
            revived += _restore(file, head, body)
        else:
            mine = 0
            torch.manual_seed(growth.seed * 1000 + stage)
            if copies > 1:
                (scattered if growth.drawn else mitosis)(head, copies, _through(body, vectors.sample(SAMPLE)))
            steps = growth.last if growth.last and stage == len(growth.copies) else growth.steps
            for step, count in enumerate(_stage(head, body, vectors, growth, steps), 1):
                mine += count
                if progress is not None:
                    progress(done + step, _total(growth))
            if file is not None:
                _keep(file, head, body, mine)
            revived += mine
        done += growth.steps
        if report is not None:
            report(stage, head)
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


def _total(growth: Growth) -> int:
    return growth.steps * len(growth.copies) + (growth.last or growth.steps)


def _keep(file: Path, head: ExpertsHead, body: nn.Module, revived: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    both = nn.ModuleDict({"head": head, "body": body})
    write_file(file, {name: value.detach().numpy() for name, value in both.state_dict().items()}, {"revived": str(revived)})


def _restore(file: Path, head: ExpertsHead, body: nn.Module) -> int:
    opened = open_file(file)
    both = nn.ModuleDict({"head": head, "body": body})
    both.load_state_dict({name: torch.from_numpy(opened.read(name).copy()) for name in opened.tensors})
    return int(opened.metadata["revived"])


def _check(head: ExpertsHead, vectors: Vectors, growth: Growth) -> None:
    final = head.experts * math.prod(growth.copies)
    if final > head.vocab or any(copies < 2 for copies in growth.copies):
        raise OptionError(
            f"copies={growth.copies} make {final} experts for {head.vocab} classes; expected copies of 2 or more and no more "
            "experts than classes"
        )
    if min(growth.steps, growth.batch, growth.prune) < 1:
        raise OptionError(f"{growth}; expected steps, batch and prune of 1 or more")
    absent = torch.bincount(vectors.target, minlength=head.vocab) == 0
    if not growth.unseen and bool(absent.any()):
        raise OptionError(
            f"{int(absent.sum())} classes, {int(absent.nonzero()[0])} the first, are never a target in training, so they would "
            "be pruned without a trial; give more training vectors, or Growth(unseen=True) to go on"
        )
