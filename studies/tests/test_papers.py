"""Verdicts, the registry, and SVD-softmax as a table: against a plain computation, and against the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headlong as hl
from headlong.bench.measure import Progress
from headlong.errors import DataError, OptionError, StoreError
from studies import papers
from studies.papers import Context, Model
from studies.papers.svd_hierarchical import softmax as vlasova_softmax
from studies.papers.svd_hierarchical.rotation import Preview
from studies.papers.svd_hierarchical.softmax import ROWS, WIDTHS, Exact, Subject, compare, evaluate, setting
from studies.papers.verdicts import Expected


def silent(_: str) -> Progress:
    return lambda done, total: None


@pytest.mark.parametrize(
    ("expected", "got", "verdict"),
    [
        (Expected(1.0, 2.0), 1.0, "matched"),
        (Expected(1.0, 2.0), 2.0, "matched"),
        (Expected(1.0, 2.0), 2.01, "differs"),
        (Expected(1.0, 2.0, 0.02), 2.01, "matched"),
        (Expected(1.0, 2.0, 0.02), 0.97, "differs"),
    ],
)
def test_a_verdict_is_the_range_and_its_tolerance(expected: Expected, got: float, verdict: str) -> None:
    assert expected.verdict(got) == verdict


def test_tables_are_found_by_paper_and_by_name() -> None:
    (table,) = papers.tables("vlasova-softmax:svd")
    assert table in papers.tables("vlasova-softmax")
    assert table in papers.tables()
    with pytest.raises(OptionError, match="there is no table 'nope'; expected one of .*vlasova-softmax:svd"):
        papers.tables("nope")


def test_a_table_without_its_data_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (table,) = papers.tables("vlasova-softmax:svd")
    monkeypatch.delenv("HEADLONG_DATA", raising=False)
    assert "HEADLONG_DATA is not set" in papers.missing(table)
    monkeypatch.setenv("HEADLONG_DATA", str(tmp_path))
    assert "not found in the folder that HEADLONG_DATA names" in papers.missing(table)
    with pytest.raises(DataError, match="vlasova-softmax:svd is not run: .*not found"):
        next(papers.results(table, silent))


def test_results_are_lines_of_json(tmp_path: Path) -> None:
    papers.write(tmp_path / "new" / "t.jsonl", [{"got": {"a": 1.5}}, {"got": {}}], {"date": "2026-01-02"})
    lines = [json.loads(line) for line in (tmp_path / "new" / "t.jsonl").read_text().splitlines()]
    assert lines[0] == {"got": {"a": 1.5}, "environment": {"date": "2026-01-02"}}
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        papers.write(tmp_path / "file" / "t.jsonl", [], {})


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


def test_the_engine_answers_what_the_table_measures(layer: hl.Layer, rng: np.random.Generator) -> None:
    hidden = rng.standard_normal((12, 32)).astype(np.float32).astype(np.float64)
    engine = hl.compile(layer, method="svd", width=4, rows=-(-1100 // 16), threads=1)
    top = engine.topk(hidden, k=10)
    exact = Exact(hidden @ layer.weight.astype(np.float64).T + layer.bias)
    made = Preview.of(layer, 4)
    preview = (hidden @ made.turn).astype(np.float32) @ made.columns.T + layer.bias
    values = dict(compare(exact, preview, np.zeros(12, np.int64)))[16]
    covered = sum(len(set(a) & set(b)) for a, b in zip(top.ids.tolist(), exact.best[:, :10].tolist(), strict=True))
    assert covered == values[0]
    ratio = np.exp(top.lse - exact.lse)
    assert ratio.sum() == pytest.approx(values[4], rel=1e-4)


def test_a_full_preview_has_no_error(layer: hl.Layer, rng: np.random.Generator) -> None:
    exact = Exact(rng.standard_normal((5, 32)) @ layer.weight.astype(np.float64).T + layer.bias)
    for _, values in compare(exact, exact.z.astype(np.float32), np.zeros(5, np.int64)):
        assert values[0] == 5 * 10
        assert abs(values[3]) < 1e-4
        assert values[4] == pytest.approx(5, abs=1e-4)


def test_on_the_trained_layer_weighting_helps(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (table,) = papers.tables("vlasova-softmax:svd")
    if papers.missing(table):
        pytest.skip(papers.missing(table))
    monkeypatch.setattr(vlasova_softmax, "WIDTHS", (8,))
    rows = {row["setting"]["rotation"] + row["setting"]["rows"]: row for row in papers.results(table, silent, 16)}
    assert {rows[name]["verdict"]["kl"] for name in ("plainV/10", "weightedV/10")} == {"no figure"}, "printed for another layer"
    assert rows["weightedV/10"]["got"]["kl"] < rows["plainV/10"]["got"]["kl"]
    assert rows["weightedV/10"]["got"]["top10"] > 9.9


def test_a_study_goes_on_where_its_file_ends(tmp_path: Path) -> None:
    settings = [(("head", name), ("seed", "1")) for name in ("a", "b", "c")]
    ran: list[str] = []

    def run(context: Context) -> Iterator[papers.Row]:
        for row in settings:
            if row not in context.done and context.wants(row):
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
        recipes = {head: study.recipe_of(name, head, 2) for head in table.heads}
        assert len({recipe.training for recipe in recipes.values()}) == 1
        assert {recipe.training.epochs for recipe in recipes.values()} == {table.epochs}
        if table.equal:
            whole = study.parameters("softmax", study.DIM, study.VOCABS[table.corpus])
            for head, recipe in recipes.items():
                mine = study.parameters(head, recipe.model_options["dim"], study.VOCABS[table.corpus])
                assert abs(mine / whole - 1) < 3e-3, head
    assert study.width_of("MoS, K = 15", 10_000) < study.width_of("MoS, K = 3", 10_000) < study.DIM
    early = study.STUDIES["ptb-early"].heads
    assert {study.recipe_of("ptb-early", head, 1).model_options["dim"] for head in early} == {study.DIM, study.WIDER}


@pytest.mark.parametrize("head", ["softmax", "MoS, K = 3", "MoC, K = 3"])
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


def test_every_printed_cell_has_a_status(tmp_path: Path) -> None:
    from studies.papers.cells import STATUSES, counts
    from studies.papers.monotonic_softmax.printed import awd_parameters, cells
    from studies.papers.monotonic_softmax.talk import COLUMNS, TABLE
    from studies.papers.svd_hierarchical.printed import cells as svd_cells

    root = Path(__file__).parents[1] / "results"
    found = list(cells(root))
    assert len(found) == 4 * sum(len(rows) for rows in TABLE.values()) + 12
    assert all("(talk, " in cell.what for cell in found), "every cell says where it is printed"
    assert {cell.what.split(" (")[0] for cell in found if cell.status == "matched"} == {
        "softmax of an increasing function: rank not so limited"
    }, "counts and ranks that follow from the set-up are no outcomes"
    found += svd_cells(root)
    assert sum(counts(found).values()) == len(found) and {cell.status for cell in found} <= set(STATUSES)
    assert {cell.status for cell in svd_cells(tmp_path)} == {"not run", "by arithmetic"}
    assert all(cell.note for cell in found if cell.status in ("stand-in", "not run", "differs"))
    for name in ("head-steps.json", "head-memory.json"):
        (tmp_path / name).write_text((root / name).read_text())
    bare = [cell for cell in cells(tmp_path) if any(f", {column} (" in cell.what for column in COLUMNS[1:])]
    assert {cell.status for cell in bare} == {"not run"}, "no figure without a run"
    assert len({cell.note for cell in bare}) > 7, "what it takes depends on the head and the corpus"
    for file, old, new, turned in (
        ("head-memory.json", "148709376", "1487093760", "MoS, memory"),
        ("head-memory.json", "194707456", "194707456000", "monotone network, K = 1,000 or more, memory"),
        ("ganea2019.ranks.json", '"press":299', '"press":9', "softmax of an increasing"),
    ):
        before = next(cell.status for cell in cells(root) if cell.what.startswith(turned))
        text = (root / file).read_text()
        assert old in text
        (tmp_path / file).write_text(text.replace(old, new))
        after = next(cell.status for cell in cells(tmp_path) if cell.what.startswith(turned))
        assert {before, after} == {"matched", "differs"}, "a planted number turns its verdict"
    layers = [torch.nn.LSTM(size, after) for size, after in ((400, 1150), (1150, 1150), (1150, 400))]
    own = sum(one.numel() for layer in layers for one in layer.parameters())
    assert awd_parameters(30, "softmax") == own + 30 * 401, "rows that are the embedding, and a bias for each class"


def test_purity_is_counted_by_expert() -> None:
    from studies.papers.doubly_sparse import synthetic as study

    got = study.run(study.Case(3, 20, 50, 1e-3), 0, lambda done, total: None)
    assert got["experts"] == 3 and got["revived"] >= 0 and got["flops"] > 0.5 and 0 <= got["top1"] <= 1
    assert study.purity([torch.arange(4), torch.tensor([4, 5, 8, 9])], 4) == (0.75, 1)
