"""Trees, classes, bands and experts: how they are built and trained, what is refused, what losses and engines rest on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

import headlong as hl
from headlong import native
from headlong.engines.reference.descent import Paths, Reading, Steps
from headlong.engines.reference.gumbel import gumbels
from headlong.engines.structured.branches import native_tree
from headlong.engines.structured.experts_in_numpy import chosen, every_logit
from headlong.errors import DtypeError, IdError, NonFiniteError, OptionError, ShapeError
from headlong.heads import BandsHead, DifferentiatedHead, TreeHead, TwoLevelHead, build_head, classes, trees
from headlong.heads.expert_pruning import follow, mitosis, prune, revive, seeded
from headlong.heads.experts import ExpertsHead
from headlong.heads.gate_starts import sharpness, spherical_means
from headlong.heads.grouped import grouped_log_prob, linear_log_prob
from headlong.layers.bands import Band, BandsLayer
from headlong.layers.differentiated import Block, BlocksLayer
from headlong.layers.experts import ExpertsLayer
from headlong.layers.tree import TreeLayer, check_tree
from oracle import check_topk

Ids = NDArray[np.int64]
FEATURES = np.random.default_rng(0).standard_normal((37, 5)).astype(np.float32)


def depths(children: Ids) -> Ids:
    return (trees.paths(children).signs != 0).sum(axis=1)


def built(vocab: int, seed: int) -> dict[str, Ids]:
    rng = np.random.default_rng(seed)
    counts = rng.zipf(1.5, vocab).astype(float)
    features = rng.standard_normal((vocab, 3))
    learned = {"learned": trees.learned(features, counts), "evenly": trees.learned(features)}
    return {"balanced": trees.balanced(rng.permutation(vocab)), "huffman": trees.huffman(counts), **learned}


@given(vocab=st.integers(2, 70), seed=st.integers(0, 99))
def test_every_tree_has_every_class_once_and_its_paths_are_codes(vocab: int, seed: int) -> None:
    for children in built(vocab, seed).values():
        check_tree(children.reshape(-1), 2 * np.arange(vocab))
        assert np.isclose((0.5 ** depths(children).astype(float)).sum(), 1.0)  # Kraft's sum of a full code
        paths = trees.paths(children)
        codes = np.concatenate([paths.nodes * (paths.signs != 0), paths.signs], axis=1)
        assert len(np.unique(codes, axis=0)) == vocab


def test_depths_are_what_the_names_say() -> None:
    assert depths(trees.balanced(np.arange(1000))).max() == 10
    counts = np.array([8.0, 4, 2, 1, 1])
    assert depths(trees.huffman(counts)).tolist() == [1, 2, 3, 4, 4]
    p = counts / counts.sum()
    assert (p * depths(trees.huffman(counts))).sum() == pytest.approx(-(p * np.log2(p)).sum())
    assert depths(trees.huffman([5.0, 0.0, 5.0])).max() == 2  # never seen is not infinitely deep
    assert depths(trees.learned(FEATURES)).max() == 6


def test_a_learned_tree_keeps_alike_classes_together() -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((2, 8)) * 10
    features = centres[np.arange(40) % 2] + rng.standard_normal((40, 8))
    paths = trees.paths(trees.learned(features))
    side = ((paths.nodes == 0) * paths.signs).sum(axis=1)  # at the root
    assert (side[::2] == side[0]).all() and (side[1::2] == -side[0]).all()
    same = trees.learned(np.ones((9, 3)))  # nothing to tell apart: still a tree
    check_tree(same.reshape(-1), 2 * np.arange(9))


@pytest.mark.parametrize(
    ("children", "words"),
    [
        ([[1, ~0], [~1, ~1]], "misses class 2 and has class 1 2 times"),
        ([[1, ~0], [~1, ~3]], "class 3, with 3 leaves: a class is missing"),
        ([[1, 1], [~0, ~1]], "2 branches lead to node 1"),
        ([[0, ~0], [~1, ~2]], "1 branches lead to node 0"),
        ([[2, ~0], [~1, ~2]], "node 2 of 2"),
        ([[~0, ~1], [2, ~2], [1, ~3]], "node 1 cannot be reached from the root"),
    ],
)
def test_what_is_no_tree_is_named(children: list[list[int]], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        TreeHead(3, len(children) + 1, tree=np.array(children))
    with pytest.raises(OptionError, match=words):
        TreeLayer(np.zeros((len(children), 3), np.float32), None, np.array(children))


def test_bad_configurations_are_named() -> None:
    cases: list[tuple[type[Exception], str, Any]] = [
        (OptionError, "tree is 'oak'", lambda: TreeHead(3, 5, tree="oak")),
        (ShapeError, r"expected integers \[4, 2\]", lambda: TreeHead(3, 5, tree=np.zeros((3, 2), int))),
        (OptionError, r"class 1 has no word", lambda: TwoLevelHead(3, 5, classes=[0, 0, 2, 2, 2])),
        (ShapeError, r"expected \[5\]", lambda: TwoLevelHead(3, 5, classes=[0, 0])),
        (OptionError, "classes is 'best'", lambda: TwoLevelHead(3, 5, classes="best")),
        (OptionError, "count is 6; expected a whole number from 1 to 5", lambda: TwoLevelHead(3, 5, count=6)),
        (OptionError, r"cutoffs \[3, 2\]; expected rising", lambda: BandsHead(16, 5, cutoffs=[3, 2])),
        (OptionError, r"cutoffs\[0\] is 5; expected a whole number from 1 to 4", lambda: BandsHead(16, 5, cutoffs=[5])),
        (OptionError, r"widths\[0\] is 4; .*from 8 to 56", lambda: BandsHead(56, 9, cutoffs=[2, 5], widths=[4, 0])),
        (OptionError, r"counts is zero", lambda: BandsHead(16, 5, counts=np.zeros(5))),
        (NonFiniteError, r"counts\[1\] is -1", lambda: TreeHead(3, 2, counts=[1, -1])),
        (ShapeError, r"counts has shape \[4\]", lambda: BandsHead(16, 5, counts=np.ones(4))),
        (OptionError, "adding up to 9", lambda: DifferentiatedHead(4, 9, sizes=[4, 4], widths=[4, 2])),
        (OptionError, "none larger than the one before", lambda: DifferentiatedHead(4, 9, sizes=[4, 5], widths=[2, 4])),
        (OptionError, "add up to 6", lambda: DifferentiatedHead(4, 9, sizes=[4, 5], widths=[4, 2], columns="split")),
        (NonFiniteError, "1 classes have no context vector, class 3", lambda: trees.learned(_unseen())),
    ]
    for kind, words, make in cases:
        with pytest.raises(kind, match=words):
            make()


def _unseen() -> Any:
    hidden, target = np.ones((6, 2)), np.array([0, 1, 2, 4, 4, 2])
    with pytest.raises(NonFiniteError):
        trees.learned(trees.contexts(hidden, target, 5))
    assert np.isfinite(trees.contexts(hidden, target, 5, unseen=np.zeros((5, 2)))).all()
    return trees.contexts(hidden, target, 5)


def test_layers_refuse_parts_that_do_not_fit() -> None:
    plain, capped = hl.Layer(np.ones((4, 3), np.float32)), hl.Layer(np.ones((4, 3), np.float32), link=hl.SoftCap(3.0))
    wide, turn = hl.Layer(np.ones((4, 5), np.float32)), np.ones((3, 4), np.float32)
    cases: list[tuple[type[Exception], str, Any]] = [
        (OptionError, "has a link", lambda: BandsLayer(plain, [Band(capped)])),
        (ShapeError, "band 0 reads 3 numbers", lambda: BandsLayer(wide, [Band(plain)])),
        (ShapeError, r"expected \[3, 5\]", lambda: BandsLayer(wide, [Band(plain, turn)])),
        (OptionError, "one row for each band", lambda: BandsLayer(plain, [])),
        (OptionError, "block 0 has the link", lambda: BlocksLayer([Block(capped)], 3)),
        (OptionError, "start at 0 to 1", lambda: BlocksLayer([Block(plain, 2)], 4)),
        (OptionError, "starts has to rise", lambda: TreeLayer(np.ones((3, 2), np.float32), None, [~0, ~1, ~2], [0, 2])),
    ]
    for kind, words, make in cases:
        with pytest.raises(kind, match=words):
            make()
    broken = np.full((4, 3), np.nan, np.float32)
    with pytest.raises(NonFiniteError, match="NaN"):
        hl.compile(BandsLayer(plain, [Band(hl.Layer(broken))]))


def test_classes_are_equal_in_what_their_names_say() -> None:
    counts = 1000.0 / np.arange(1, 401)
    group = classes.by_frequency(counts, 400, 20)
    mass = np.bincount(group, np.sqrt(counts))
    assert len(mass) == 20 and mass.max() < 2 * mass.mean() and (np.diff(group) >= 0).all()
    assert len(np.bincount(classes.by_frequency([1e9, 1, 1, 1], 4, 4))) == 4
    for equal in (classes.at_random(401, 20), classes.clustered(np.random.default_rng(0).standard_normal((401, 4)), 20)):
        sizes = np.bincount(equal)
        assert len(sizes) == 20 and sizes.max() - sizes.min() <= 2
    assert (classes.at_random(401, 20) == classes.at_random(401, 20)).all()


def test_grouped_is_the_log_softmax_of_each_group_and_ignores_the_rest() -> None:
    torch.manual_seed(0)
    hidden, weight, bias = torch.randn(9, 4, dtype=torch.float64), torch.randn(11, 4, dtype=torch.float64), torch.randn(11)
    starts, group = torch.tensor([0, 3, 7, 11]), torch.tensor([2, 0, -1, 2, 2, 0, 0, -1, 2])
    place = torch.tensor([3, 2, 0, 0, 1, 1, 0, 0, 3])
    out = grouped_log_prob(hidden, group, place, weight, bias.double(), starts)
    for n in range(9):
        part = slice(int(starts[group[n]]), int(starts[group[n] + 1]))
        expected = (weight[part] @ hidden[n] + bias[part]).log_softmax(0)[place[n]] if group[n] >= 0 else torch.zeros(())
        torch.testing.assert_close(out[n], expected, check_dtype=False)


@pytest.mark.parametrize("biased", [True, False])
def test_one_class_of_each_row_has_the_gradients_of_a_log_softmax(biased: bool) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(7, 5, dtype=torch.float64) * 9, torch.randn(12, 5, dtype=torch.float64) * 9
    bias, place = torch.randn(12, dtype=torch.float64) if biased else None, torch.randint(12, (7,))
    parts = [part.requires_grad_() for part in (x, weight, bias) if part is not None]
    assert torch.autograd.gradcheck(lambda *_: linear_log_prob(x, weight, bias, place), parts)
    found = linear_log_prob(x, weight, bias, place)
    expected = functional.linear(x, weight, bias).log_softmax(1).gather(1, place[:, None])[:, 0]
    assert float(expected.detach().min()) < -120, "where a probability is nothing in float32"
    torch.testing.assert_close(found, expected)
    low = None if bias is None else bias.float()
    torch.testing.assert_close(linear_log_prob(x.float(), weight.float(), low, place), expected.float())
    with torch.no_grad():
        torch.testing.assert_close(linear_log_prob(x, weight, bias, place), expected)


@pytest.mark.parametrize("kind", ["bands", "two-level", "tree", "differentiated"])
def test_a_step_compiles_to_one_graph(kind: str) -> None:
    """``fullgraph=True`` raises where the graph breaks; the eager backend keeps the test quick."""
    torch.manual_seed(0)
    head, hidden = build_head(kind, 16, 65), torch.randn(12, 16)
    target = torch.randint(65, (12,))

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return head(x, y, ignore_index=None).loss

    torch._dynamo.reset()
    found = torch.compile(loss, fullgraph=True, backend="aot_eager")(hidden, target)
    torch.testing.assert_close(found, loss(hidden, target))
    found.backward()
    mine = [parameter.grad.clone() for parameter in head.parameters() if parameter.grad is not None]
    head.zero_grad()
    loss(hidden, target).backward()
    for one, other in zip(mine, (p.grad for p in head.parameters() if p.grad is not None), strict=True):
        torch.testing.assert_close(one, other)


def test_bands_are_torchs_own_with_the_same_weights() -> None:
    """``torch.nn.AdaptiveLogSoftmaxWithLoss``, whose bands have no bias, and whose ids are sorted by frequency."""
    torch.manual_seed(0)
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(32, 60, [10, 30], div_value=2.0, head_bias=True)
    ours = BandsHead(32, 60, cutoffs=[10, 30], widths=[16, 8])
    with torch.no_grad():
        ours.head_weight.copy_(theirs.head.weight)
        ours.head_bias.copy_(theirs.head.bias)
        for number, (turn, tail) in enumerate(theirs.tail):
            ours.projections[number].copy_(turn.weight)
            ours.weights[number].copy_(tail.weight)
    hidden, target = torch.randn(50, 32), torch.randint(60, (50,))
    torch.testing.assert_close(ours(hidden, target).loss, theirs(hidden, target).loss)
    torch.testing.assert_close(ours.log_prob(hidden), theirs.log_prob(hidden))
    top = hl.compile(ours.to_layer()).topk(hidden.numpy(), k=7)
    values, ids = theirs.log_prob(hidden).topk(7)
    assert (top.ids == ids.numpy()).mean() > 0.99
    np.testing.assert_allclose(top.log_probs, values.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("level", native.levels()[1:])
@pytest.mark.parametrize("kind", ["bands", "two-level", "tree"])
def test_the_native_descent_finds_the_best_of_every_class_and_opens_the_nodes_that_are_as_likely(kind: str, level: str) -> None:
    torch.manual_seed(1)
    head = build_head(kind, 33, 300)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(20)
    engine = hl.compile(head.to_layer())
    steps = engine.steps  # type: ignore[attr-defined]
    paths = Paths(steps)
    search, hidden = native_tree(paths, 33, level), np.random.default_rng(0).standard_normal((9, 33))
    every = paths.everything(hidden)
    nodes = [log_probs_of_nodes(steps, row) for row in hidden]
    rows = np.ones(len(steps.part), int) if steps.two_way else np.diff(steps.starts)
    for k in (1, 10, 300):
        log_probs, ids, opened, _ = search.best(hidden, k, 2)
        order = np.lexsort((np.broadcast_to(np.arange(300), every.shape), -every), axis=1)[:, :k]
        assert (ids == order).all()
        np.testing.assert_allclose(log_probs, np.take_along_axis(every, order, 1), atol=1e-11)
        worst = log_probs[:, -1] - 1e-11
        assert opened.tolist() == [int(rows[one >= least].sum()) for one, least in zip(nodes, worst, strict=True)]
    ids = np.random.default_rng(1).integers(0, 300, (9, 12))
    np.testing.assert_allclose(search.log_probs(hidden, ids, 2)[0], np.take_along_axis(every, ids, 1), atol=1e-11)


def log_probs_of_nodes(steps: Steps, hidden: np.ndarray) -> np.ndarray:
    """Of the way to each node, all of which are opened."""
    reading, found = Reading(steps, hidden), np.zeros(len(steps.part))
    below = [0]
    for node in below:
        children = steps.children[steps.starts[node] : steps.starts[node + 1]]
        inner = children >= 0
        found[children[inner]] = found[node] + reading.open(node)[inner]
        below += children[inner].tolist()
    return found


def test_ties_go_by_class_and_a_search_opens_no_more_than_it_must() -> None:
    """All log-probabilities equal: ids come in order. One class has nearly all: one path is opened."""
    head = TreeHead(4, 64, tree="balanced")
    with torch.no_grad():
        head.weight.zero_()
    flat = hl.compile(head.to_layer()).topk(np.ones((1, 4), np.float32), k=9)
    assert flat.ids.tolist() == [list(range(9))] and flat.cost.rows[0] == 63
    with torch.no_grad():
        path = head.nodes[17], head.signs[17]
        head.bias[path[0]] = 30 * path[1]
    peaked = hl.compile(head.to_layer()).topk(np.ones((1, 4), np.float32), k=1)
    assert peaked.ids[0, 0] == 17 and peaked.cost.rows[0] == 6


def test_a_closed_band_is_not_read() -> None:
    head = BandsHead(16, 400, cutoffs=[20, 100])
    with torch.no_grad():
        head.head_bias[20:] = -20
        head.head_bias[:20] = torch.arange(20) * 1.0
    engine = hl.compile(head.to_layer())
    hidden = np.zeros((1, 16), np.float32)
    top = engine.topk(hidden, k=10)
    assert top.ids[0].tolist() == list(range(19, 9, -1)) and top.cost.rows[0] == 22
    assert engine.topk(hidden, k=25).cost.rows[0] > 22
    assert engine.sample(hidden, seed=1).cost.rows[0] == 22


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


def test_bad_experts_are_named() -> None:
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


def test_experts_answer_by_every_class_of_theirs() -> None:
    layer = sparse(experts=3, vocab=200, dim=9).to_layer()
    hidden = np.random.default_rng(3).normal(size=(30, 9))
    engine, routes = hl.compile(layer, delta=0.0, threads=2), [chosen(layer, row) for row in hidden]
    every = every_logit(layer, routes)
    found = engine._reader.best(hidden, 20, 1e-9, 2)
    wanted = np.argsort(-every, axis=1, kind="stable")[:, :20]
    best = np.take_along_axis(every, wanted, 1)
    assert (found.ids == np.where(np.isneginf(best), -1, wanted)).all()
    assert found.expert.tolist() == [one.expert for one in routes]
    assert found.proved.tolist() == [one.sure for one in routes]
    np.testing.assert_allclose(found.logits, best, atol=1e-12)
    with np.errstate(divide="ignore"):
        lse = np.log(np.exp(every).sum(axis=1))
    assert (np.abs(found.lse - lse) <= found.lse_error + 1e-9).all()
    np.testing.assert_allclose(engine._reader.everything(hidden, 200, 2), every, atol=1e-12)
    drawn = engine._reader.sample(hidden, 5, 0.8, 3, 7, 1)
    for row in range(30):
        keys = every[row] / 0.8 + np.array([gumbels(3, 7 + row, draw, np.arange(200)) for draw in range(5)])
        assert (drawn.ids[row] == keys.argmax(axis=1)).all()
        np.testing.assert_allclose(drawn.score[row], keys.max(axis=1), atol=1e-12)


def test_a_gate_that_cannot_decide_proves_nothing() -> None:
    weight = np.eye(4, dtype=np.float32)
    gate = np.array([[1.0, 2.0, 0, 0], [1.0, 2.0, 0, 0]], np.float32)
    layer = ExpertsLayer(gate, weight, np.array([0, 1, 2, 3]), np.array([0, 2, 4]), 4)
    engine = hl.compile(layer, threads=1)
    top = engine.topk(np.ones((1, 4), np.float32), k=2)
    assert not top.proved.any() and set(top.ids[0]) == {0, 1}  # the first of equal experts
    for some in ([0, 1], [0, 1, 2]):  # few, whose rows are read, and more, for which every class is
        assert not engine.topk(np.ones((1, 4), np.float32), k=2, allowed=some).proved.any()
        assert not engine.sample(np.ones((1, 4), np.float32), seed=1, allowed=some, eps=math.inf).proved.any()
