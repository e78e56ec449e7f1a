"""The command of the studies: what it lists, runs and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies import papers
from studies.tests.commands import ran


def call(*words: object) -> str:
    found = ran(*map(str, words))
    assert found.exit_code == 0, found.stderr
    return found.stdout


def fails(*words: object) -> str:
    found = ran(*map(str, words))
    assert found.exit_code == 2 and found.stdout == "" and len(found.stderr.splitlines()) == 1
    return found.stderr


def test_reproduce_lists_and_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADLONG_DATA", raising=False)
    said = call("list")
    assert "vlasova-softmax:svd-characters" in said and "by arithmetic" in said
    assert "HEADLONG_DATA is not set" in said
    assert "Shim et al." not in said and "Shim et al." in call("list", "vlasova-softmax")
    assert "is not run: HEADLONG_DATA is not set" in fails("reproduce", "vlasova-softmax:svd-characters")
    assert "there is no table 'nope'" in fails("reproduce", "nope")
    monkeypatch.setattr(papers, "TABLES", {table.name: table for table in papers.tables("vlasova-softmax") if table.needs})
    assert call("reproduce", "vlasova-softmax") == ""  # nothing can run here: said on stderr


def test_reproduce_runs_a_table(data: Path, tmp_path: Path) -> None:
    if not (data / "heads" / "ppocr-characters.safetensors").is_file():
        pytest.skip("HEADLONG_DATA has no trained layer")
    said = call("reproduce", "vlasova-softmax:svd-characters", "--queries", 8, "--out", tmp_path)
    assert "weighted" in said
    lines = [json.loads(line) for line in (tmp_path / "vlasova-softmax.svd-characters.jsonl").read_text().splitlines()]
    assert len(lines) == len({json.dumps(line["setting"]) for line in lines}) >= 18
    again = call("reproduce", "vlasova-softmax:svd-characters", "--queries", 8, "--out", tmp_path)
    assert again == said
    again = [json.loads(line) for line in (tmp_path / "vlasova-softmax.svd-characters.jsonl").read_text().splitlines()]
    assert [line["got"] for line in again] == [line["got"] for line in lines]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("reproduce", "ganea2019:synthetic", "--queries", "5"), "a table without rows of a fixed size"),
        (("reproduce", "vlasova-softmax:svd-characters", "--queries", "0"), "--queries is 0"),
        (("reproduce", "ganea2019:synthetic", "--rows", "nothing has this"), "holds 'nothing has this'"),
        (("reproduce", "ganea2019:synthetic", "more"), "takes no arguments; got more"),
        (("reproduce", "liao2019:times"), "takes FILE; got nothing"),
        (("train", "no-such-recipe"), "no-such-recipe"),
        (("train", "ptb-lstm", "--option", "epochs"), "expected name=value"),
    ],
)
def test_faults_are_one_line(words: tuple[str, ...], said: str) -> None:
    assert said in fails(*words)
