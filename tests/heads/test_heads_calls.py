"""How heads are called: torch's pairs, ignored targets, smoothing, class weights, float64, compiled graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from headlong.errors import IdError, OptionError, ShapeError
from headlong.heads import HEADS, Head, build_head
from thinned import every

ROWS, DIM, VOCAB = 24, 16, 65
SOFT = sorted(set(HEADS) - {"experts"})


def built(kind: str, **options: Any) -> Head:
    torch.manual_seed(3)
    return build_head(kind, DIM, VOCAB, **options)


def asked() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, DIM, generator=generator), torch.randint(VOCAB, (ROWS,), generator=generator)


@pytest.mark.parametrize("kind", sorted(HEADS))
def test_ignored_targets_leave_no_trace(kind: str) -> None:
    head, (hidden, target) = built(kind), asked()
    hidden.requires_grad_()
    target[::3] = -100
    kept = target >= 0
    output, loss = head(hidden, target)
    expected = head(hidden[kept], target[kept])
    torch.testing.assert_close(loss, expected.loss)
    torch.testing.assert_close(output[kept], expected.output, atol=1e-5, rtol=1e-5)
    assert not output[~kept].any()
    (grad,) = torch.autograd.grad(loss, hidden)
    assert not grad[~kept].any() and grad[kept].any()
    torch.testing.assert_close(head(hidden, target.where(kept, 7), ignore_index=7).loss,
                               head(hidden[kept & (target != 7)], target[kept & (target != 7)]).loss)  # fmt: skip
    with pytest.raises(IdError, match="-100"):
        head(hidden, target, ignore_index=None)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", SOFT)
def test_smoothing_and_class_weights_are_those_of_torch(kind: str, weighted: bool, smoothing: float) -> None:
    head, (hidden, target) = built(kind), asked()
    target[::5] = -100
    weight = torch.rand(VOCAB, generator=torch.Generator().manual_seed(1)) if weighted else None
    loss = head(hidden, target, label_smoothing=smoothing, class_weight=weight).loss
    # a log-softmax of log-probabilities is the same numbers
    expected = functional.cross_entropy(head.log_prob(hidden), target, weight=weight, label_smoothing=smoothing)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    found, true = (torch.autograd.grad(one, next(head.parameters()))[0] for one in (loss, expected))
    torch.testing.assert_close(found, true, atol=1e-5, rtol=1e-4)


def test_what_cannot_be_smoothed_or_weighed_is_refused() -> None:
    head, (hidden, target) = built("experts"), asked()
    with pytest.raises(OptionError, match="probability 0"):
        head(hidden, target, label_smoothing=0.1)
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"label_smoothing": 1.5}, OptionError, "from 0 to 1"),
        ({"class_weight": torch.ones(3)}, ShapeError, "one number per class"),
    ]
    for options, fault, said in cases:
        with pytest.raises(fault, match=said):
            built("dense")(hidden, target, **options)


@pytest.mark.parametrize("kind", sorted(HEADS))
def test_float64_stays_float64(kind: str) -> None:
    head, (hidden, target) = built(kind), asked()
    whole = built(kind).double()
    found, exact = head(hidden.double(), target), whole(hidden.double(), target)
    for one in (found, exact):
        assert one.loss.dtype == one.output.dtype == torch.float64
    for one, other in ((found.loss, exact.loss), (found.output, exact.output), (head(hidden.double()), whole(hidden.double()))):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)  # constants of curves are float32 or float64
    found.loss.backward()
    assert all(part.grad is not None and part.grad.dtype == torch.float32 for part in head.parameters() if part.requires_grad)
    assert whole.log_prob(hidden.double()).dtype == torch.float64


COMPILED = [("bands", None, 0), *every(4, ((kind, -100, 1) for kind in sorted(HEADS)))]


@pytest.mark.parametrize(("kind", "ignore", "most"), COMPILED)
def test_a_compiled_head_breaks_its_graph_at_most_once(kind: str, ignore: int | None, most: int) -> None:
    head, (hidden, target) = built(kind), asked()
    torch._dynamo.reset()

    def step(hidden: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = head(hidden, target, ignore_index=ignore).loss
        return loss

    with torch.no_grad():
        found = torch._dynamo.explain(step)(hidden, target)
    assert found.graph_break_count <= most, found.break_reasons
