"""``python -m studies reproduce TABLE --model FOLDER``: a pretrained model's weights, or a corpus, that only a user has."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from studies import papers
from studies.data import Loaded, load
from studies.papers.cells import RESULTS, STATUSES, STUDIES, account
from studies.tests.commands import ran

WORDS = [f"w{number}" for number in range(200)]


def lines(rng: np.random.Generator, count: int) -> str:
    share = 1 / np.arange(1, 201)
    return "".join(" ".join(rng.choice(WORDS, 12, p=share / share.sum())) + "\n" for _ in range(count))


@pytest.fixture
def corpus(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """A small text in the place of the one that is registered."""
    folder = tmp_path / "text"
    folder.mkdir()
    for name, count in (("train", 300), ("valid", 20), ("test", 80)):
        (folder / f"{name}.txt").write_text(lines(rng, count))
    found = load(str(folder))
    monkeypatch.setattr("studies.data.load", lambda name: found)
    return found


def checkpoint(folder: Path) -> Path:
    """A random GPT-2 whose layer is sharp enough to have a best word."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    sizes = {"vocab_size": 203, "n_positions": 48, "n_embd": 32, "n_layer": 1, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=1))
    model.transformer.wte.weight.data.mul_(15)
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({"?": 0, "<end>": 1, **{word: 2 + at for at, word in enumerate(WORDS)}}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>").save_pretrained(folder)
    return folder


def test_a_table_of_language_models_runs_from_a_folder_of_weights(
    tmp_path: Path, corpus: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """End to end: the model is read, asked about the text, its layer searched at three deltas, every row named after it."""
    pytest.importorskip("transformers")
    monkeypatch.delenv("HEADLONG_DATA", raising=False)
    folder, out = checkpoint(tmp_path / "gpt2"), tmp_path / "results"
    asked = ["reproduce", "baharav2024:gpt2-wikitext2", "--model", str(folder), "--out", str(out)]
    found = ran(*asked)
    assert found.exit_code == 0, found.stderr
    rows = [json.loads(line) for line in (out / "baharav2024.gpt2-wikitext2.jsonl").read_text().splitlines()]
    assert {row["setting"]["delta"] for row in rows} == {"0.1", "0.05", "0.01"}
    published = [row for row in rows if row["setting"]["variant"] == "published"]
    assert len(published) == 3
    for row in published:
        assert row["model"] == {"name": "gpt2", "vocab": 203, "dim": 32}
        assert row["verdict"]["gain"] == row["verdict"]["success"] == "stand-in", "of another model than the printed one"
        assert row["got"]["gain"] > 0.5 and row["got"]["rate_above"] <= row["got"]["failures"] / row["got"]["queries"]
    found = [cell for cell in account("baharav2024", out) if cell.what.startswith("gpt2, wikitext2")]
    assert len(found) == 6 and {cell.status for cell in found} == {"not run"}, "another model's row is never the paper's"
    before = (out / "baharav2024.gpt2-wikitext2.jsonl").read_bytes()
    again = ran(*asked)
    assert again.exit_code == 0 and (out / "baharav2024.gpt2-wikitext2.jsonl").read_bytes() == before, "rows are not run twice"


@pytest.mark.parametrize(
    ("target", "model", "words"),
    [
        ("baharav2024:mnist", "folder", "takes a model or a corpus"),
        ("baharav2024", "folder", "takes a model or a corpus"),
        ("baharav2024:gpt2-ptb", "nowhere", "no config.json"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_in_a_line(
    tmp_path: Path, corpus: Loaded, target: str, model: str, words: str
) -> None:
    asked = ["reproduce", target, "--model", str(tmp_path / model), "--out", str(tmp_path / "results")]
    found = ran(*asked)
    assert found.exit_code == 2 and words in " ".join(found.stderr.split())


def test_the_list_accounts_for_every_printed_figure(tmp_path: Path) -> None:
    """With our runs and without any; a status for each cell, and what it takes where it is not run."""
    assert set(STUDIES) == {table.paper for table in papers.tables()}
    for paper in STUDIES:
        found, bare = account(paper, RESULTS), account(paper, tmp_path)
        assert len(found) == len(bare) >= 12 and ran("list", paper).stdout.count("\n") > len(found)
        assert len({cell.what for cell in found}) == len(found), "no cell twice"
        assert {cell.status for cell in found} <= set(STATUSES)
        assert all(cell.note for cell in found if cell.status in ("not run", "stand-in"))
        statuses = [cell.status for cell in bare if "parameters" not in cell.what and "share of" not in cell.what]
        assert set(statuses) <= {"not run", "by arithmetic"}, "nothing without a run"
        assert statuses.count("not run") > 0.8 * len(statuses)
