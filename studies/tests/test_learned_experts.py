"""Doubly sparse experts that learn their classes: the start, the ramp, mitosis by noise, and what a stage is worth."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from headlong.heads import ExpertsHead
from headlong.heads.expert_pruning import prune
from studies.models.experts.growth import Vectors
from studies.models.experts.lasso_ramp import Set, TrainingPlan, divided, geometric_median, learn, look, started

QUICK = TrainingPlan(
    experts=(2, 4), load=1.0, lasso=1e-2, factor=3.0, rungs=4, last=4, first=40, rung=40, prune=10, slack=0.1, batch=200,
    proximal=0.2, gate_rate=2e-2, dropout=0.0, gamma=0.3, settle=40, longer=1, falls=1, noise=0.3, orphans="keep",
)  # fmt: skip


def layer_and_vectors(groups: int = 4, each: int = 6, dim: int = 12) -> Set:
    """Classes of far-apart groups, and the layer of their means, which is right about nearly all of them."""
    torch.manual_seed(1)
    means = (4 * torch.randn(groups, dim)).repeat_interleave(each, 0) + torch.randn(groups * each, dim)

    def drawn(count: int) -> Vectors:
        target = torch.randint(groups * each, (count,))
        return Vectors(means[target] + 0.4 * torch.randn(count, dim), target)

    bias = -0.5 * means.square().sum(1)
    valid = drawn(600)
    full = (valid.hidden @ means.T + bias).argmax(1) == valid.target
    return Set(means, bias, drawn(4000), valid, float(full.double().mean()))


def test_the_start_is_the_layer_with_the_least_lasso() -> None:
    data = layer_and_vectors()
    head = started(data, QUICK)
    assert head.experts == 1 and len(head.ids) == len(data.weight)
    rows = torch.cat([data.weight, data.bias[:, None]], 1)
    middle = geometric_median(rows, 200)
    least = (rows - middle).norm(dim=1).sum()
    for _ in range(20):
        assert (rows - middle - 0.05 * torch.randn_like(middle)).norm(dim=1).sum() > least - 1e-3
    logits = data.valid.hidden @ data.weight.T + data.bias
    ours = head.eval().topk(data.valid.hidden, 3)
    assert bool((ours == logits.topk(3).indices).all()), "a vector taken from every row changes no ranking"
    x = head.read(data.valid.hidden)
    scaled = functional.linear(x, head.parts()[0][0]) * head.route(x).value.mean()
    torch.testing.assert_close(scaled - scaled[:, :1], logits - logits[:, :1], rtol=1e-3, atol=1e-2 * float(logits.abs().max()))


def test_a_divided_expert_shares_its_vectors_and_keeps_its_logits() -> None:
    data = layer_and_vectors()
    generator = torch.Generator().manual_seed(0)
    head = started(data, QUICK)
    x = head.read(data.train.hidden)
    divided(head, x, 0.3, generator)
    before = head.route(x)
    assert abs(len(before.rows[0]) - 2000) <= 2, "half of the vectors each"
    weight = head.weight.detach().clone()
    rows = divided(head, x, 0.3, generator)
    after = head.route(x)
    assert head.experts == 4 and len(rows) == 2 * len(weight)
    assert float((after.best // 2 == before.best).double().mean()) > 0.6, "children stay near their parent"
    assert min(len(mine) for mine in after.rows) > 0.05 * len(x), "no sibling takes everything"
    scale = head.weight.detach() / weight[rows]
    torch.testing.assert_close(scale, torch.full_like(scale, float((before.value.mean() / after.value.mean()).detach())))


def test_a_look_counts_what_a_loop_counts() -> None:
    torch.manual_seed(0)
    head = ExpertsHead(8, 40, experts=3, gamma=1.1, units="rms").eval()
    with torch.no_grad():
        head.weight.normal_()
        head.gate.normal_()
    prune(head, orphans="allow")
    hidden, target = torch.randn(500, 8), torch.randint(40, (500,))
    seen = look(head, Vectors(hidden, target))
    log_prob, best = head.log_prob(hidden), head.route(head.read(hidden)).best
    sizes = torch.tensor([len(ids) for _, ids in head.parts()])
    finite = log_prob.gather(1, target[:, None]).isfinite()
    assert seen.rows == int(sizes.sum()) < 120
    assert seen.hit == pytest.approx(float(finite.double().mean()))
    assert seen.flops == pytest.approx(40 / (3 + float(sizes[best].double().mean())), rel=1e-5)
    right = log_prob.argsort(dim=1, descending=True)[:, :5] == target[:, None]
    assert seen.top[1] == pytest.approx(float((right.any(1) & finite[:, 0]).double().mean()))


def test_experts_learn_to_leave_out_and_a_stage_follows_from_the_seed() -> None:
    data = layer_and_vectors()
    lines: list[str] = []
    stages = list(learn(data, QUICK, 0, lines.append))
    assert [stage.experts for stage in stages] == [stage.head.experts for stage in stages] == [2, 4] and lines
    last = stages[-1].rungs[-1]
    assert last["rows"] < 0.75 * 4 * len(data.weight), "a quarter of the rows of four whole layers is gone"
    assert last["top1"] > data.full - 2 * QUICK.slack
    for one, other in zip(stages, learn(data, QUICK, 0, lines.append), strict=True):
        assert one.rungs == other.rungs
        assert torch.equal(one.head.ids, other.head.ids) and torch.equal(one.head.weight, other.head.weight)
