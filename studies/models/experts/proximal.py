"""Group lasso by its proximal step, each row at the rate that its own curvature allows::

    m      <- 0.9 m + 0.1 gradient of the loss without the lasso
    eta_c  =  rate / (max(f_c, FLOOR) s)          f_c  how often class c is this expert's target,  s = E[|g x|^2]
    w_c    <- w_c - eta_c m_c ;   w_c <- max(0, 1 - eta_c lasso / |w_c|) w_c

The second line is the minimum of ``eta lasso |w| + |w - v|^2 / 2``, so this has the objective of a penalised loss and no
other. What differs from Adam on that loss is the way there: Adam divides by the gradient's noise, which for a class that
comes once in ten thousand words is a hundred times its mean, and then the lasso moves it by next to nothing; and the rows
that stay are moved by as much noise as those that leave. Here a row that stays hardly moves from a layer that was trained,
and ``f_c s`` bounds the loss's curvature along w_c. A row leaves where ``|E[(p_c - y_c) g x]| < lasso`` without it.
"""

from __future__ import annotations

from typing import Any

import torch

from headlong.heads import ExpertsHead
from studies.models.experts.growth import SAMPLE, Vectors, place_of

FLOOR = 1.5e-4
"""The least frequency of a rate: a class with one target in a batch of 1,024 jumps no further."""
MOMENTUM = 0.9


class Proximal(torch.optim.Optimizer):
    """``weight`` by proximal steps, ``gate`` by Adam at ``gate_rate``; :meth:`weigh` sets the rows' rates."""

    def __init__(self, head: ExpertsHead, rate: float, gate_rate: float, lasso: float) -> None:
        groups: list[dict[str, Any]] = [{"params": [head.weight], "lr": rate}, {"params": [head.gate], "lr": gate_rate}]
        super().__init__(groups, {})
        self.lasso = lasso

    @torch.no_grad()
    def weigh(self, head: ExpertsHead, train: Vectors) -> None:
        """Each row's curvature, ``f_c s``, on a sample; to be called again when rows or gates have changed."""
        x, target = head.read(train.sample(SAMPLE)), train.targets(SAMPLE)
        route = head.route(x)
        size = (x.square().sum(1) * route.value.square()).sum() / len(x)
        found = []
        for rows, (_, ids) in zip(route.rows, head.parts(), strict=True):
            place = place_of(ids, target[rows])
            found.append(torch.bincount(place[place >= 0], minlength=len(ids)))
        share = torch.cat(found).float() / len(x)
        self.state[head.weight]["curvature"] = share.clamp_min(FLOOR / head.experts) * size

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        rows, gates = self.param_groups
        for weight in rows["params"]:
            state = self.state[weight]
            mean = state.setdefault("mean", torch.zeros_like(weight)).lerp_(weight.grad, 1 - MOMENTUM)
            rate = rows["lr"] / state["curvature"][:, None]
            weight.sub_(rate * mean)
            if self.lasso:
                norm = weight.norm(dim=1, keepdim=True).clamp_min(1e-12)
                weight.mul_((1 - rate * self.lasso / norm).clamp_min(0))
        for gate in gates["params"]:
            state = self.state[gate]
            if "first" not in state:
                state |= {"first": torch.zeros_like(gate), "second": torch.zeros_like(gate), "count": torch.zeros(())}
            state["count"] += 1
            first = state["first"].lerp_(gate.grad, 0.1) / (1 - 0.9 ** state["count"])
            second = state["second"].lerp_(gate.grad.square(), 0.01) / (1 - 0.99 ** state["count"])
            gate.sub_(gates["lr"] * first / (second.sqrt() + 1e-8))


def optimiser_of(head: ExpertsHead, lasso: float, train: Vectors, rate: float, gate_rate: float) -> Proximal:
    """Ready for its first step. The experts' own lasso is smooth and stays in the loss."""
    steps = Proximal(head, rate, gate_rate, lasso)
    steps.weigh(head, train)
    strengthen(head, steps, lasso)
    return steps


def strengthen(head: ExpertsHead, optimiser: Proximal, lasso: float) -> None:
    """Both lassos, each where it is."""
    head.expert_lasso, optimiser.lasso, head.lasso = lasso, lasso, 0.0
