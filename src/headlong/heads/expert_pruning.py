"""How doubly sparse experts get their classes: pruned, divided, revived, or seeded from a trained layer.

::

    prune      a row with ‖W^k_c‖ < gamma leaves its expert
    mitosis    every expert becomes several; sparse before it is copied, so 64 experts fit where 64 full ones would not
    revive     an expert that no row picks becomes half of the busiest one
    seeded     gates at spherical means; each expert gets the classes that its vectors expect most

Each that changes the packed rows returns which old row each new one is, so that an optimiser can ``follow``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from headlong.errors import OptionError
from headlong.heads.experts import ExpertsHead
from headlong.heads.gate_starts import split

AT_ONCE = 1 << 23
"""Probabilities of one piece of :func:`expected_counts`."""


@torch.no_grad()
def prune(head: ExpertsHead, orphans: str = "keep") -> Tensor:
    """Take out the rows shorter than ``head.gamma``; the rows that stayed, ``[left]``.

    ``orphans``  a class that would be in no expert: "keep" its longest row, "error", or "allow"
    """
    if orphans not in ("keep", "error", "allow"):
        raise OptionError(f"orphans={orphans!r}; expected 'keep', 'error' or 'allow'")
    norms = head.weight.norm(dim=1) / (math.sqrt(head.weight.shape[1]) if head.units == "rms" else 1.0)
    alive = norms >= head.gamma
    lost = torch.bincount(head.ids[alive], minlength=head.vocab) == 0
    lost &= torch.bincount(head.ids, minlength=head.vocab) > 0
    if orphans == "error" and bool(lost.any()):
        raise OptionError(
            f"{int(lost.sum())} classes, {int(lost.nonzero()[0])} the first, would be in no expert: they are too rare in "
            "training (or never in it) for this lasso and gamma; lower them, or pass orphans='keep' or 'allow'"
        )
    if orphans == "keep":
        order = norms.argsort()
        longest = torch.zeros_like(lost, dtype=torch.int64)
        longest[head.ids[order]] = order  # the last one written is the longest
        alive[longest[lost]] = True
    sizes = torch.stack([part.sum() for part in torch.split(alive, head.sizes.tolist())])
    if bool((sizes == 0).any()):
        raise OptionError(
            f"expert {int((sizes == 0).nonzero()[0])} would be left without a class: the gate hardly ever picks it, or "
            f"gamma={head.gamma:g} ({head.units}) is too large; raise load, or lower lasso or gamma"
        )
    rows: Tensor = alive.nonzero()[:, 0]
    head.replace(head.weight[rows], head.ids[rows], sizes)
    return rows


@torch.no_grad()
def mitosis(head: ExpertsHead, copies: int = 2, hidden: Tensor | None = None) -> Tensor:
    """Every expert becomes ``copies`` neighbours: child j of expert i is expert ``i * copies + j``.

    With ``hidden`` [n, dim] each parent's gate is split along the spherical means of the vectors that it gets; without,
    its copies differ by noise.
    """
    if copies < 2 or head.experts * copies > head.vocab:
        raise OptionError(
            f"mitosis of {head.experts} experts by {copies}; expected copies of 2 or more and at most {head.vocab} experts"
        )
    parents = [expert for expert in range(head.experts) for _ in range(copies)]
    if hidden is None:
        gate = head.gate.repeat_interleave(copies, 0)
        return _descend(head, parents, gate + 0.1 * gate.std() * torch.randn_like(gate), torch.ones(len(parents)))
    x = head.read(hidden)
    children = [split(gate, x[rows], copies) for gate, rows in zip(head.gate, head.route(x).rows, strict=True)]
    gains = torch.tensor([gain for _, gain in children]).repeat_interleave(copies)
    return _descend(head, parents, torch.cat([gate for gate, _ in children]), gains)


@torch.no_grad()
def revive(head: ExpertsHead, hidden: Tensor, share: float = 0.01) -> Tensor | None:
    """An expert that gets less than ``share`` of an even load is dead: it becomes half of the busiest expert.

    The load penalty cannot do this: an expert that no row picks has no gradient. None where all live.
    """
    x = head.read(hidden)
    parents, gate, gains = list(range(head.experts)), head.gate.clone(), torch.ones(head.experts)
    rows = list(head.route(x).rows)
    dead = [expert for expert, mine in enumerate(rows) if len(mine) < share * len(x) / head.experts]
    for expert in dead:
        busiest = max(range(head.experts), key=lambda other: len(rows[other]))
        pair, gain = split(gate[busiest], x[rows[busiest]], 2)
        gate[busiest], gate[expert] = pair
        parents[expert], gains[[busiest, expert]] = parents[busiest], gains[busiest] * gain
        second = x[rows[busiest]] @ (pair[1] - pair[0]) > 0
        rows[expert], rows[busiest] = rows[busiest][second], rows[busiest][~second]
    return _descend(head, parents, gate, gains) if dead else None


def _descend(head: ExpertsHead, parents: list[int], gate: Tensor, gains: Tensor) -> Tensor:
    """New experts, each with the rows of its parent times its gain."""
    starts = (head.sizes.cumsum(0) - head.sizes).tolist()
    sizes = head.sizes[parents]
    rows = torch.cat([torch.arange(starts[p], starts[p] + int(head.sizes[p])) for p in parents]).to(head.ids.device)
    if head.noise is not None:
        head.noise = nn.Parameter(head.noise[parents])
    grown = head.weight[rows] * gains.to(head.weight).repeat_interleave(sizes)[:, None]
    head.replace(grown, head.ids[rows], sizes, gate)
    return rows


@torch.no_grad()
def seeded(
    weight: Tensor, bias: Tensor, hidden: Tensor, experts: int, rows: int, trials: int = 1, **options: Any
) -> ExpertsHead:
    """A head from a trained layer ``weight [vocab, dim]``, ``bias [vocab]`` and hidden vectors ``[n, dim]``.

    ``rows``  of all experts together, at least ``vocab``: each class goes where it is expected most, then each expert
    gets the classes that its vectors expect most often, by one threshold for all: memory is bounded before training
    ``trials``  starts drawn for each gate: some thirty find groups that are there, where one may take a group for two
    """
    vocab, dim = weight.shape
    if not vocab <= rows <= experts * vocab:
        raise OptionError(f"rows={rows}; expected {vocab:,} (each class once) to {experts * vocab:,} (every expert has all)")
    head = ExpertsHead(dim, vocab, experts=1, bias=True, **options)
    if not 1 <= experts <= vocab:
        raise OptionError(f"experts={experts} for {vocab:,} classes; expected 1 to {vocab:,}: an expert has a class or more")
    dense = torch.cat([weight, bias[:, None]], 1)
    x = head.read(hidden)
    gate, gain = split(torch.zeros_like(head.gate[0]), x, experts, trials)
    best = (x @ gate.T).argmax(-1)
    counts = expected_counts(dense, x, best, experts)
    rates = counts / torch.bincount(best, minlength=experts).clamp_min(1)[:, None]
    chosen = torch.zeros_like(counts, dtype=torch.bool)
    chosen[counts.argmax(0), torch.arange(vocab)] = True
    chosen[torch.arange(experts), counts.argmax(1)] = True
    rest = rates.masked_fill(chosen, -1.0).flatten().topk(max(0, rows - int(chosen.sum()))).indices
    chosen.view(-1)[rest] = True
    ids = torch.cat([row.nonzero()[:, 0] for row in chosen])
    head.replace(dense[ids] * gain, ids, chosen.sum(1), gate)
    if head.noise is not None:
        head.noise = nn.Parameter(torch.zeros_like(gate))
    return head


def expected_counts(dense: Tensor, x: Tensor, best: Tensor, experts: int) -> Tensor:
    """``[experts, vocab]``: how often the trained layer expects each class among the vectors that each expert gets."""
    counts = dense.new_zeros(experts, len(dense))
    step = max(1, AT_ONCE // len(dense))
    for some, mine in zip(torch.split(x, step), torch.split(best, step), strict=True):
        counts.index_add_(0, mine, (some @ dense.T).softmax(-1))
    return counts


def follow(optimiser: torch.optim.Optimizer, before: nn.Parameter, after: nn.Parameter, rows: Tensor) -> None:
    """``after`` takes the place of ``before`` in the optimiser, with its moments of ``rows``."""
    for group in optimiser.param_groups:
        group["params"] = [after if part is before else part for part in group["params"]]
    state = optimiser.state.pop(before, {})
    moved = {name: value[rows] if torch.is_tensor(value) and value.dim() else value for name, value in state.items()}
    if moved:
        optimiser.state[after] = moved
