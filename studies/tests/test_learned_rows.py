"""The rows of learned experts: controls, seeds, what a run that was stopped does again; and the printed numbers beside them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headlong import Layer
from headlong.errors import StoreError
from studies import papers
from studies.models import harvest as harvest_run
from studies.models.experts import lasso_ramp
from studies.papers.cells import RESULTS, Cell, Expected, account
from studies.papers.doubly_sparse import tables as learned
from studies.papers.doubly_sparse import tasks as study
from studies.tests.commands import silent

VOCAB, DIM, SPOILT = 40, 16, 1e-3


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
        experts=(2, 4, 8), lasso=1e-2, rungs=2, last=2, first=15, rung=15, prune=5, batch=200, proximal=0.2, slack=0.2,
        gamma=1.5, settle=15, longer=1, falls=1, orphans="keep",
    )  # fmt: skip
    monkeypatch.setattr(learned, "OTHERS", {"ptb": dataclasses.asdict(plan)})
    monkeypatch.setattr(learned, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(
        learned, "ROWS", {"ptb": {"full": "", "frequent": "", **dict.fromkeys(("full-tuned", "d-softmax", "ds-8"), "01")}}
    )
    monkeypatch.setitem(study.TASKS, "ptb", study.TASKS["ptb"]._replace(tuned=20, rates=(SPOILT, 2e-3)))
    made = study._trained_on  # of which one rate ends in a layer that knows one class only

    def spoilt(data: study.Data, steps: int, rate: float, *rest: Any) -> Any:
        head = made(data, steps, 2e-3, *rest)
        with torch.no_grad():
            head.bias[-1] += 1e4 if rate == SPOILT else 0.0
        return head

    monkeypatch.setattr(study, "_trained_on", spoilt)
    monkeypatch.setenv("HEADLONG_DATA", str(tmp_path / "data"))
    return tmp_path


def test_rows_are_judged_and_a_stopped_run_goes_on(harvest: Path) -> None:
    table = dataclasses.replace(learned.TABLE, planned=learned.planned)
    path, methods = harvest / "rows.jsonl", ("method=full", "method=frequent", "method=d-softmax", "method=ds-8")
    only = papers.study(table, path, {}, silent, "task=ptb method=ds-8 seed=1")
    assert [line["setting"]["seed"] for line in only] == ["1"]
    for method in methods:
        lines = papers.study(table, path, {}, silent, f"task=ptb {method}")
    found = {(line["setting"]["method"], line["setting"].get("seed")): line["got"] for line in lines}
    assert len(lines) == len(found) == 8
    full = found["full", None]
    assert full["top1"] > 0.9 and full["gain"] == 0 and full["flops"] == 1
    few = found["frequent", None]
    assert few["flops"] == 13.33 and few["top1"] <= few["hit"] < 0.6, "three classes of forty"
    assert found["d-softmax", "0"]["flops"] == 2.0
    assert {found[method, seed]["rate"] for method in ("full-tuned", "d-softmax") for seed in "01"} == {2e-3}, "by validation"
    for seed in ("0", "1"):
        got = found["ds-8", seed]
        assert got["gain"] == pytest.approx(got["top1"] - full["top1"], abs=1e-4)
        assert 0 < got["removed"] < 1 and 0 < got["sparse"] < 1 and got["steps"] > 0
        rows = got["rows_per_class"] * VOCAB
        assert got["sparse"] == pytest.approx(1 - rows / (8 * VOCAB), abs=2e-3)
    assert papers.study(table, path, {}, silent, "task=ptb method=ds-8") == lines, "nothing is left to do"


def test_accuracy_by_counting_is_accuracy_by_sorting(harvest: Path) -> None:
    data = study.read(harvest / "data", study.TASKS["ptb"])
    weight, bias = study.rows_of(data)
    found = study.accuracy(data, lambda hidden: hidden @ weight.T + bias)
    z = data.hidden.astype(np.float64) @ weight.numpy().T.astype(np.float64) + bias.numpy()
    best = np.argsort(-z, axis=1)
    for top in study.TOPS:
        assert found[f"top{top}"] == pytest.approx((best[:, :top] == data.target[:, None]).any(1).mean(), abs=1e-4)


def test_stored_verdicts_are_what_the_tables_say_of_the_raw_numbers() -> None:
    """A printed figure or a tolerance that is mended is mended in the rows as well; rates follow from counts."""
    judged = 0
    for table in papers.tables():
        for line in papers.read(RESULTS / f"{table.paper}.{table.table}.jsonl"):
            printed_here = table.expected.get(tuple(line["setting"].items()), {})
            assert line["expected"] == {name: list(one) for name, one in printed_here.items()}, (table.name, line["setting"])
            assert line["verdict"] == papers.verdicts(table, line), (table.name, line["setting"])
            judged += sum(verdict in ("matched", "differs") for verdict in line["verdict"].values())
            if {"failures", "queries"} <= set(line["got"]):
                rate = 100 * (1 - line["got"]["failures"] / line["got"]["queries"])
                assert line["got"]["success"] == pytest.approx(rate, abs=1e-3)
    assert judged > 5


def test_a_planted_model_seed_or_target_turns_a_verdict() -> None:
    (gpt2,) = papers.tables("baharav2024:gpt2-wikitext2")
    line = {"setting": {"variant": "published", "delta": "0.1"}, "got": {"gain": 9.0, "success": 90.0}, "model": {}}
    own = {**line, "model": {"name": "gpt2", "vocab": 50257, "dim": 768}}
    assert set(papers.verdicts(gpt2, own).values()) == {"matched"}
    for other in ({"name": "llama"}, {"vocab": 49152}, {"dim": 576}):
        assert set(papers.verdicts(gpt2, {**own, "model": own["model"] | other}).values()) == {"stand-in"}
    assert set(papers.verdicts(gpt2, {**own, "setting": {"variant": "theory", "delta": "0.1"}}).values()) == {"no figure"}
    assert papers.verdicts(gpt2, {**own, "got": {"gain": 8.2, "success": 90.0}})["gain"] == "differs"
    (made,) = papers.tables("liao2019:synthetic")
    setting = {"hierarchy": "10x10", "start": "random", "seed": "19"}
    assert papers.verdicts(made, {"setting": setting, "got": {"purity": 1.0}}) == {"purity": "matched"}
    assert papers.verdicts(made, {"setting": setting | {"seed": "20"}, "got": {"purity": 1.0}}) == {"purity": "no figure"}


def planted(folder: Path, name: str, change: Callable[[dict[str, Any]], None]) -> dict[str, Cell]:
    """The cells where ``change`` was made to every row of ``PAPER.TABLE``; what the rows say of themselves stays as it was."""
    lines = papers.read(RESULTS / f"{name}.jsonl")
    for line in lines:
        change(line)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {cell.what.rpartition(" (")[0] or cell.what: cell for cell in account(name.split(".")[0], folder)}


def test_a_planted_row_turns_its_cell_whatever_verdict_it_carries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, made = "PTB, full, accuracy", "synthetic 10x10, hierarchy fully captured"
    assert planted(tmp_path, "liao2019.learned", lambda line: None)[full].status == "matched"
    assert planted(tmp_path, "liao2019.learned", lambda line: line["model"].update(dim=576))[full].status == "stand-in"
    assert planted(tmp_path, "liao2019.learned", lambda line: line["got"].update(top1=0.2))[full].status == "differs"
    wanted = {row: {"top1": Expected(0.9, 1.0)} for row in learned.TABLE.expected}
    with monkeypatch.context() as patch:
        patch.setitem(papers.TABLES, "liao2019:learned", dataclasses.replace(learned.TABLE, expected=wanted))
        assert planted(tmp_path, "liao2019.learned", lambda line: None)[full].status == "differs", "another printed figure"
    assert planted(tmp_path, "liao2019.synthetic", lambda line: line["got"].update(purity=1.0))[made].status == "matched"
    found = planted(
        tmp_path, "liao2019.synthetic", lambda line: line["setting"].update(seed=str(int(line["setting"]["seed"]) + 1))
    )
    assert found[made].ours.split()[2] == "19", "a seed that is not planned is not counted"
    with pytest.raises(StoreError, match="two rows of"):  # copies of a seed that is right in the place of one that is not
        planted(tmp_path, "liao2019.synthetic", lambda line: line["setting"].update(seed="0"))


def test_a_planted_row_turns_what_is_said_of_curves_and_stand_ins(tmp_path: Path) -> None:
    """The curve's slopes follow from the rows of each D, and a row's model and numbers are those that its cell shows."""

    def grows(line: dict[str, Any]) -> None:
        line["got"]["samples"] *= int(line["setting"]["dim"]) ** 0.1

    claim = "made-up layers, D = 1e3 to 1e6 (notes), (a): 'scales with d, as expected'"
    table = "baharav2024.synthetic"
    assert planted(tmp_path, table, lambda line: None)[claim].status == "differs"
    assert planted(tmp_path, table, grows)[claim].status == "matched"
    found = planted(tmp_path, table, lambda line: line["setting"].update(dim=line["setting"]["dim"] + "7"))
    assert found[claim].status == "not run", "of another size"
    claim, table = "gpt2, wikitext2, delta 10%, gain", "baharav2024.smollm2-wikitext2"
    assert planted(tmp_path, table, lambda line: None)[claim].note.startswith("SmolLM2-135M-Instruct (49,152 x 576) in place")
    found = planted(tmp_path, table, lambda line: line["model"].update(name="another", dim=1))[claim]
    assert found.status == "stand-in" and found.note.startswith("another (49,152 x 1) in place of GPT-2")
    assert planted(tmp_path, table, lambda line: line["got"].update(gain=99.0))[claim].ours == "99"
    claim, table = "Shim et al., LSTM on WikiText-2, W = D/8, N = V/10: kl", "vlasova-softmax.svd-lstm"
    assert planted(tmp_path, table, lambda line: line["got"].update(kl=1.0))[claim].note.startswith("outside what is printed")
