"""The rows of learned experts: controls, seeds, what a run that was stopped does again; and the printed numbers beside them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headlong import Layer
from headlong.bench.measure import Progress
from studies import papers
from studies.models import harvest as harvest_run
from studies.models.experts import lasso_ramp
from studies.papers.cells import STATUSES
from studies.papers.doubly_sparse import controls, learned, printed
from studies.papers.doubly_sparse import tasks as study

RESULTS = Path(__file__).resolve().parents[1] / "results"
VOCAB, DIM = 40, 16


def silent(_: str) -> Progress:
    return lambda done, total: None


@pytest.fixture
def harvest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> Path:
    """Frequent and rare classes around means, the layer that tells them apart, and a quick plan."""
    means = 3 * rng.standard_normal((VOCAB, DIM)).astype(np.float32)
    share = 1 / np.arange(1, VOCAB + 1)
    parts: dict[str, Any] = {}
    for split, count in (("train", 3000), ("valid", 400), ("test", 500)):
        target = rng.choice(VOCAB, count, p=share / share.sum())
        parts[f"{split}_hidden"] = (means[target] + 0.5 * rng.standard_normal((count, DIM))).astype(np.float16)
        parts[f"{split}_target"] = target.astype(np.int32)
    folder = tmp_path / "data" / "harvest" / "ptb-lstm"
    folder.mkdir(parents=True)
    layer = Layer(means, -0.5 * np.square(means).sum(1))
    harvest_run.write(folder, layer, parts, "made")
    plan = lasso_ramp.TrainingPlan(
        experts=(2, 4, 8), lasso=1e-2, rungs=2, last=2, first=15, rung=15, prune=5, batch=200, rate=0.2, slack=0.2, gamma=1.5
    )
    monkeypatch.setattr(learned, "PLANS", {"ds": dataclasses.asdict(plan), "adam": dataclasses.asdict(plan)})
    monkeypatch.setattr(learned, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(learned, "SEEDS", ("0", "1"))
    monkeypatch.setattr(controls, "TUNED", 20)
    monkeypatch.setenv("HEADLONG_DATA", str(tmp_path / "data"))
    return tmp_path


def test_rows_are_judged_and_a_stopped_run_goes_on(harvest: Path) -> None:
    table = dataclasses.replace(learned.TABLE, planned=learned.planned)
    path = harvest / "rows.jsonl"
    only = papers.study(table, path, {}, silent, "seed=1")
    assert {line["setting"]["method"] for line in only} == {"full-tuned", "d-softmax", "ds-8", "adam-8"}
    lines = papers.study(table, path, {}, silent)
    found = {(line["setting"]["method"], line["setting"].get("seed")): line["got"] for line in lines}
    assert len(lines) == len(found) == 12
    full = found["full", None]
    assert full["top1"] > 0.9 and full["gain"] == 0 and full["flops"] == 1
    few = found["frequent", None]
    assert few["flops"] == 13.33 and few["top1"] <= few["hit"] < 0.6, "three classes of forty"
    assert found["d-softmax", "0"]["flops"] == 2.0
    for seed in ("0", "1"):
        got = found["ds-8", seed]
        assert got["gain"] == pytest.approx(got["top1"] - full["top1"], abs=1e-4)
        assert 0 < got["removed"] < 1 and 0 < got["sparse"] < 1 and got["steps"] > 0
        rows = got["rows_per_class"] * VOCAB
        assert got["sparse"] == pytest.approx(1 - rows / (8 * VOCAB), abs=2e-3)
    assert papers.study(table, path, {}, silent) == lines, "nothing is left to do"
    learned.main(str(harvest / "ramps.json"))
    runs = json.loads((harvest / "ramps.json").read_text())["runs"]
    assert [(run["task"], run["seed"]) for run in runs] == [("ptb", "0"), ("ptb", "1")] * 2
    assert all(stage["rungs"][-1]["settled"] == 1.0 for run in runs for stage in run["stages"])


def test_accuracy_by_counting_is_accuracy_by_sorting(harvest: Path) -> None:
    data = study.read(harvest / "data", study.TASKS["ptb"])
    weight, bias = controls.rows_of(data)
    found = controls.accuracy(data, lambda hidden: hidden @ weight.T + bias)
    z = data.hidden.astype(np.float64) @ weight.numpy().T.astype(np.float64) + bias.numpy()
    best = np.argsort(-z, axis=1)
    for top in study.TOPS:
        assert found[f"top{top}"] == pytest.approx((best[:, :top] == data.target[:, None]).any(1).mean(), abs=1e-4)


def test_every_printed_number_has_a_status(tmp_path: Path) -> None:
    found = list(printed.cells(RESULTS))
    assert len(found) == 57 and len({cell.what for cell in found}) == 57
    assert {cell.status for cell in found} <= set(STATUSES)
    assert all("(poster, " in cell.what for cell in found), "every cell says where it is printed"
    assert all(cell.ours for cell in found if cell.status != "not run")
    assert all(cell.note for cell in found if cell.status in ("stand-in", "not run", "differs"))
    assert {cell.status for cell in printed.cells(tmp_path)} == {"not run"}, "without results nothing is claimed"


def test_a_printed_number_is_matched_where_every_seed_is() -> None:
    def row(seed: str, top1: float, verdict: str) -> dict[str, Any]:
        setting = {"task": "ptb", "method": "ds-64", "seed": seed}
        return {"setting": setting, "got": {"top1": top1, "flops": 20.0}, "verdict": {"top1": verdict, "flops": "matched"}}

    lines = [row("0", 0.260, "matched"), row("1", 0.250, "differs")]
    cells = {cell.what: cell for cell in printed.account(lines, [], {})}
    assert cells["PTB, ds-64, accuracy"].status == "differs" and "2 seeds" in cells["PTB, ds-64, accuracy"].note
    assert cells["PTB, ds-64, times fewer FLOPs"].status == "matched"
    assert cells["Wiki-2, ds-64, accuracy"].status == "not run"


def test_experts_on_other_data_stand_in_and_are_not_judged() -> None:
    def row(task: str, method: str, **got: float) -> dict[str, Any]:
        return {"setting": {"task": task, "method": method}, "got": {"flops": 2.0, **got}, "expected": {}, "verdict": {}}

    lines = [row("characters", "full", top1=0.995), row("multi30k", "full", top1=0.7, bleu=35.0)]
    lines += [row("characters", "ds-8", top1=0.9), *(row("characters", "ds-16", top1=top1) for top1 in (0.91, 0.93))]
    lines += [row("multi30k", "ds-8", top1=0.69, bleu=34.0)]
    cells = {cell.what: cell for cell in printed.account(lines, [row("characters", "seeded-64", top1=0.98)], {})}
    assert cells["CASIA, full, accuracy"].status == "not run", "the full softmax's cell is of the other table"
    cell = cells["CASIA, ds-64, accuracy"]
    assert (cell.ours, cell.status) == ("92 (91 to 93)", "stand-in"), "as many experts as were learned, in per cent"
    said = "other characters; 16 experts, learned; 2 seeds; 64, seeded, 98; the full softmax has 99.5"
    assert cell.note.startswith(said)
    assert cells["CASIA, ds-64, times fewer FLOPs"].status == "stand-in"
    assert cells["En-Ve, ds-64, BLEU"].ours == "34" and "Multi30k" in cells["En-Ve, ds-64, BLEU"].note
    assert not any(dict(setting)["task"] in printed.STANDS for setting in learned.expected())


def test_any_task_will_do(harvest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not papers.missing(learned.TABLE)
    monkeypatch.setenv("HEADLONG_DATA", str(harvest))
    assert "multi30k-seq2seq" in papers.missing(learned.TABLE)


def test_gains_are_judged_from_the_better_side() -> None:
    wanted = learned.expected()[("task", "ptb"), ("method", "ds-64"), ("seed", "0")]
    assert wanted["flops"].verdict(40.0) == "matched" and wanted["flops"].verdict(15.9) == "differs"
    assert wanted["gain"].verdict(0.006) == "matched" and wanted["gain"].verdict(0.0) == "differs"
    assert wanted["top1"].verdict(0.4) == "matched" and wanted["top1"].verdict(0.2549) == "differs"
    assert not any("flops" in one for row, one in learned.expected().items() if not dict(row)["method"].startswith("ds-"))


def test_stored_verdicts_are_what_the_tables_say() -> None:
    """A printed figure or a tolerance that is mended is mended in the rows as well, and only printed figures are judged by."""
    judged = 0
    for table in papers.tables():
        for line in papers.read(RESULTS / f"{table.paper}.{table.table}.jsonl"):
            printed_here = table.expected.get(tuple(line["setting"].items()), {})
            assert line["expected"] == {name: list(one) for name, one in printed_here.items()}, (table.name, line["setting"])
            for name, got in line["got"].items():
                verdict = printed_here[name].verdict(got) if name in printed_here else "no figure"
                assert line["verdict"][name] == verdict, (table.name, line["setting"], name)
                judged += name in printed_here
    assert judged > 5
