"""Verdicts, the registry, and SVD-softmax as a table: against a plain computation, and against the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headlong as hl
from headlong.errors import DataError, StoreError
from studies import papers
from studies.papers import Context, Model
from studies.papers.cells import RESULTS
from studies.papers.svd_hierarchical.rotation import Preview
from studies.papers.svd_hierarchical.softmax import ROWS, WIDTHS, Subject, evaluate, setting
from studies.tests.commands import silent


def test_a_table_without_its_data_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (table,) = papers.tables("vlasova-softmax:svd-characters")
    monkeypatch.delenv("HEADLONG_DATA", raising=False)
    assert "HEADLONG_DATA is not set" in papers.missing(table)
    monkeypatch.setenv("HEADLONG_DATA", str(tmp_path))
    assert "not found in the folder that HEADLONG_DATA names" in papers.missing(table)
    with pytest.raises(DataError, match="vlasova-softmax:svd-characters is not run: .*not found"):
        next(papers.results(table, silent))


@pytest.fixture
def layer(rng: np.random.Generator) -> hl.Layer:
    return hl.Layer(rng.standard_normal((1100, 32), np.float32), rng.standard_normal(1100).astype(np.float32))


def test_the_table_is_what_its_docstring_says(layer: hl.Layer, rng: np.random.Generator) -> None:
    hidden, calibration = (rng.standard_normal((count, 32), np.float32) for count in (20, 200))
    calibration *= np.linspace(0.1, 2, 32, dtype=np.float32)
    target = rng.integers(0, 1100, 20)
    about = Subject(layer, calibration, hidden, target, Model("made up", 1100, 32))
    found = {row.setting: row.got for row in evaluate(about, Context(Path(), silent))}
    assert len(found) == 2 * len(WIDTHS) * len(ROWS)
    weight = layer.weight.astype(np.float64)
    z = hidden @ weight.T + layer.bias
    for name, vectors in (("plain", None), ("weighted", calibration)):
        made = Preview.of(layer, 4, vectors)
        preview = hidden @ made.turn @ made.columns.T + layer.bias
        kl, ratio, covered, lost = [], [], [], []
        for exact, look, wanted in zip(z, preview, target, strict=True):
            chosen = set(np.argsort(-look)[:110].tolist())  # V / 10
            mixed = np.array([exact[i] if i in chosen else look[i] for i in range(1100)])
            p, q = np.exp(exact) / np.exp(exact).sum(), np.exp(mixed) / np.exp(mixed).sum()
            kl.append((p * np.log(p / q)).sum())
            ratio.append(np.exp(mixed).sum() / np.exp(exact).sum())
            covered.append(len(chosen & set(np.argsort(-exact)[:10].tolist())))
            lost.append((-np.log(q[wanted]), -np.log(p[wanted])))
        got = found[setting(name, 8, 10)]
        assert got["kl"] == pytest.approx(np.mean(kl), rel=1e-4)
        assert got["z_ratio"] == pytest.approx(np.mean(ratio), rel=1e-4)
        assert got["top10"] == pytest.approx(np.mean(covered))
        assert (got["loss"], got["full_loss"]) == pytest.approx(np.mean(lost, 0), rel=1e-4)


def test_a_study_goes_on_where_its_file_ends(tmp_path: Path) -> None:
    settings = [(("head", name), ("seed", "1")) for name in ("a", "b", "c")]
    ran: list[str] = []

    def run(context: Context) -> Iterator[papers.Row]:
        for row in context.left(settings):
            ran.append(row[0][1])
            yield papers.Row(row, {"x": float(len(ran))})

    table = papers.PaperTable("p", "t", "a claim", "unverified", (), run, planned=lambda: settings)
    path = tmp_path / "p.t.jsonl"
    assert [line["got"]["x"] for line in papers.study(table, path, {}, silent, "head=b")] == [1.0]
    path.write_text(path.read_text() + '{"cut sho')
    assert len(papers.study(table, path, {}, silent)) == 3
    assert ran == ["b", "a", "c"]
    assert papers.study(table, path, {}, silent) == papers.read(path)
    path.write_text("no json\n")
    with pytest.raises(StoreError, match="is not a file of results"):
        papers.read(path)


def test_the_synthetic_study_is_its_docstring() -> None:
    from studies.papers.monotonic_softmax import synthetic as ganea2019

    target = ganea2019.targets(0.01, 3, 50)
    np.testing.assert_allclose(target.sum(1), 1)
    assert 0.2 < target.max(1).mean() < 1 and (target >= 0).all()
    assert len(set(ganea2019.planned())) == len(ganea2019.planned()) == 2 * 5 * 3 * len(ganea2019.FITTED_HEADS)
    got = ganea2019.fit(0.01, 2, "mixture of 4, own contexts", 1, steps=2)
    assert got["cross_entropy"] > got["kl"] > 0 and 0 <= got["mode_match"] <= 100


def test_model_rows_differ_in_the_head_and_in_what_makes_up_for_it() -> None:
    from studies.papers.monotonic_softmax import language_models as study

    for name, table in study.STUDIES.items():
        recipes = {head: study.recipe_of(name, head, 2) for head in table.heads if head != study.TUNED}
        assert len({recipe.training for recipe in recipes.values()}) == 1
        whole = study.parameters("softmax", table.dim, study.vocab_of(table))
        for head, recipe in recipes.items():
            mine = study.parameters(head, recipe.model_options["dim"], study.vocab_of(table))
            assert abs(mine / whole - 1) < 1e-2, head
        assert study.width_of("MoS, K = 15", table) <= study.width_of("MoS, K = 3", table) < table.dim


@pytest.mark.parametrize("head", ["softmax", "MoS, K = 3", "MoC, K = 15"])
def test_parameters_are_those_of_the_model(head: str) -> None:
    from headlong.heads import build_head
    from studies.models.backbones.lstm import Lstm, LstmOptions
    from studies.papers.monotonic_softmax import language_models as study

    backbone = Lstm(LstmOptions(dim=12), 50)
    options = dict(study.TRAINED_HEADS[head])
    built = build_head(options.pop("kind"), 12, 50, backbone.tied(), **options)
    own = {id(one): one.numel() for part in (backbone, built) for one in part.parameters()}
    assert study.parameters(head, 12, 50) == sum(own.values())


def trained(head: str, seed: int, test: float, seconds: float = 2.0, products: str = "float32") -> dict[str, Any]:
    got = {"parameters": 10.0, "valid": test + 1, "test": test, "cpu_seconds_per_epoch": seconds}
    return {"setting": {"head": head, "seed": str(seed)}, "got": got, "environment": {"products": products}}


def test_times_are_compared_between_equal_products() -> None:
    from studies.papers.monotonic_softmax.beside_printed import beside

    lines = [trained("softmax", seed, 100, 2.0, "float32") for seed in (1, 2)]
    lines += [trained("PLIF, ours", 1, 95, 3.0, "float32"), trained("PLIF, ours", 2, 95, 1.0, "bfloat16")]
    found = beside(lines, "PLIF, ours", "seconds an epoch")
    assert found is not None and (found.share, found.pairs, found.seeds) == (1.5, 1, 2)
    alone = beside(lines[1:], "PLIF, ours", "seconds an epoch")
    assert alone is not None and np.isnan(alone.share), "nothing to stand beside"
    assert beside(lines, "MoS, K = 15", "test") is None


def test_a_planted_number_turns_its_cell(tmp_path: Path) -> None:
    from studies.papers.monotonic_softmax.printed import awd_parameters, cells

    for name in ("head-steps.json", "head-memory.json"):
        (tmp_path / name).write_text((RESULTS / name).read_text())
    for file, old, new, turned in (
        ("head-memory.json", "148709376", "1487093760", "MoS, memory"),
        ("head-memory.json", "194707456", "194707456000", "monotone network, K = 1,000 or more, memory"),
        ("ganea2019.ranks.json", '"press":299', '"press":9', "softmax of an increasing"),
    ):
        before = next(cell.status for cell in cells(RESULTS) if cell.what.startswith(turned))
        text = (RESULTS / file).read_text()
        assert old in text
        (tmp_path / file).write_text(text.replace(old, new))
        after = next(cell.status for cell in cells(tmp_path) if cell.what.startswith(turned))
        assert {before, after} == {"matched", "differs"}, "a planted number turns its verdict"
    layers = [torch.nn.LSTM(size, after) for size, after in ((400, 1150), (1150, 1150), (1150, 400))]
    own = sum(one.numel() for layer in layers for one in layer.parameters())
    assert awd_parameters(30, "softmax") == own + 30 * 401, "rows that are the embedding, and a bias for each class"
