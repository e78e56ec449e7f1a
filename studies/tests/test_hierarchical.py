"""Heads beside a harvested layer, row by row, and a tree that comes with its words."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headlong.heads import build_head
from studies import papers
from studies.models.harvest import write
from studies.papers.svd_hierarchical import hierarchical as study
from studies.papers.svd_hierarchical import languages, steps
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


def test_a_file_of_fasttext_is_read(tmp_path: Path) -> None:
    """Two words, one kept pair of letters, three languages; vectors of two dimensions, their lengths 1 and 3."""
    names = [("ab", 9, 0), ("</s>", 8, 0), *((f"__label__{name}", seen, 1) for name, seen in (("x", 5), ("y", 3), ("z", 2)))]
    place = languages.hashed(b"<a") % 50
    raw = struct.pack("<14id3i2q", 0, 12, 2, *[0] * 7, 50, 2, 2, 0, 0.0, 5, 2, 3, 0, 1)
    raw += b"".join(name.encode() + b"\0" + struct.pack("<qb", seen, kind) for name, seen, kind in names)
    centres = np.zeros((2, 256, 1), np.float32)
    centres[0, :3, 0], centres[1, :3, 0] = (1, 0, 0.6), (0, 1, 0.8)
    raw += struct.pack("<2i", place, 0) + struct.pack("<??2qi", True, True, 3, 2, 6) + bytes([0, 0, 1, 1, 2, 2])
    raw += struct.pack("<4i", 2, 2, 1, 1) + centres.tobytes() + bytes([0, 1, 0]) + struct.pack("<4i", 1, 1, 1, 1)
    raw += np.array([1, 3, *[0] * 254], np.float32).tobytes() + struct.pack("<?2q", False, 3, 2)
    raw += np.array([[1, 2], [3, -1], [9, 9]], np.float32).tobytes()
    model = languages.Languages(raw)
    assert model.labels == ["x", "y", "z"] and model.layer.children.tolist() == [[1, ~0], [~2, ~1]], "the rarer on the left"
    np.testing.assert_allclose(model.hidden("ab"), np.mean([[1, 0], [0, 3], [0.6, 0.8]], axis=0), rtol=1e-6)
    hidden = np.array([[0.3, 0.2]], np.float32)
    right = [1 / (1 + np.exp(-float(hidden[0] @ row))) for row in ([3, -1], [1, 2])]
    wanted = [right[0], (1 - right[0]) * right[1], (1 - right[0]) * (1 - right[1])]
    np.testing.assert_allclose(np.exp(languages.products(model.layer, hidden)[0]), wanted, rtol=1e-6)
