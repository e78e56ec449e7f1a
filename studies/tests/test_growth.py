"""Experts that grow by mitosis: they leave out what they do not need, gates divide, dead experts come back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from headlong.errors import OptionError
from headlong.heads import ExpertsHead
from studies.models.experts.growth import Growth, Vectors, grow, scattered


def test_experts_come_to_hold_few_classes_and_stay_right(tmp_path: Path) -> None:
    """Four super-classes of five classes each, and two experts with all classes that become four with hardly more than five."""
    torch.manual_seed(1)
    supers = 10 * torch.randn(4, 20)
    classes = supers.repeat_interleave(5, 0) + math.sqrt(10) * torch.randn(20, 20)
    target = torch.arange(20).repeat(60)
    vectors = Vectors(classes[target] + torch.randn(1200, 20), target)
    body = nn.Sequential(nn.Linear(20, 20), nn.ReLU())
    head = ExpertsHead(20, 20, experts=2, bias=False, load=1.0, lasso=2e-3, expert_lasso=2e-3, gamma=0.3)
    growth = Growth(150, 2, 150, batch=200, rate=0.01, prune=10, settle=40)
    revived = grow(head, vectors, growth, body, tmp_path)
    head.eval()
    with torch.no_grad():
        hidden = body(vectors.hidden)
    assert float((head.predict(hidden) == target).float().mean()) > 0.99
    assert head.experts == 4 and 20 <= int(head.sizes.sum()) <= 35
    again = ExpertsHead(20, 20, experts=2, bias=False)
    assert grow(again, vectors, growth, nn.Sequential(nn.Linear(20, 20), nn.ReLU()), tmp_path) == revived
    assert bool((again.predict(hidden) == head.predict(hidden)).all())  # kept stages are not run again


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


def test_dead_experts_come_back_before_anything_is_pruned() -> None:
    torch.manual_seed(4)
    vectors = Vectors(torch.randn(400, 6), torch.arange(10).repeat(40))
    sizes: dict[bool, list[int]] = {}
    for alive in (False, True):
        head = ExpertsHead(6, 10, experts=4, bias=False, load=0.0)
        with torch.no_grad():
            head.gate[1:] = 0.01 * torch.randn(3, 6)
            head.gate[0] = 5.0
            head.gate[2] = -5.0
        grow(head, vectors, Growth(6, batch=50, rate=1e-6, prune=1, settle=7, alive=alive))
        assert head.sizes.tolist() == [10] * 4  # settling is longer than the training: nothing left
        sizes[alive] = [len(rows) for rows in head.route(head.read(vectors.hidden)).rows]
    assert min(sizes[False]) == 0 < min(sizes[True])


def test_more_experts_than_classes_are_refused() -> None:
    vectors = Vectors(torch.randn(30, 4), torch.arange(30) % 9)
    with pytest.raises(OptionError, match="make 16 experts for 10 classes"):
        grow(ExpertsHead(4, 10, experts=4), vectors, Growth(10, 4))
