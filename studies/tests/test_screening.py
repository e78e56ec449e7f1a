"""Rows that the lasso sets to zero, by their gradient there: the formula beside autograd, and beside long training."""

from __future__ import annotations

import torch

from headlong.heads import ExpertsHead
from studies.models.experts.growth import Vectors
from studies.models.experts.proximal import Proximal
from studies.models.experts.screening import gradient_at_zero, screened


def two_experts(vocab: int = 14, dim: int = 5) -> ExpertsHead:
    """The second expert lacks the first two classes."""
    torch.manual_seed(0)
    head = ExpertsHead(dim, vocab, experts=2, bias=True, load=0.0)
    with torch.no_grad():
        head.weight.normal_()
        head.gate.normal_()
    ids = torch.cat([torch.arange(vocab), torch.arange(2, vocab)])
    head.replace(head.weight[: len(ids)], ids, torch.tensor([vocab, vocab - 2]))
    return head


def vectors_of(head: ExpertsHead, count: int = 600) -> Vectors:
    torch.manual_seed(1)
    share = 2.0 ** -torch.arange(head.vocab, dtype=torch.float32)
    target = torch.multinomial(share, count, replacement=True)
    return Vectors(2 * torch.randn(head.vocab, head.dim)[target] + 0.5 * torch.randn(count, head.dim), target)


def test_the_gradient_at_zero_is_that_of_the_loss() -> None:
    head = two_experts()
    vectors = vectors_of(head)
    absent = [3, 9, len(head.ids) - 1]
    with torch.no_grad():
        head.weight[absent] = 0.0  # there the row's own share of Z is that of a zero, so nothing is left out
    head.eval()(vectors.hidden, vectors.target).loss.backward()
    assert head.weight.grad is not None
    torch.testing.assert_close(gradient_at_zero(head, vectors)[absent], head.weight.grad[absent], rtol=1e-4, atol=1e-6)


def test_what_leaves_is_what_long_training_sets_to_zero() -> None:
    head, lasso = two_experts(), 0.04
    vectors = vectors_of(head)
    steps = Proximal(head, 1.0, 0.0, lasso)
    steps.weigh(head, vectors)
    for _ in range(1500):
        loss = head.train()(vectors.hidden, vectors.target).loss
        head.zero_grad()
        loss.backward()
        steps.step()
    zero = head.weight.detach().norm(dim=1) == 0
    assert 3 <= int(zero.sum()) < len(zero)
    left = screened(head, vectors, lasso)
    assert left.tolist() == (~zero).nonzero()[:, 0].tolist()
    assert head.sizes.tolist() == [int((~part).sum()) for part in torch.split(zero, [14, 12])]


def test_an_expert_keeps_a_row_at_any_lasso() -> None:
    head = two_experts()
    left = screened(head, vectors_of(head), 1e9)
    assert head.sizes.tolist() == [1, 1] and len(left) == 2
