"""Heads beside a harvested layer, row by row, and a tree that comes with its words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headlong.heads import build_head
from studies import papers
from studies.models.harvest import write
from studies.papers.svd_hierarchical import hierarchical as study
from studies.papers.svd_hierarchical import steps
from studies.tests.commands import silent

VOCAB, DIM, COUNT = 40, 6, 3000


@pytest.fixture
def harvested(rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with targets drawn from a softmax, rare classes among them, and that softmax trained a little."""
    weight, hidden = rng.standard_normal((VOCAB, DIM)), rng.standard_normal((COUNT, DIM)).astype(np.float32)
    logits = hidden @ weight.T - 2 * np.log(np.arange(1, VOCAB + 1)) + rng.gumbel(size=(COUNT, VOCAB))
    target = logits.argmax(1)
    head = build_head("dense", DIM, VOCAB)
    steps.train(head, hidden, target, silent(""), 20, 3e-2)
    tensors: dict[str, Any] = {}
    for split, part in (("train", slice(0, 2500)), ("valid", slice(0, 400)), ("test", slice(2500, None))):
        tensors |= {f"{split}_hidden": hidden[part].astype(np.float16), f"{split}_target": target[part].astype(np.int32)}
    write(tmp_path / "harvest/ptb-lstm", head.to_layer(), tensors, "made up")
    monkeypatch.setenv("HEADLONG_DATA", str(tmp_path))
    return tmp_path


def test_the_table_of_heads_goes_row_by_row(harvested: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "PASSES", 40)
    monkeypatch.setattr(steps, "RATE", 3e-2)
    (table,) = papers.tables("vlasova-softmax:hierarchical")
    assert not papers.missing(table)
    file = tmp_path / "rows.jsonl"
    for name in ("tree, huffman", "svd of", "full"):
        found = papers.study(table, file, {}, silent, f"head={name}")
    rows = {line["setting"]["head"]: line["got"] for line in found}
    assert list(rows) == ["tree, huffman", study.SVD, study.FULL, study.TUNED]
    data = study.read(harvested, "harvest/ptb-lstm")
    z = data.test_hidden.astype(np.float64) @ np.asarray(data.layer.weight, np.float64).T + data.layer.bias
    exact = np.exp((np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), data.test_target]).mean())
    full, svd, tree = rows[study.FULL], rows[study.SVD], rows["tree, huffman"]
    assert full["perplexity"] == pytest.approx(exact, rel=1e-4) and (full["top1"], full["top10"]) == (1.0, 10.0)
    assert rows[study.TUNED]["perplexity"] < full["perplexity"] * 1.05, "the control is the layer trained on"
    assert svd["rows"] == VOCAB // 10 and 0 < svd["top10"] <= 10 and svd["perplexity"] > 1
    assert tree["perplexity"] < 2 * exact
    assert len(papers.study(table, file, {}, silent, "head=full")) == 4, "nothing is run twice"
