"""Doubly sparse softmax: how experts gain and lose classes, what training recovers, and the packed engine in detail."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import headlong as hl
from headlong.engines.structured.experts_in_numpy import ExpertsReference
from headlong.errors import DtypeError, IdError, OptionError, ShapeError
from headlong.heads.expert_pruning import follow, mitosis, prune, revive, seeded
from headlong.heads.experts import ExpertsHead
from headlong.heads.gate_starts import sharpness, spherical_means
from headlong.layers.experts import ExpertsLayer
from oracle import check_topk


def sparse(experts: int = 4, vocab: int = 60, dim: int = 8, keep: float = 0.4, **options: object) -> ExpertsHead:
    """A head whose experts know some of the classes each, all of them together every class but the last."""
    torch.manual_seed(5)
    head = ExpertsHead(dim, vocab, experts=experts, gamma=1.0, **options)
    with torch.no_grad():
        head.gate.normal_()
        head.weight.normal_()
        head.weight[torch.rand(len(head.weight)) > keep] *= 1e-3
        head.weight[vocab - 1 :: vocab] = 0
    prune(head, orphans="allow")
    return head


# the head


@pytest.mark.parametrize("bias", [True, False])
def test_absent_classes_have_no_probability(bias: bool) -> None:
    head = sparse(bias=bias)
    hidden = torch.randn(50, 8)
    log_prob = head.log_prob(hidden)
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(50))
    assert bool((log_prob[:, 59] == -math.inf).all())
    best = head.route(head.read(hidden)).best
    for row, expert in zip(log_prob, best.tolist(), strict=True):
        assert set(row.isfinite().nonzero()[:, 0].tolist()) == set(head.parts()[expert][1].tolist())
    target = torch.randint(59, (50,))
    torch.testing.assert_close(head(hidden, target).output, log_prob.gather(1, target[:, None])[:, 0])
    assert bool(head(hidden, target).loss.isfinite())


def test_penalties_are_their_formulas() -> None:
    head = sparse(load=0.5, lasso=0.1, expert_lasso=0.2, groups="class")
    route = head.route(head.read(torch.randn(40, 8)))
    importance = torch.stack([route.value[route.best == expert].sum() for expert in range(4)])
    norms = head.weight.norm(dim=1)
    classes = sum((norms[head.ids == c].square().sum() / 4).sqrt() for c in range(60))
    expected = 0.5 * importance.var(correction=0) / importance.mean() ** 2 + 0.1 * norms.sum() + 0.2 * classes
    torch.testing.assert_close(head.penalty(route), expected, rtol=1e-4, atol=1e-4)
    head.groups = "expert"
    frobenius = sum(part.norm() for part, _ in head.parts())
    expected = expected - 0.2 * classes + 0.2 * frobenius
    torch.testing.assert_close(head.penalty(route), expected, rtol=1e-4, atol=1e-4)


def test_a_noisy_gate_is_quiet_after_training() -> None:
    head = sparse(noise=True)
    x = head.read(torch.randn(200, 8))
    assert bool((head.train().route(x).best != head.route(x).best).any())
    assert bool((head.eval().route(x).best == head.route(x).best).all())


@pytest.mark.parametrize("change", ["prune", "mitosis", "revive"])
def test_optimisers_follow_the_rows(change: str) -> None:
    head = sparse()
    optimiser = torch.optim.Adam(head.parameters())
    hidden, target = torch.randn(40, 8), torch.randint(59, (40,))
    head(hidden, target).loss.backward()
    optimiser.step()
    before, moments = head.weight, optimiser.state[head.weight]["exp_avg"].clone()
    if change == "prune":
        head.gamma = 2.0
        rows = prune(head)
    elif change == "mitosis":
        rows = mitosis(head, 2, hidden)
    else:
        with torch.no_grad():
            head.gate[2] = -100 * hidden.mean(0).new_ones(9)
            head.gate[2, 8] = -1e4
        found = revive(head, hidden)
        assert found is not None and bool((torch.bincount(head.route(head.read(hidden)).best, minlength=4) > 0).all())
        rows = found
    follow(optimiser, before, head.weight, rows)
    assert (optimiser.state[head.weight]["exp_avg"] == moments[rows]).all() and len(rows) == len(head.ids)
    assert any(part is head.weight for group in optimiser.param_groups for part in group["params"])


def test_mitosis_leaves_rankings_alone() -> None:
    head = sparse()
    hidden = torch.randn(300, 8)
    before = head.topk(hidden, 5)
    parents = head.route(head.read(hidden)).best
    mitosis(head, 3, hidden)
    assert head.experts == 12
    same = head.route(head.read(hidden)).best // 3 == parents
    assert bool((head.topk(hidden, 5)[same] == before[same]).all()) and float(same.float().mean()) > 0.8
    assert 0.3 < float(head.route(head.read(hidden)).value.detach().mean()) <= 1.0


def test_pruning_keeps_every_class_unless_told_otherwise() -> None:
    head = ExpertsHead(4, 10, experts=2, gamma=0.5)
    with torch.no_grad():
        head.weight.fill_(1.0)
        head.weight[3] = 0.01
        head.weight[13] = 0.02
    with pytest.raises(OptionError, match=r"1 classes, 3 the first, would be in no expert"):
        prune(head, orphans="error")
    rows = prune(head)
    assert len(rows) == 19 and 3 in head.parts()[1][1] and 3 not in head.parts()[0][1]  # its longest row stays
    prune(head, orphans="allow")
    assert not bool((head.ids == 3).any())
    with torch.no_grad():
        head.weight[:9] = 0
    with pytest.raises(OptionError, match="expert 0 would be left without a class"):
        prune(head, orphans="allow")


def test_bad_configurations_are_named() -> None:
    with pytest.raises(OptionError, match="experts is 11; expected a whole number from 1 to 10"):
        ExpertsHead(4, 10, experts=11)
    with pytest.raises(OptionError, match="groups is 'words'; expected one of expert, class"):
        ExpertsHead(4, 10, groups="words")
    with pytest.raises(OptionError, match="lasso is -1.0; expected a number from 0 up"):
        ExpertsHead(4, 10, lasso=-1.0)
    with pytest.raises(OptionError, match="at most 10 experts"):
        mitosis(ExpertsHead(4, 10, experts=4), 3)
    with pytest.raises(OptionError, match="rows=9; expected 10"):
        seeded(torch.randn(10, 4), torch.zeros(10), torch.randn(30, 4), 2, 9)


def test_heads_of_other_sizes_are_loaded() -> None:
    head, other = sparse(), ExpertsHead(8, 60)
    other.load_state_dict(head.state_dict())
    hidden = torch.randn(9, 8)
    assert bool((other.log_prob(hidden) == head.log_prob(hidden)).all())


def test_spherical_means_find_directions() -> None:
    torch.manual_seed(0)
    centres = torch.eye(5)[:3]
    unit = nn.functional.normalize(centres.repeat_interleave(50, 0) + 0.05 * torch.randn(150, 5), dim=1)
    means = spherical_means(unit, 3).detach()
    assert float((means @ centres.T).max(0).values.min()) > 0.99
    scores = torch.randn(100, 3)
    share = float((scores * sharpness(scores, 0.8)).softmax(-1).max(-1).values.mean())
    assert share == pytest.approx(0.8, abs=0.01)


# training


def test_a_seeded_head_starts_near_the_layer() -> None:
    torch.manual_seed(2)
    centres = 3 * torch.randn(6, 12)
    weight = centres.repeat_interleave(30, 0) + 0.3 * torch.randn(180, 12)
    hidden = centres[torch.randint(6, (2000,))] + 0.3 * torch.randn(2000, 12)
    bias = 0.1 * torch.randn(180)
    head = seeded(weight, bias, hidden, experts=6, rows=240, load=0.1)
    assert len(head.ids) == 240 and head.experts == 6
    assert len(torch.unique(head.ids)) == 180
    full = (hidden @ weight.T + bias).argmax(-1)
    assert float((head.predict(hidden) == full).float().mean()) > 0.97


# the layer and its engine


def test_layers_that_contradict_themselves_are_refused() -> None:
    gate, weight = np.ones((2, 3), np.float32), np.ones((4, 3), np.float32)
    ids, starts = np.array([0, 2, 1, 2]), np.array([0, 2, 4])
    ExpertsLayer(gate, weight, ids, starts, 5)
    with pytest.raises(OptionError, match="2 experts for 1 classes"):
        ExpertsLayer(gate, weight, ids, starts, 1)
    with pytest.raises(OptionError, match="expert 1 has no class"):
        ExpertsLayer(gate, weight, ids, np.array([0, 4, 4]), 5)
    with pytest.raises(IdError, match="ids hold 0..2"):
        ExpertsLayer(gate, weight, ids, starts, 2)
    with pytest.raises(IdError, match="do not ascend"):
        ExpertsLayer(gate, weight, ids[::-1], starts, 5)
    with pytest.raises(ShapeError, match="expected \\[experts, 3\\]"):
        ExpertsLayer(gate[:, :2], weight, ids, starts, 5)
    with pytest.raises(ShapeError, match="do not divide 4 rows"):
        ExpertsLayer(gate, weight, ids, np.array([0, 2, 3]), 5)
    with pytest.raises(DtypeError, match="int64"):
        ExpertsLayer(gate, weight, ids.astype(np.float32), starts, 5)


@pytest.mark.parametrize("bias", [True, False])
def test_sparse_experts_answer_for_their_own_classes(bias: bool) -> None:
    head = sparse(experts=5, vocab=700, dim=16, bias=bias)
    hidden = torch.randn(40, 16)
    with torch.no_grad():
        exact = head.double().log_prob(hidden.double()).numpy()
        head.float()
    layer = head.to_layer()
    engine = hl.compile(layer, delta=0.0, threads=1)
    assert (engine.route(hidden.numpy()) == head.route(head.read(hidden)).best.numpy()).all()
    k = int(layer.sizes.max())
    top = engine.topk(hidden.double().numpy(), k=k, eps=1e-9)
    alive = np.isfinite(exact).sum(1)
    assert top.proved.all() and (alive < k).any()
    for b in range(40):
        check_topk(exact[b][exact[b] > -np.inf], *_renamed(top.ids[b], top.log_probs[b], exact[b], alive[b]), 1e-9)
        assert (top.ids[b, alive[b] :] == -1).all() and np.isneginf(top.log_probs[b, alive[b] :]).all()
    ids = np.arange(700)[None].repeat(40, 0)
    scored = engine.log_prob(hidden.double().numpy(), ids, eps=1e-9)
    assert (np.isneginf(scored.log_probs) == np.isneginf(exact)).all()
    finite = np.isfinite(exact)
    np.testing.assert_allclose(scored.log_probs[finite], exact[finite], atol=3e-9)
    with pytest.raises(hl.errors.InputError, match="positive probability"):
        engine.sample(hidden.numpy(), allowed=[699])


def _renamed(
    ids: np.ndarray, log_probs: np.ndarray, exact: np.ndarray, alive: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ids as positions among the classes that are alive."""
    return np.searchsorted(np.flatnonzero(exact > -np.inf), ids[:alive]), log_probs[:alive]


def test_native_and_reference_agree() -> None:
    layer = sparse(experts=3, vocab=200, dim=9).to_layer()
    hidden = np.random.default_rng(3).normal(size=(30, 9))
    engine, reference = hl.compile(layer, delta=0.0, threads=2), ExpertsReference(layer)
    found, wanted = engine._reader.topk(hidden, 20, 1e-9, 2, 0.0, 0), reference.topk(hidden, 20, 1e-9, 1, 0.0, 0)
    assert (found[1] == wanted[1]).all() and (found[9] == wanted[9]).all() and (found[5] == wanted[5]).all()
    np.testing.assert_allclose(found[0], wanted[0], atol=1e-12)
    assert (np.abs(found[2] - wanted[2]) <= found[4] + wanted[4]).all()
    np.testing.assert_allclose(engine._reader.everything(hidden, 200, 2), reference.everything(hidden, 200, 1), atol=1e-12)
    drawn = [one.sample(hidden, 5, 0.8, 3, 7, 1) for one in (engine._reader, reference)]
    assert (drawn[0][0] == drawn[1][0]).all()
    np.testing.assert_allclose(drawn[0][2], drawn[1][2], atol=1e-12)


def test_a_gate_that_cannot_decide_proves_nothing() -> None:
    weight = np.eye(4, dtype=np.float32)
    gate = np.array([[1.0, 2.0, 0, 0], [1.0, 2.0, 0, 0]], np.float32)
    layer = ExpertsLayer(gate, weight, np.array([0, 1, 2, 3]), np.array([0, 2, 4]), 4)
    engine = hl.compile(layer, threads=1)
    top = engine.topk(np.ones((1, 4), np.float32), k=2)
    assert not top.proved.any() and set(top.ids[0]) == {0, 1}  # the first of equal experts
