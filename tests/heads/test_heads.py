"""What every head promises and how it is called; the dense head by its formula in float64; gradients by finite differences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from headlong.errors import DtypeError, IdError, OptionError, ShapeError, UnsupportedError
from headlong.heads import HEADS, DenseHead, Head, build_head
from headlong.layers.matrix import Layer
from thinned import every

SHAPES = [(1, 1, 2), (5, 3, 7), (17, 16, 65), (64, 33, 257)]


def asked(shape: tuple[int, int, int] = (24, 16, 65), seed: int = 0) -> tuple[Tensor, Tensor]:
    rows, dim, vocab = shape
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, dim, generator=generator), torch.randint(vocab, (rows,), generator=generator)


def built(kind: str, dim: int = 16, vocab: int = 65, **options: Any) -> Head:
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
@pytest.mark.parametrize("rows", [5, 0])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"weight": torch.ones(65)}], ids=["", "smooth", "weighed"])
def test_without_a_target_that_counts_the_loss_is_torchs_and_every_parameter_has_a_gradient(
    kind: str, rows: int, options: dict[str, Any]
) -> None:
    """NaN, and gradients of 0: a parameter without one would keep a process of DDP from its next step."""
    if kind == "experts" and options:
        pytest.skip("takes neither")
    head, hidden = built(kind), torch.randn(rows, 16, requires_grad=True)
    target = torch.full((rows,), -100)
    logits = functional.linear(hidden, weight := torch.randn(65, 16, requires_grad=True))
    ours = {"class_weight" if name == "weight" else name: value for name, value in options.items()}
    theirs, loss = functional.cross_entropy(logits, target, **options), head(hidden, target, **ours).loss
    assert theirs.isnan() and loss.isnan()
    (grad,) = torch.autograd.grad(theirs, weight)
    loss.backward()
    assert (grad == 0).all()
    for name, part in [*head.named_parameters(), ("hidden", hidden)]:
        assert part.grad is not None and (part.grad == 0).all(), name


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


def test_autocast_takes_half_precision_hidden_vectors_and_no_bias() -> None:
    head, (hidden, target) = DenseHead(16, 65, bias=False, chunk=8), asked((17, 16, 65))
    given = hidden.bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        out = head(given, target)
    out.loss.backward()
    assert out.loss.dtype == torch.float32 and given.grad is not None and given.grad.dtype == torch.bfloat16
    assert head.weight.grad is not None and head.weight.grad.dtype == torch.float32


SOFT = sorted(set(HEADS) - {"experts"})


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
    """The loss, and its gradients in hidden vectors and every parameter, which native code computes for some heads."""
    head, (hidden, target) = built(kind), asked()
    hidden.requires_grad_()
    target[::5] = -100
    weight = torch.rand(65, generator=torch.Generator().manual_seed(1)) if weighted else None
    loss = head(hidden, target, label_smoothing=smoothing, class_weight=weight).loss
    # a log-softmax of log-probabilities is the same numbers
    expected = functional.cross_entropy(head.log_prob(hidden), target, weight=weight, label_smoothing=smoothing)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    parts = [hidden, *(part for part in head.parameters() if part.requires_grad)]
    both = (torch.autograd.grad(one, parts, allow_unused=True, materialize_grads=True) for one in (loss, expected))
    for found, true in zip(*both, strict=True):
        torch.testing.assert_close(found, true, atol=1e-5, rtol=1e-3)


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


@pytest.mark.parametrize("kind", every(4, sorted(HEADS)))
def test_a_compiled_head_breaks_its_graph_at_most_once(kind: str) -> None:
    head, (hidden, target) = built(kind), asked()
    torch._dynamo.reset()

    def step(hidden: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = head(hidden, target).loss
        return loss

    with torch.no_grad():
        found = torch._dynamo.explain(step)(hidden, target)
    assert found.graph_break_count <= 1, found.break_reasons


SMALL: dict[str, dict[str, Any]] = {
    "bands": {"cutoffs": [5, 11], "widths": [6, 6]}, "experts": {"experts": 3}, "mos": {"components": 3},
    "moc": {"components": 3}, "monotone": {"units": 4}, "plif": {"knots": 40},
}  # fmt: skip


def moved(kind: str) -> tuple[Head, Tensor, Tensor]:
    torch.manual_seed(5)
    head = build_head(kind, 6, 23, **SMALL.get(kind, {})).double()
    with torch.no_grad():
        for part in head.parameters():
            part.add_(0.3 * torch.randn_like(part))
    target = torch.randint(23, (7,))
    target[2] = 3
    return head, torch.randn(7, 6, dtype=torch.float64, requires_grad=True), target


@pytest.mark.parametrize("kind", ["mos", "plif", "bands", "two-level"])
def test_gradients_that_are_made_once_say_so(kind: str) -> None:
    head, hidden, target = moved(kind)
    with pytest.raises(UnsupportedError, match="Second-order gradients are not supported: call backward without"):
        torch.autograd.grad(head(hidden, target).loss, hidden, create_graph=True)


@pytest.mark.parametrize("kind", ["monotone", "plif", "temperature"])
def test_frozen_curves(kind: str) -> None:
    head, hidden, target = moved(kind)
    head = head.float()
    for part in head.curve.parameters():  # type: ignore[union-attr]
        part.requires_grad_(False)
    hidden = hidden.detach().float().requires_grad_()
    head(hidden, target).loss.backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None and all(part.grad is None for part in head.curve.parameters())  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", sorted(HEADS))
def test_under_autocast_every_verb_answers_in_float32(kind: str) -> None:
    head, hidden, target = moved(kind)
    head, hidden = head.float(), hidden.detach().float()
    expected, plain = head.log_prob(hidden), head(hidden, target)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(head.log_prob(hidden).float(), expected, rtol=0.1, atol=0.2)
        x = hidden.clone().requires_grad_()
        out = head(x, target)
        out.loss.backward()  # type: ignore[no-untyped-call]
    assert out.loss.dtype == out.output.dtype == torch.float32
    torch.testing.assert_close(out.loss, plain.loss, atol=0.1, rtol=0.05)
    assert all(part.grad is not None and part.grad.isfinite().all() for part in (x, *head.parameters()) if part.requires_grad)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the most that a process held is read from Linux")
def test_every_log_probability_of_a_tree_takes_little_more_than_the_answer() -> None:
    """[1000, 10000] took 809 MB for an answer of 38."""
    head, hidden = build_head("tree", 8, 10_000), torch.randn(1000, 8)
    with torch.no_grad():
        head.log_prob(hidden[:2])
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        before = held("VmRSS")
        head.log_prob(hidden)
    assert 30e6 < held("VmHWM") - before < 120e6


def held(name: str) -> int:
    """Bytes of memory that this process has, or had at the most."""
    return 1024 * int(Path("/proc/self/status").read_text(encoding="utf-8").partition(f"{name}:")[2].split()[0])


ROWS, DIM, VOCAB = 7, 6, 11
COUNTS = torch.arange(VOCAB).flip(0) + 1
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "bands": [{"cutoffs": [3, 7], "widths": [6, 6]}, {"cutoffs": [4], "widths": [6], "counts": COUNTS, "bias": False}],
    "differentiated": [{}, {"columns": "split", "sizes": [4, 7], "widths": [4, 2]}, {"columns": "project", "bias": False}],
    "dense": [{}, {"bias": False, "chunk": 0}],
    "experts": [{"experts": 3}, {"experts": 2, "load": 1.0, "lasso": 0.01, "expert_lasso": 0.01, "groups": "class"}],
    "mos": [
        {"components": 3}, {"components": 2, "latent": 4, "chunk": 3, "bias": False}, {"curve": "plif", "knots": 20},
        {"curve": "sigsoftmax"}, {"curve": "monotone", "units": 3}, {"curve": "softcap"}, {"components": 1},
    ],
    "moc": [{"components": 3}, {"components": 2, "latent": 4, "chunk": 2}],
    "monotone": [{"units": 4}, {"units": 3, "gain": 1.0, "chunk": 2}],
    "plif": [{"knots": 20}, {"knots": 20, "start": "random", "gain": 1.0}, {"knots": 20, "frozen": True}],
    "temperature": [{}, {"gain": 1.0, "bias": False}],
    "softcap": [{"cap": 3.0}], "gss": [{}, {"centre": 0.5, "power": 3.0}],
    "tree": [{}, {"counts": COUNTS}], "two-level": [{"count": 3}, {"classes": "random"}],
}  # fmt: skip
WEIGHT = torch.linspace(0.5, 2.0, VOCAB, dtype=torch.float64)
CALLS: dict[str, dict[str, Any]] = {
    "mean": {}, "smoothed": {"label_smoothing": 0.2}, "weighted": {"class_weight": WEIGHT}, "spread": {"label_smoothing": 1.0},
    "both": {"label_smoothing": 0.1, "class_weight": WEIGHT}, "ignored": {"ignore_index": 3}, "all": {"ignore_index": None},
}  # fmt: skip
CASES = [(kind, options) for kind in sorted(HEADS) for options in OPTIONS.get(kind, [{}])]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_gradients_are_slopes(kind: str, options: dict[str, Any]) -> None:
    torch.manual_seed(5)
    head = build_head(kind, DIM, VOCAB, **options).double()
    for part in head.parameters():
        part.data.add_(0.3 * torch.randn_like(part))
    target = torch.randint(VOCAB, (ROWS,))
    target[2] = 3
    hidden = torch.randn(ROWS, DIM, dtype=torch.float64, requires_grad=True)
    own = {name: part for name, part in head.named_parameters() if part.requires_grad}

    def of(read: Callable[[Any], Tensor], *given: Any, **how: Any) -> Callable[..., Tensor]:
        def found(x: Tensor, *values: Tensor) -> Tensor:
            return read(torch.func.functional_call(head, dict(zip(own, values, strict=True)), (x, *given), how))

        return found

    asked = [of(lambda log_probs: log_probs)]
    for how in CALLS.values():
        if kind == "experts" and ("label_smoothing" in how or "class_weight" in how):
            continue  # refused: classes that an expert lacks have no probability
        asked += [of(lambda pair: pair.loss, target, **how), of(lambda pair: pair.output, target, **how)]
    for function in asked:
        assert torch.autograd.gradcheck(function, (hidden, *own.values()), fast_mode=True, atol=1e-6)
