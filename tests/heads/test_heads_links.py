"""Curves, the loss in pieces, mixtures: by the formula in float64, by finite differences, and as frozen layers in engines."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import headlong as hl
from headlong import native
from headlong.errors import OptionError, ShapeError
from headlong.heads import LINK_HEADS, build_head, chunked_loss
from headlong.heads.curves import Monotone
from headlong.heads.links import CURVES, build_curve
from headlong.heads.plif import PiecewiseLinear, Plif
from headlong.layers.mixture import MixtureLayer
from headlong.links import Table
from oracle import check_topk, check_within, truth
from thinned import NATIVE

KINDS: list[tuple[str, dict[str, Any]]] = [
    *((head.name, {}) for head in LINK_HEADS), ("plif", {"knots": 1}),
    ("plif", {"knots": 100_000, "start": "random", "gain": 1.0}), ("plif", {"reach": 0.5}),
    ("gss", {"centre": -1.5, "power": 2.5}), ("mos", {"components": 3, "latent": 5}),
    ("mos", {"curve": "plif", "knots": 32}), ("mos", {"curve": "sigsoftmax", "components": 1}), ("moc", {}),
]  # fmt: skip


def shaken(kind: str, options: dict[str, Any], dim: int = 12, vocab: int = 41) -> Any:
    """A head whose parameters are far from where they start."""
    torch.manual_seed(4)
    head = build_head(kind, dim, vocab, **options)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.5 if parameter.ndim > 1 else 1.0))
    return head


def asked(rows: int = 37, dim: int = 12, vocab: int = 41) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(rows, dim, generator=generator), torch.randint(vocab, (rows,), generator=generator)


def gradients(head: Any, hidden: Tensor, target: Tensor, by: str) -> tuple[Tensor, list[Tensor]]:
    leaf = hidden.clone().requires_grad_()
    head.zero_grad()
    if by == "loss":
        loss = head(leaf, target).loss
    elif by == "output":
        loss = -head(leaf, target).output.mean()
    else:
        loss = -head.log_prob(leaf).gather(1, target[:, None]).mean()
    loss.backward()
    return loss.detach(), [leaf.grad, *(p.grad for p in head.parameters() if p.requires_grad)]  # type: ignore[list-item]


@pytest.mark.parametrize("chunk", [0, 8])
@pytest.mark.parametrize(("kind", "options"), KINDS, ids=str)
def test_the_loss_and_its_gradients_are_the_formulas(kind: str, options: dict[str, Any], chunk: int) -> None:
    """Native kernels in float32 and PyTorch in float64, each against autograd through ``log_prob`` in float64."""
    head, (hidden, target) = shaken(kind, {**options, "chunk": chunk}), asked()
    wide = copy.deepcopy(head).double()
    expected, exact = gradients(wide, hidden.double(), target, "log_prob")
    # among 1e5 random slopes a logit's rounding finds the next one
    near = 5e-4 if options.get("knots") == 100_000 else 3e-5
    for found, by in ((wide, "loss"), (wide, "output"), (head, "loss"), (head, "output")):
        double = found is wide
        loss, grads = gradients(found, hidden.double() if double else hidden, target, by)
        torch.testing.assert_close(loss.double(), expected, rtol=0, atol=1e-12 if double else 3e-6)
        for got, true in zip(grads, exact, strict=True):
            assert float((got.double() - true).norm()) <= (1e-11 if double else near) * float(true.norm() + 1e-3), by


@pytest.mark.parametrize("knots", [1, 2, 17, 100_000])
def test_plif_is_its_formula_and_its_gradient_is_autograds(knots: int) -> None:
    torch.manual_seed(0)
    slopes = torch.rand(knots, dtype=torch.float64).add_(0.1).requires_grad_()
    logits = (torch.randn(64, dtype=torch.float64) * 9).requires_grad_()  # some beyond the knots
    delta = 6.0 / knots
    cell = ((logits.detach() + 3) / delta).floor().clamp(0, knots - 1).long()
    naive = delta * (slopes.cumsum(0) - slopes)[cell] + (logits + 3 - delta * cell.double()) * slopes[cell]
    found = PiecewiseLinear.apply(logits, slopes, 3.0)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(found, naive)
    upstream = torch.randn(64, dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(value, (logits, slopes), upstream) for value in (found, naive))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_infinite_logits_have_no_share_in_the_slopes() -> None:
    slopes = torch.ones(8, requires_grad=True)
    logits = torch.tensor([0.5, -float("inf"), float("inf"), 1e30], requires_grad=True)
    found = PiecewiseLinear.apply(logits, slopes, 2.0)  # type: ignore[no-untyped-call]
    assert found[1] == -float("inf") and found[2] == float("inf")
    found[0].backward()
    assert slopes.grad is not None and slopes.grad.isfinite().all()
    z = np.array([[0.5, -np.inf, 1.0]], np.float32)
    link = build_curve("plif", knots=8).lowered()
    assert link is not None
    lse, _ = native.link_losses(z, np.array([0]), link, 1)
    sums = native.link_gradients(z, np.array([0]), lse, np.ones(1, np.float32), link, 1)
    assert np.isfinite(sums).all() and np.isfinite(z).all() and z[0, 1] == 0


@NATIVE
@pytest.mark.parametrize("name", ["identity", "temperature", "softcap", "sigsoftmax", "gss", "plif", "monotone"])
@pytest.mark.parametrize("vocab", [2, 15, 16, 17, 65, 1025])
def test_native_losses_on_every_level(name: str, vocab: int, level: str) -> None:
    torch.manual_seed(3)
    curve = build_curve(name)
    with torch.no_grad():
        for parameter in curve.parameters():
            parameter.normal_()
    link = curve.lowered()
    assert link is not None
    z, target = torch.randn(5, vocab) * 8, torch.randint(vocab, (5,))
    scale = torch.rand(5).sub_(0.3)
    wide = copy.deepcopy(curve).double()
    leaf = z.double().requires_grad_()
    f = wide(leaf)
    ce = f.logsumexp(1) - f.gather(1, target[:, None])[:, 0]
    exact = torch.autograd.grad(ce, [leaf, *wide.parameters()], scale.double())
    logits = z.numpy().copy()
    lse, at = native.link_losses(logits, target.numpy(), link, 2)
    np.testing.assert_allclose(lse - at, ce.detach().numpy(), atol=2e-5)
    sums = native.link_gradients(logits, target.numpy(), lse, scale.numpy(), link, 2)
    np.testing.assert_allclose(logits, exact[0].numpy(), atol=3e-5)
    for got, true in zip(curve.gradients(torch.from_numpy(sums)), exact[1:], strict=True):
        torch.testing.assert_close(got, true, atol=2e-4, rtol=1e-4)


def test_sums_do_not_depend_on_the_moment() -> None:
    z, target, link = torch.randn(33, 501).numpy(), np.arange(33), build_curve("plif").lowered()
    assert link is not None
    found = []
    for _ in range(3):
        logits = z.copy()
        lse, _ = native.link_losses(logits, target, link, 2)
        found.append(native.link_gradients(logits, target, lse, np.ones(33, np.float32), link, 2).tobytes())
    assert len(set(found)) == 1


def test_slopes_stay_put_where_frozen_and_steps_do_not_shrink_with_knots() -> None:
    hidden, target = asked()
    frozen = build_head("plif", 12, 41, start="random", frozen=True)
    assert "curve.value" not in [name for name, p in frozen.named_parameters() if p.requires_grad]
    moved = []
    for knots in (64, 4096):
        head = build_head("plif", 12, 41, torch.full((41, 12), 0.5), knots=knots)
        with torch.no_grad():
            head.weight.copy_(torch.randn(41, 12, generator=torch.Generator().manual_seed(0)))  # type: ignore[operator]
        before = head.curve.slopes().detach().clone()  # type: ignore[operator, union-attr]
        head(hidden, target).loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            head.curve.value -= 20.0 * head.curve.value.grad  # type: ignore[union-attr, operator]
        moved.append(float((head.curve.slopes().detach() - before).abs().max()))  # type: ignore[operator, union-attr]
    assert 0.5 < moved[0] / moved[1] < 2


@pytest.mark.parametrize("options", [{"knots": 0}, {"reach": -1.0}, {"start": "zero"}, {"gain": 0.0}, {"knots": 1 << 21}])
def test_bad_options_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="expected"):
        build_head("plif", 3, 7, **options)
    with pytest.raises(OptionError, match="no curve is called 'cubic'; there are .*plif"):
        build_head("mos", 3, 7, curve="cubic")
    with pytest.raises(OptionError, match="components is 0"):
        build_head("mos", 3, 7, components=0)
    with pytest.raises(ShapeError, match="set latent"):
        build_head("mos", 3, 7, torch.zeros(7, 4))


def test_curves_are_frozen_as_they_are(rng: np.random.Generator) -> None:
    z = np.concatenate([rng.uniform(-30, 30, 5000), [-300.0, 300.0]])
    for name, curve in {**{name: build_curve(name) for name in CURVES}, "published": Plif(100_000, start="random")}.items():
        with torch.no_grad():
            for parameter in curve.parameters():
                parameter.normal_()
        wide = curve.double()
        link = wide.to_link()
        error = link.error if isinstance(link, Table) else 0.0
        found, expected = link(z), wide(torch.from_numpy(z)).detach().numpy()
        assert np.abs(found - expected).max() <= error + 1e-8 * np.abs(expected).max(), name
    assert isinstance(Monotone().to_link(), Table)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["plif", "sigsoftmax", "monotone"])
def test_a_frozen_head_is_read_with_proof(kind: str, dtype: torch.dtype) -> None:
    head = shaken(kind, {}, 24, 700)
    layer = head.to(dtype).to_layer()
    assert layer.dtype == str(dtype).removeprefix("torch.")
    hidden = np.random.default_rng(0).standard_normal((12, 24)).astype(np.float32)
    exact = truth(layer, hidden)
    for method in ("full", "codes"):
        engine = hl.compile(layer, method=method, delta=0.0, eps=0.02)
        top = engine.topk(hidden, k=10)
        assert top.proved.all() and (top.error <= 0.02).all()
        check_within(top.lse, exact.lse, top.error, 1e-9)
        for b in range(len(hidden)):
            check_topk(exact.logits[b], top.ids[b], top.logits[b], 1e-9)


def test_a_mixture_survives_a_round_trip_through_a_layer() -> None:
    head = shaken("mos", {"curve": "plif", "components": 3, "latent": 9})
    layer = head.to_layer()
    assert isinstance(layer, MixtureLayer) and (layer.components, layer.latent, layer.dim, layer.vocab) == (3, 9, 12, 41)
    hidden, _ = asked(6)
    exact = copy.deepcopy(head).double().log_prob(hidden.double()).detach().numpy()
    engine = hl.compile(layer, delta=0.0)
    found = engine.log_prob(hidden.numpy(), np.tile(np.arange(41), (6, 1)), eps=1e-9)
    check_within(found.log_probs, exact, found.error[:, None], 1e-6)
    assert "3 components of 9" in repr(layer)


@pytest.mark.parametrize("kind", ["plif", "mos"])
def test_a_loss_that_is_only_looked_at_makes_no_gradients(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head, (hidden, target) = shaken(kind, {}), asked()
    expected = head(hidden, target).loss.detach()
    monkeypatch.setattr(chunked_loss, "_zeros", lambda problem: pytest.fail("gradients were made"))
    with torch.no_grad():
        torch.testing.assert_close(head(hidden, target).loss, expected)
