"""Gradients of every head's losses against log-probabilities in plain PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from headlong.errors import UnsupportedError
from headlong.heads import HEADS, Head, build_head
from limited import in_limits

ROWS, DIM, VOCAB = 7, 6, 23
OPTIONS: dict[str, dict[str, Any]] = {
    "bands": {"cutoffs": [5, 11], "widths": [6, 6]}, "experts": {"experts": 3}, "mos": {"components": 3},
    "moc": {"components": 3}, "monotone": {"units": 4}, "plif": {"knots": 40},
}  # fmt: skip
WHOLE = sorted({*HEADS} - {"experts"})
"""Those whose loss is that of their log-probabilities alone; experts add what teaches the gate."""


def built(kind: str) -> tuple[Head, Tensor, Tensor]:
    torch.manual_seed(5)
    head = build_head(kind, DIM, VOCAB, **OPTIONS.get(kind, {})).double()
    with torch.no_grad():
        for part in head.parameters():
            part.add_(0.3 * torch.randn_like(part))
    target = torch.randint(VOCAB, (ROWS,))
    target[2] = 3
    return head, torch.randn(ROWS, DIM, dtype=torch.float64, requires_grad=True), target


def plain(head: Head, hidden: Tensor, target: Tensor, case: dict[str, Any]) -> Tensor:
    """The loss from ``head.log_prob``, as ``heads/base.py`` defines it."""
    options = {name: value for name, value in case.items() if name != "class_weight"}
    # of log-probabilities, cross_entropy's own log_softmax is the identity
    return functional.cross_entropy(head.log_prob(hidden), target, weight=case.get("class_weight"), **options)


def parts(head: Head, hidden: Tensor) -> list[Tensor]:
    return [hidden, *(part for part in head.parameters() if part.requires_grad)]


def check(ours: Tensor, theirs: Tensor, asked: list[Tensor], **near: float) -> None:
    found, expected = (torch.autograd.grad(loss, asked, allow_unused=True) for loss in (ours, theirs))
    for one, other, part in zip(found, expected, asked, strict=True):
        none = torch.zeros_like(part)
        torch.testing.assert_close(none if one is None else one, none if other is None else other, **near)


@pytest.mark.parametrize("kind", WHOLE)
def test_in_float32_too_where_native_code_computes_them(kind: str) -> None:
    head, hidden, target = built(kind)
    head, hidden = head.float(), hidden.detach().float().requires_grad_()
    check(head(hidden, target).loss, plain(head, hidden, target, {}), parts(head, hidden), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("kind", ["mos", "plif", "bands", "two-level"])
def test_gradients_that_are_made_once_say_so(kind: str) -> None:
    head, hidden, target = built(kind)
    with pytest.raises(UnsupportedError, match="Second-order gradients are not supported: call backward without"):
        torch.autograd.grad(head(hidden, target).loss, hidden, create_graph=True)


@pytest.mark.parametrize("kind", ["monotone", "plif", "temperature"])
def test_frozen_curves(kind: str) -> None:
    head, hidden, target = built(kind)
    head = head.float()
    for part in head.curve.parameters():  # type: ignore[union-attr]
        part.requires_grad_(False)
    hidden = hidden.detach().float().requires_grad_()
    head(hidden, target).loss.backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None and all(part.grad is None for part in head.curve.parameters())  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", sorted(HEADS))
def test_under_autocast_every_verb_answers(kind: str) -> None:
    head, hidden, target = built(kind)
    head, hidden = head.float(), hidden.detach().float()
    expected = head.log_prob(hidden)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(head.log_prob(hidden).float(), expected, rtol=0.1, atol=0.2)
        x = hidden.clone().requires_grad_()
        head(x, target).loss.backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None and bool(x.grad.isfinite().all())


def _extra_memory(rows: int, vocab: int) -> int:
    import resource

    head = build_head("tree", 8, vocab)
    hidden = torch.randn(rows, 8)
    with torch.no_grad():
        head.log_prob(hidden[:2])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        head.log_prob(hidden)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def test_every_log_probability_of_a_tree_takes_little_more_than_the_answer() -> None:
    """[1000, 10000] took 809 MB for an answer of 38."""
    assert in_limits(_extra_memory, 1000, 10_000, memory=6 << 30) < 120e6
