"""What every head promises, and the dense head against the formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from headlong.errors import DtypeError, IdError, InputError, OptionError, ShapeError
from headlong.heads import HEADS, DenseHead, Head, build_head
from headlong.heads.autocast import AutocastCrossEntropy
from headlong.layers.matrix import Layer

SHAPES = [(1, 1, 2), (5, 3, 7), (17, 16, 65), (64, 33, 257)]


def asked(shape: tuple[int, int, int], seed: int = 0) -> tuple[Tensor, Tensor]:
    rows, dim, vocab = shape
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, dim, generator=generator), torch.randint(vocab, (rows,), generator=generator)


def built(kind: str, dim: int, vocab: int, **options: object) -> Head:
    torch.manual_seed(3)
    return build_head(kind, dim, vocab, **options)


# the contract, for each head


@pytest.mark.parametrize("kind", sorted(HEADS))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_head_is_a_distribution_and_its_parts_agree(kind: str, shape: tuple[int, int, int]) -> None:
    head, (hidden, target) = built(kind, *shape[1:]), asked(shape)
    log_prob = head.log_prob(hidden)
    assert log_prob.shape == (shape[0], shape[2])
    torch.testing.assert_close(log_prob.double().exp().sum(-1), torch.ones(shape[0], dtype=torch.float64), atol=1e-5, rtol=0)
    out = head(hidden, target)
    output, loss = out
    assert output is out.output and loss is out.loss and loss.shape == () and output.shape == (shape[0],)
    torch.testing.assert_close(head(hidden), log_prob)
    torch.testing.assert_close(out.output, log_prob.gather(1, target[:, None])[:, 0], atol=1e-5, rtol=1e-5)
    best = log_prob.max(-1).values
    torch.testing.assert_close(log_prob.gather(1, head.predict(hidden)[:, None])[:, 0], best)


@pytest.mark.parametrize("kind", sorted(HEADS))
def test_a_few_steps_lower_the_loss(kind: str) -> None:
    head, (hidden, target) = built(kind, 16, 65), asked((32, 16, 65))
    optimiser = torch.optim.Adam(head.parameters(), 0.05)
    losses = []
    for _ in range(30):
        optimiser.zero_grad()
        loss = head(hidden, target).loss
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("kind", sorted(HEADS))
def test_bad_input_is_named(kind: str) -> None:
    head, (hidden, target) = built(kind, 3, 7), asked((5, 3, 7))
    with pytest.raises(ShapeError, match=r"hidden has shape \[3, 5\]; expected \[N, 3\]"):
        head(hidden.T, target)
    with pytest.raises(ShapeError, match=r"target has shape \[4\]"):
        head(hidden, target[:4])
    with pytest.raises(DtypeError, match="int64"):
        head(hidden, target.int())
    for wrong in (-1, 7):
        target[2] = wrong
        with pytest.raises(IdError, match=r"0 to 6"):
            head(hidden, target)
    with pytest.raises(OptionError, match="vocab is 1; expected a whole number from 2"):
        built(kind, 3, 1)
    with pytest.raises(OptionError, match="does not take these options"):
        built(kind, 3, 7, no_such_option=1)


# the dense head


def reference(head: DenseHead, hidden: Tensor, target: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Loss and gradients of the formula in float64."""
    assert head.bias is not None
    parts = [part.detach().double().requires_grad_() for part in (hidden, head.weight, head.bias)]
    logits = parts[0] @ parts[1].T + parts[2]
    loss = (logits.logsumexp(-1) - logits.gather(1, target[:, None])[:, 0]).mean()
    return loss, list(torch.autograd.grad(loss, parts))


def gradients(head: DenseHead, hidden: Tensor, target: Tensor) -> tuple[Tensor, list[Tensor]]:
    assert head.bias is not None
    leaf = hidden.clone().requires_grad_()
    head.zero_grad()
    loss = head(leaf, target).loss
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    found = [leaf.grad, head.weight.grad, head.bias.grad]
    return loss.detach(), [grad.clone() for grad in found if grad is not None]


@pytest.mark.parametrize("chunk", [0, 1, 16, 64, None])
@pytest.mark.parametrize("shape", SHAPES)
def test_dense_is_the_formula_in_pieces_and_whole(shape: tuple[int, int, int], chunk: int | None) -> None:
    head, (hidden, target) = DenseHead(*shape[1:], chunk=chunk), asked(shape)
    loss, grads = gradients(head, hidden, target)
    expected, exact = reference(head, hidden, target)
    torch.testing.assert_close(loss.double(), expected.detach(), atol=1e-6, rtol=1e-6)
    for found, true in zip(grads, exact, strict=True):
        torch.testing.assert_close(found.double(), true, atol=1e-6, rtol=1e-5)


def test_autocast_errs_no_more_than_plain_bfloat16() -> None:
    head, (hidden, target) = DenseHead(64, 513, chunk=32), asked((128, 64, 513))
    _, exact = reference(head, hidden, target)
    with torch.autocast("cpu", torch.bfloat16):
        loss, grads = gradients(head, hidden, target)
    assert loss.dtype == torch.float32 and all(grad.dtype == torch.float32 for grad in grads)
    assert head.bias is not None
    plain = [part.detach().bfloat16().requires_grad_() for part in (hidden, head.weight, head.bias)]
    naive = torch.autograd.grad(torch.nn.functional.cross_entropy(plain[0] @ plain[1].T + plain[2], target), plain)
    for found, low, true in zip(grads, naive, exact, strict=True):
        error, allowed = (float((grad.double() - true).norm() / true.norm()) for grad in (found, low))
        assert error <= 1.1 * allowed + 1e-3


def test_a_tied_weight_is_the_embedding_itself() -> None:
    embedding = torch.nn.Embedding(65, 16)
    head = DenseHead(16, 65, embedding.weight)
    assert head.weight is embedding.weight
    with pytest.raises(ShapeError, match=r"expected \[65, 15\]"):
        DenseHead(15, 65, embedding.weight)


def test_a_layer_is_a_copy_that_gives_the_same_logits() -> None:
    head, (hidden, _) = DenseHead(16, 65), asked((9, 16, 65))
    layer = head.to_layer()
    assert isinstance(layer, Layer) and (layer.vocab, layer.dim) == (65, 16)
    assert layer.bias is not None
    logits = hidden.numpy() @ layer.weight.T + layer.bias
    np.testing.assert_allclose(logits, head.logits(hidden).detach().numpy(), atol=1e-6)
    checksum = layer.checksum()
    with torch.no_grad():
        head.weight.add_(1)
    assert Layer(layer.weight, layer.bias).checksum() == checksum != head.to_layer().checksum()


# the loss under autocast on a CPU


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_autocast_gradients_are_the_derivatives_in_float64(rows: int) -> None:
    hidden, target = asked((9, 5, 7))
    weight, bias = torch.randn(7, 5, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    given = [value.double().requires_grad_() for value in (hidden, weight, bias)]

    loss = AutocastCrossEntropy.apply(*given, target, rows, torch.float64)
    expected = functional.cross_entropy(functional.linear(*given), target)
    torch.testing.assert_close(loss, expected)
    for found, true in zip(torch.autograd.grad(3 * loss, given), torch.autograd.grad(3 * expected, given), strict=True):
        torch.testing.assert_close(found, true)


def test_autocast_loss_goes_back_once() -> None:
    head, (hidden, target) = DenseHead(5, 7), asked((9, 5, 7))
    with torch.autocast("cpu", torch.bfloat16):
        loss = head(hidden, target).loss
    loss.backward(retain_graph=True)
    with pytest.raises(InputError, match="called twice"):
        loss.backward()


def test_autocast_takes_half_precision_hidden_vectors_and_no_bias() -> None:
    head, (hidden, target) = DenseHead(16, 65, bias=False, chunk=8), asked((17, 16, 65))
    given = hidden.bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = head(given, target)
    out.loss.backward()
    assert out.loss.dtype == torch.float32 and given.grad is not None and given.grad.dtype == torch.bfloat16
    assert head.weight.grad is not None and head.weight.grad.dtype == torch.float32
