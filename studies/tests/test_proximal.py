"""Group lasso by proximal steps: each step a minimum, the end that of the penalised loss, and rows that leave by themselves."""

from __future__ import annotations

import torch
from torch.nn import functional

from headlong.heads import ExpertsHead
from headlong.heads.expert_pruning import prune
from studies.models.experts.growth import Vectors, changed
from studies.models.experts.proximal import Proximal


def head_of(vocab: int = 12, dim: int = 6) -> ExpertsHead:
    torch.manual_seed(0)
    head = ExpertsHead(dim, vocab, experts=1, bias=False, load=0.0)
    with torch.no_grad():
        head.gate.zero_()
        head.weight.normal_()
    return head


def vectors_of(head: ExpertsHead, count: int = 400, last: float = 1e-4) -> Vectors:
    """Words of falling frequency that come in directions of their own; the last third ``last`` times as often as the first."""
    torch.manual_seed(1)
    share = torch.tensor([2.0 ** -(number / 2) for number in range(8)] + [last] * (head.vocab - 8))
    target = torch.multinomial(share, count, replacement=True)
    return Vectors(2 * torch.randn(head.vocab, head.dim)[target] + 0.5 * torch.randn(count, head.dim), target)


def test_a_step_is_the_minimum_of_what_it_minimises() -> None:
    head, lasso = head_of(), 0.3
    steps = Proximal(head, 0.5, 1e-3, lasso)
    steps.weigh(head, vectors_of(head))
    before, gradient = head.weight.detach().clone(), torch.randn_like(head.weight)
    head.weight.grad, head.gate.grad = gradient.clone(), torch.zeros_like(head.gate)
    rate = 0.5 / steps.state[head.weight]["curvature"]
    steps.step()
    aimed = before - rate[:, None] * 0.1 * gradient  # the mean of a first gradient is a tenth of it
    for row, v, eta in zip(head.weight.detach(), aimed, rate, strict=True):

        def cost(w: torch.Tensor, v: torch.Tensor = v, eta: torch.Tensor = eta) -> torch.Tensor:
            return eta * lasso * w.norm(dim=-1) + (w - v).square().sum(-1) / 2

        near = row + 0.05 * torch.randn(200, len(row))
        assert bool((cost(row) <= cost(near) + 1e-6).all()) and bool(cost(row) <= cost(torch.zeros_like(row)) + 1e-6)
    assert 0 < int((head.weight.norm(dim=1) == 0).sum()) < head.vocab, "some are at 0 exactly"


def test_it_ends_where_the_penalised_loss_does() -> None:
    """Optimality: a row of 0 has a gradient shorter than the lasso, any other one of just that length, along the row."""
    head, lasso = head_of(), 0.05
    vectors = vectors_of(head, last=1e-2)
    steps = Proximal(head, 1.0, 0.0, lasso)
    steps.weigh(head, vectors)
    for _ in range(1200):
        steps.zero_grad()
        head.train()(vectors.hidden, vectors.target).loss.backward()
        steps.step()
    steps.zero_grad()
    functional.cross_entropy(vectors.hidden @ head.weight.T, vectors.target).backward()
    norm, gradient = head.weight.detach().norm(dim=1), head.weight.grad
    assert gradient is not None
    gone = norm == 0
    assert 3 <= int(gone.sum()) <= 9
    assert float(gradient[gone].norm(dim=1).max()) <= lasso * 1.05
    expected = -lasso * head.weight.detach()[~gone] / norm[~gone, None]
    torch.testing.assert_close(gradient[~gone], expected, rtol=0, atol=0.1 * lasso)


def test_what_it_remembers_follows_the_rows_that_stay() -> None:
    head = head_of()
    vectors = vectors_of(head)
    steps = Proximal(head, 0.5, 1e-3, 0.1)
    steps.weigh(head, vectors)
    head.train()(vectors.hidden, vectors.target).loss.backward()
    steps.step()
    kept = head.weight.norm(dim=1) >= 0.5
    head.gamma, head.units = 0.5, "l2"
    mean = steps.state[head.weight]["mean"][kept].clone()
    changed(head, steps, lambda: prune(head, "allow"))
    assert len(head.weight) == int(kept.sum()) < 12
    torch.testing.assert_close(steps.state[head.weight]["mean"], mean)
