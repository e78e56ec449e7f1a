"""Doubly sparse experts that learn which classes they need, at a frozen backbone (Liao et al. 2019)::

    start      one expert, the whole trained layer:  W - m,  m the geometric median of its rows
    mitosis    every expert becomes two;  gates u + e, u - e, e drawn;  W times E[g] before / E[g] after
    rung       proximal steps on  task + load CV^2 + lasso (sum ‖W^k_c‖ + sum_k ‖W^k‖);  rows below gamma leave
    ramp       rungs, the lasso ``factor`` times larger at each, until validation loses more than ``slack``; back by one
    settle     a rung without lasso or pruning, at a falling rate; and mitosis again, from 2 to 64 experts

Nothing is placed by clustering: gates differ by noise at first, and what an expert holds is what the lasso left of the
layer. The ramp is the paper's "exponential search on validation until quality drops", each rung going on from the one
before. A softmax does not change when the same vector is taken from every row; the geometric median is the one that leaves
the smallest sum of norms, so the penalty begins where it is least. Ours: that start, the noise cut so that children begin
with half of the vectors each, the weights' rescaling (a child is half as sure as its parent, and g scales the logits), the
revival of an expert that no vector picks, screening (``screening.py``) where a plan asks for it, and what ``heads.experts``
does about targets that an expert lacks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from headlong.heads import ExpertsHead
from headlong.heads.expert_pruning import mitosis, prune, revive
from studies.models.experts.growth import SAMPLE, Vectors, changed
from studies.models.experts.lasso_ramp_plan import TrainingPlan
from studies.models.experts.proximal import Proximal, optimiser_of, strengthen
from studies.models.experts.screening import screened
from studies.models.optimisers import products

TOPS = (1, 5, 10)
PIECE = 4096


class Evaluation(NamedTuple):
    """What a head is worth on a set of vectors: accuracies, the FLOPs ratio by its load there, share of targets it holds."""

    top: tuple[float, ...]
    flops: float
    hit: float
    rows: int


class Set(NamedTuple):
    """Hidden vectors of a frozen backbone for training and validation, the trained layer, and its validation top-1."""

    weight: Tensor
    bias: Tensor
    train: Vectors
    valid: Vectors
    full: float


def started(data: Set, plan: TrainingPlan) -> ExpertsHead:
    """One expert that is the layer, less what a softmax does not see."""
    vocab, dim = data.weight.shape
    options: dict[str, Any] = {"load": plan.load, "gamma": plan.gamma, "units": plan.units}
    head = ExpertsHead(dim, vocab, experts=1, bias=True, **options).to(data.weight.device)
    with torch.no_grad():
        head.gate.zero_()
        rows = torch.cat([data.weight, data.bias[:, None]], 1)
        head.weight.copy_(rows - geometric_median(rows))
    return head


def geometric_median(rows: Tensor, rounds: int = 30) -> Tensor:
    """The vector ``m`` with the least ``sum ‖rows - m‖`` (Weiszfeld's iteration)."""
    middle = rows.mean(0)
    for _ in range(rounds):
        near = 1 / (rows - middle).norm(dim=1).clamp_min(1e-9)
        middle = near @ rows / near.sum()
    return middle


@torch.no_grad()
def divided(head: ExpertsHead, x: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Mitosis with gates that differ by ``noise`` logits, half of the parent's vectors for each child, and the old scale.

    A random direction alone would give nearly all to one of two siblings, since hidden vectors lie to one side of the origin.
    """
    route = head.route(x)
    gate = head.gate.detach().clone()
    rows = mitosis(head, 2)
    for parent, mine in enumerate(route.rows):
        drawn = torch.randn(gate.shape[1], generator=generator).to(x.device)
        score = x[mine] @ drawn if len(mine) > 1 else x @ drawn
        drawn = noise * drawn / score.std().clamp_min(1e-6)
        drawn[-1] -= noise * score.median() / score.std().clamp_min(1e-6)
        head.gate[2 * parent], head.gate[2 * parent + 1] = gate[parent] + drawn, gate[parent] - drawn
    head.weight.mul_(route.value.mean() / head.route(x).value.mean())
    return rows


def train(
    head: ExpertsHead, data: Set, plan: TrainingPlan, optimiser: Proximal, steps: int, generator: torch.Generator,
    pruned: bool = True,
) -> None:  # fmt: skip
    """``steps`` of the head's own loss, with a pruning after every ``plan.prune`` of them."""
    count = len(data.train.target)
    for step in range(1, steps + 1):
        head.train()
        rows = torch.randint(count, (plan.batch,), generator=generator).to(data.train.target.device)
        hidden = functional.dropout(data.train.hidden[rows].float(), plan.dropout)
        with products():
            loss = head(hidden, data.train.target[rows]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if pruned and step % plan.prune == 0:
            x = data.train.sample(SAMPLE // 4)
            changed(head, optimiser, partial(revive, head, x))
            changed(head, optimiser, partial(prune, head, plan.orphans))
            if plan.screen:
                changed(head, optimiser, partial(screened, head, data.train, optimiser.lasso))
            optimiser.weigh(head, data.train)


@torch.no_grad()
def look(head: ExpertsHead, vectors: Vectors) -> Evaluation:
    """In pieces, in float32, on every vector that is given."""
    head.eval()
    hits, used, held = torch.zeros(len(TOPS)), torch.zeros(head.experts), 0
    member = torch.zeros(head.experts, head.vocab, dtype=torch.bool, device=head.ids.device)
    member[torch.repeat_interleave(head.sizes), head.ids] = True
    for hidden, target in zip(torch.split(vectors.hidden, PIECE), torch.split(vectors.target, PIECE), strict=True):
        best = head.route(head.read(hidden.float())).best
        right = head.topk(hidden.float(), TOPS[-1]) == target[:, None]
        hits += torch.stack([right[:, :top].any(1).sum() for top in TOPS]).cpu()
        used += torch.bincount(best, minlength=head.experts).cpu()
        held += int(member[best, target].sum())
    count = len(vectors.target)
    reads = head.experts + float((used / count * head.sizes.cpu()).sum())
    return Evaluation(tuple((hits / count).tolist()), head.vocab / reads, held / count, len(head.ids))


class Stage(NamedTuple):
    """A number of experts, its head after settling, and every rung on the way: one dictionary each."""

    experts: int
    head: ExpertsHead
    rungs: list[dict[str, float]]


def learn(data: Set, plan: TrainingPlan, seed: int, tell: Callable[[str], None]) -> Iterator[Stage]:
    """All stages; each begins with a copy of the head before it."""
    head = started(data, plan)
    for experts in plan.experts:
        generator = torch.Generator().manual_seed(seed * 1000 + experts)
        torch.manual_seed(seed * 1000 + experts)
        head = copy.deepcopy(head)
        if experts > head.experts:
            divided(head, head.read(data.train.sample(SAMPLE)), plan.noise, generator)
        yield Stage(experts, head, ramp(head, data, plan, plan.strength(experts), generator, tell))


def ramp(
    head: ExpertsHead, data: Set, plan: TrainingPlan, lasso: float, generator: torch.Generator, tell: Callable[[str], None]
) -> list[dict[str, float]]:
    """Raise the lasso until validation drops; ``head`` is left at the last rung before, settled. Every rung as it was."""
    rungs = _raised(head, data, plan, lasso, generator, tell)
    optimiser = optimiser_of(head, 0.0, data.train, plan.proximal, plan.gate_rate)
    whole = [group["lr"] for group in optimiser.param_groups]
    for share in plan.rates(head.experts):
        for group, rate in zip(optimiser.param_groups, whole, strict=True):
            group["lr"] = rate * share
        train(head, data, plan, optimiser, plan.settling(head.experts), generator, pruned=False)
    last = max((rung["lasso"] for rung in rungs if "dropped" not in rung), default=lasso / plan.factor)
    rungs.append(_line(head, look(head, data.valid), last, data.full) | {"settled": 1.0})
    tell(_said(rungs[-1]))
    return rungs


def _raised(
    head: ExpertsHead, data: Set, plan: TrainingPlan, lasso: float, generator: torch.Generator, tell: Callable[[str], None]
) -> list[dict[str, float]]:
    """The rungs; ``head`` is left at the last one before validation dropped."""
    rungs: list[dict[str, float]] = []
    kept, optimiser = copy.deepcopy(head.state_dict()), optimiser_of(head, lasso, data.train, plan.proximal, plan.gate_rate)
    for rung in range(plan.last if plan.late(head.experts) else plan.rungs):
        strengthen(head, optimiser, lasso * plan.factor**rung)
        if plan.screen:
            changed(head, optimiser, partial(screened, head, data.train, optimiser.lasso))
            optimiser.weigh(head, data.train)
        train(head, data, plan, optimiser, plan.steps(head.experts), generator)
        rungs.append(_line(head, look(head, data.valid), head.expert_lasso, data.full))
        tell(_said(rungs[-1]))
        if rungs[-1]["top1"] < data.full - plan.slack:
            rungs[-1]["dropped"] = 1.0
            break
        kept = copy.deepcopy(head.state_dict())
    head.load_state_dict(kept)
    return rungs


def _line(head: ExpertsHead, seen: Evaluation, lasso: float, full: float) -> dict[str, float]:
    found = {f"top{top}": round(value, 4) for top, value in zip(TOPS, seen.top, strict=True)}
    sizes = head.sizes
    found |= {"experts": head.experts, "lasso": lasso, "flops": round(seen.flops, 3), "hit": round(seen.hit, 4)}
    return found | {"rows": seen.rows, "smallest": int(sizes.min()), "largest": int(sizes.max()), "full_top1": round(full, 4)}


def _said(rung: dict[str, float]) -> str:
    kind = "settled" if "settled" in rung else "dropped" if "dropped" in rung else "rung"
    return (
        f"{int(rung['experts'])} experts, lasso {rung['lasso']:.1e}, {kind}: top-1 {rung['top1']:.4f} "
        f"of {rung['full_top1']:.4f}, {rung['flops']:.2f} times fewer, {int(rung['rows'])} rows, hit {rung['hit']:.3f}"
    )
