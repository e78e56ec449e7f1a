"""Heads trained decision by decision: the same likelihood as a whole, the right rows for each decision, and how it ends.

And the tables that are made of them, on a small layer that is written as a harvest is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headlong import Layer
from headlong.bench.measure import Progress
from headlong.heads import DenseHead, Head, build_head, trees
from studies import papers
from studies.models.harvest import write
from studies.models.preconditioning import Turn, turn_of, turned_back
from studies.models.separate import AdamSettings, Rows, fit, leaf_ranges, sign_problem, subtrees, tuned

VOCAB, DIM, COUNT = 40, 6, 3000
PLAN = AdamSettings(passes=8, rate=3e-2)


def silent(stage: str) -> Progress:
    return lambda done, total: None


@pytest.fixture
def rows(rng: np.random.Generator) -> Rows:
    """Targets drawn from a softmax, rare classes among them; one class never comes."""
    weight, hidden = rng.standard_normal((VOCAB, DIM)), rng.standard_normal((COUNT, DIM)).astype(np.float32)
    logits = hidden @ weight.T - 2 * np.log(np.arange(1, VOCAB + 1)) + rng.gumbel(size=(COUNT, VOCAB))
    logits[:, -1] = -np.inf
    return Rows(torch.from_numpy(hidden), torch.from_numpy(logits.argmax(1)))


def heads(rng: np.random.Generator) -> list[Head]:
    features = rng.standard_normal((VOCAB, 3))
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("dense", {}), ("two-level", {"classes": "random"}), ("tree", {}), ("tree", {"tree": trees.learned(features)}),
        ("bands", {"cutoffs": [5, 15], "widths": [6, 6]}),
    ]  # fmt: skip
    return [build_head(kind, DIM, VOCAB, **options) for kind, options in kinds]


def loss(head: Head, rows: Rows) -> float:
    with torch.no_grad():
        return float(head(rows.hidden, rows.target).loss)


@pytest.mark.exhaustive
def test_every_head_ends_as_well_as_one_trained_as_a_whole(rows: Rows, rng: np.random.Generator) -> None:
    for head in heads(rng):
        whole = type(head).__name__, [one.detach().clone() for one in head.parameters()]
        ends = [loss(head, rows) for _ in fit(head, rows, PLAN)]
        assert ends[1] <= ends[0] + 5e-3, "two passes more do no harm where the loss is trained on"
        with torch.no_grad():
            for parameter, start in zip(head.parameters(), whole[1], strict=True):
                parameter.copy_(start)
        optimiser = torch.optim.Adam(head.parameters(), 2e-2)
        for step in range(400):
            optimiser.param_groups[0]["lr"] = 2e-2 * (1 - step / 400)
            optimiser.zero_grad()
            head(rows.hidden, rows.target).loss.backward()
            optimiser.step()
        assert ends[1] < loss(head, rows) + 0.03, whole[0]


def test_a_decision_sees_the_rows_below_it_and_no_others(rows: Rows, rng: np.random.Generator) -> None:
    for tree in (trees.huffman(trees.zipf(VOCAB)), trees.balanced(rng.permutation(VOCAB))):
        paths = trees.paths(tree)
        seen: dict[int, set[int]] = {}
        for nodes, signs, mine, way in subtrees(tree, rows.target.numpy()):
            for index, node in enumerate(nodes.tolist()):
                assert node not in seen, "every node belongs to one cut"
                below = mine[signs[way, index] != 0]
                seen[node] = set(below.tolist())
                for row in below[:20].tolist():
                    target = int(rows.target[row])
                    taken = paths.signs[target][(paths.nodes[target] == node) & (paths.signs[target] != 0)]
                    assert taken.tolist() == [signs[way[mine == row][0], index]]
        assert sorted(seen) == list(range(VOCAB - 1))
        for node in range(VOCAB - 1):
            classes = {c for c in range(VOCAB) if node in paths.nodes[c][paths.signs[c] != 0]}
            assert seen[node] == {row for row in range(COUNT) if int(rows.target[row]) in classes}


def test_the_classes_below_a_node_lie_side_by_side() -> None:
    tree = trees.huffman(trees.zipf(VOCAB))
    first, last, place = leaf_ranges(tree)
    assert sorted(place.tolist()) == list(range(VOCAB))
    assert (first[0], last[0]) == (0, VOCAB)
    for node, children in enumerate(tree):
        ranges = [(first[c], last[c]) if c >= 0 else (place[~c], place[~c] + 1) for c in children.tolist()]
        assert (ranges[0][0], ranges[0][1], ranges[1][1]) == (first[node], ranges[1][0], last[node])


def test_without_hidden_numbers_a_decision_learns_frequencies() -> None:
    way = torch.tensor([0] * 30 + [1] * 10)
    (weight, bias), _ = sign_problem(torch.zeros(40, 2), way, torch.tensor([[1.0], [-1.0]]), PLAN)
    assert torch.equal(weight, torch.zeros(1, 2))
    assert float(bias.sigmoid()) == pytest.approx(0.75, abs=0.02)


def test_a_trained_softmax_is_trained_on(rows: Rows) -> None:
    head = build_head("dense", DIM, VOCAB)
    assert isinstance(head, DenseHead)
    before = loss(head, rows)
    tuned(head, rows, PLAN)
    assert loss(head, rows) < before - 0.1


@pytest.fixture
def harvested(rows: Rows, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with the rows' own softmax, trained a little, and the rows as training and test text."""
    head = build_head("dense", DIM, VOCAB)
    list(fit(head, rows, AdamSettings(passes=2, rate=3e-2)))
    tensors: dict[str, Any] = {}
    for split, part in (("train", slice(0, 2500)), ("valid", slice(0, 400)), ("test", slice(2500, None))):
        tensors |= {f"{split}_hidden": rows.hidden[part].numpy().astype(np.float16)}
        tensors |= {f"{split}_target": rows.target[part].numpy().astype(np.int32)}
    write(tmp_path / "harvest/ptb-lstm", head.to_layer(), tensors, "made up")
    monkeypatch.setenv("HEADLONG_DATA", str(tmp_path))
    return tmp_path


def test_the_table_of_heads_goes_row_by_row(harvested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from studies.papers.svd_hierarchical import hierarchical as study

    monkeypatch.setattr(study, "RATE", 3e-2)
    (table,) = papers.tables("vlasova-softmax:hierarchical")
    assert not papers.missing(table)
    file = tmp_path / "rows.jsonl"
    for name in ("tree, huffman", "svd of", "full"):
        found = papers.study(table, file, {}, silent, f"head={name}")
    rows = {line["setting"]["head"]: line["got"] for line in found}
    assert list(rows) == ["tree, huffman", study.SVD, study.FULL, study.TUNED]
    layer, data = Layer.load(harvested / study.LAYER), study.read(harvested)
    z = data.test_hidden.astype(np.float64) @ np.asarray(layer.weight, np.float64).T + np.asarray(layer.bias, np.float64)
    lse = np.log(np.exp(z).sum(1))
    exact = np.exp((lse - z[np.arange(len(z)), data.test_target]).mean())
    full, svd, tree = rows[study.FULL], rows[study.SVD], rows["tree, huffman"]
    assert full["perplexity"] == pytest.approx(exact, rel=1e-4)
    assert (full["top1"], full["top10"]) == (1.0, 10.0)
    assert rows[study.TUNED]["perplexity"] < 1.1 * full["perplexity"]
    assert svd["rows"] == VOCAB // 10 and 0 < svd["top10"] <= 10 and svd["perplexity"] > 1
    assert tree["perplexity"] < 2 * exact
    assert tree["moved"] == pytest.approx(100 * (tree["longer"] / tree["perplexity"] - 1), abs=1e-2)
    assert len(papers.study(table, file, {}, silent, "head=full")) == 4, "nothing is run twice"


def test_a_preview_of_all_dimensions_is_the_full_softmax(harvested: Path) -> None:
    from studies.papers.svd_hierarchical import hierarchical as study

    layer, data = Layer.load(harvested / study.LAYER), study.read(harvested)
    ((first, mixed),) = study.previewed(layer, data.test_hidden[:50], DIM, 4)
    exact = data.test_hidden[:50].astype(np.float32) @ np.asarray(layer.weight).T + np.asarray(layer.bias)
    assert first == 0
    np.testing.assert_allclose(mixed, exact, atol=1e-4)


def test_a_curve_fitted_to_a_finished_layer_does_no_harm_where_it_was_fitted(
    harvested: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studies.papers.monotonic_softmax import finished as study

    monkeypatch.setattr(study, "STEPS", 30)
    monkeypatch.setattr(study, "BATCH", 200)
    (table,) = papers.tables("ganea2019:finished")
    found = {line["setting"]["curve"]: line["got"] for line in papers.results(table, silent)}
    assert set(found) == set(study.CURVES)
    assert found["none"]["parameters"] == 0 and found["temperature"]["parameters"] == 1
    assert all(got["test"] < 1.1 * found["none"]["test"] for got in found.values())


def test_what_is_trained_in_whitened_coordinates_says_the_same_of_vectors_as_they_are(
    rows: Rows, rng: np.random.Generator
) -> None:
    """Directions a few times as long as others, and far from 0: rotated vectors in one head, plain ones in the other."""
    stretched = rows.hidden * torch.logspace(-0.5, 0.5, DIM) + 3
    turn = turn_of(stretched)
    white = turn.of(stretched)
    assert white.mean(0).abs().max() < 1e-4
    assert (torch.cov(white.T) - torch.eye(DIM)).abs().max() < 0.05, "but for the ridge"
    for head in heads(rng):
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.normal_()
            inside = head.log_prob(white)
            turned_back(head, turn)
            assert torch.allclose(head.log_prob(stretched), inside, atol=2e-3), type(head).__name__


def test_whitening_gets_further_in_as_many_passes(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    stretched = Rows(rows.hidden * torch.logspace(-2, 1, DIM), rows.target)
    plain = Turn(torch.zeros(DIM), torch.eye(DIM))
    ends = []
    for turn in (turn_of, lambda hidden: plain):
        monkeypatch.setattr("studies.models.separate.turn_of", turn)
        head = build_head("dense", DIM, VOCAB)
        next(iter(fit(head, stretched, PLAN)))
        ends.append(loss(head, stretched))
    assert ends[0] < ends[1] - 0.02
