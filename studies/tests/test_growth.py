"""Experts that grow by mitosis: they leave out what they do not need, gates divide, dead experts come back."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from headlong.heads import ExpertsHead
from studies.models.experts.growth import Growth, Vectors, grow, scattered


def test_experts_come_to_hold_few_classes_and_stay_right() -> None:
    """Four super-classes of five classes each, and two experts with all classes that become four with hardly more than five."""
    torch.manual_seed(1)
    supers = 10 * torch.randn(4, 20)
    classes = supers.repeat_interleave(5, 0) + math.sqrt(10) * torch.randn(20, 20)
    target = torch.arange(20).repeat(60)
    vectors = Vectors(classes[target] + torch.randn(1200, 20), target)
    body = nn.Sequential(nn.Linear(20, 20), nn.ReLU())
    head = ExpertsHead(20, 20, experts=2, bias=False, load=1.0, lasso=2e-3, expert_lasso=2e-3, gamma=0.3)
    growth = Growth(150, 2, 150, batch=200, rate=0.01, prune=10, settle=40)
    grow(head, vectors, growth, body)
    head.eval()
    with torch.no_grad():
        hidden = body(vectors.hidden)
    assert float((head.predict(hidden) == target).float().mean()) > 0.99
    assert head.experts == 4 and 20 <= int(head.sizes.sum()) <= 35


def test_gates_drawn_anew_divide_what_an_expert_gets() -> None:
    """Every child has its parent's classes, nothing is clustered, and the logits are as large as before on the mean."""
    torch.manual_seed(3)
    head, hidden = ExpertsHead(12, 30, experts=2, bias=False), torch.randn(500, 12)
    x = head.read(hidden)
    before, gates = head.route(x), head.gate.detach().clone()
    scale = head.weight.detach().norm()
    rows = scattered(head, 3, hidden)
    assert head.experts == 6 and head.sizes.tolist() == [30] * 6
    assert rows.tolist() == [*range(30)] * 3 + [*range(30, 60)] * 3
    assert len(torch.unique(head.gate, dim=0)) == 6
    moved = head.gate.detach().view(2, 3, 12) - gates[:, None]
    assert float(moved.abs().max()) <= 12**-0.5  # as far as a first gate may be from 0
    now, then = (float(route.value.detach().mean()) for route in (head.route(x), before))
    assert now * float(head.weight.detach().norm()) == pytest.approx(then * float(scale) * 3**0.5, rel=1e-5)
