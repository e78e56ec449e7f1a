"""Rows as text, and pages that are well formed and need nothing from outside."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from copy import deepcopy
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bench_record import ENGINE, RECORD
from headlong.cli.inputs import results
from headlong.cli.terminal import WIDTH, show
from headlong.errors import MalformedFileError
from headlong.report import plots
from headlong.report.files import ResultFile, bench_page, meaning, remarks, report
from headlong.report.tables import COLUMNS, comparison, engines, machine, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "100%"), (0.0, "0%"), (0.5, "50.0%"), (0.9999, "99.99%"), (0.99999, "99.999%"), (1 - 1e-9, ">99.999%"),
     (1e-9, "<0.001%"), (0.0004, "0.04%"), (1.002, "100.2%"), (None, "–")],
)  # fmt: skip
def test_percent_never_rounds_to_all_or_nothing(value: float | None, text: str) -> None:
    assert percent(value) == text


def test_speed_and_what_answers_are_worth_stand_in_one_row() -> None:
    found = comparison(RECORD, 1)
    keys = ("contestant", "cold.us", "cold.x", "loop.us", "loop.x", "same", "worst", "proved", "read")
    assert found.columns == tuple(COLUMNS[key].title for key in keys)
    assert found.rows[2] == ("headlong", "5.00 ms", "2.40×", "2.00 ms", "3.00×", "100%", "0", "100%", "25.0%")
    assert found.rows[3][-4:] == ("75.0%", "no log p", "–", "–")
    for fact in ("A <CPU> & more", "2 threads", "avx2", "0123456789ab", "2026-01-02", "1,000 classes", "torch bf16"):
        assert fact in found.caption
    assert comparison(RECORD, 4).rows[2][2] == "0.50×", "a loss is a row like any other"


def test_tables_of_a_run_fit_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    long = deepcopy(RECORD)
    promise = "ids exact and log-probabilities within 0.01 nats, except with probability 1e-6"
    engine = f"Engine(codes: vocab=49152, dim=576, float32, 27.6 MiB of codes, {promise}, kernel avx512vnni)"
    about = {**ENGINE, "promise": promise, "engine": engine}
    long["rows"][2] |= {"contestant": "headlong, calibrated, ids only", "about": about}
    for found in (engines(long), comparison(long, 1)):
        show(found)
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= WIDTH == 110, found.title
    assert all(any(" ".join(row) in " ".join(line.split()) for line in lines) for row in found.rows), "a row is a line"
    (row,) = (row for row in engines(long).rows if row[1] == promise)
    assert row[2] == "Engine(codes: vocab=49152, dim=576, float32, 27.6 MiB of codes, kernel avx512vnni)"


def test_a_busy_machine_is_said() -> None:
    assert "took 30% of the processors: BUSY" in machine({**RECORD["environment"], "others": 0.3})
    assert "BUSY" not in machine(RECORD["environment"])


def test_a_run_says_what_it_found() -> None:
    won = "headlong takes 5.00 ms where torch bf16 takes 12.0 ms: 2.40×. Of its ids 98.0% are right."
    assert meaning(RECORD) == won
    slow = deepcopy(RECORD)
    slow["rows"][2]["cold"] |= {"us": 20e3, "x": 0.6}
    assert meaning(slow).startswith("Here a plain product is faster: headlong takes 20.0 ms")
    slow["rows"][2]["proved"] = 0.0
    assert meaning(slow).startswith("Here a plain product is faster: headlong"), "a promise of one in a million proves no row"
    slow["rows"][2]["same"] = 0.5
    assert meaning(slow).startswith("Nothing that promises its answers took part and was right; torch bf16 takes 12.0 ms")
    slow["layer"]["hidden"], slow["left_out"] = "made up", [{"contestant": "x", "why": "no vectors"}]
    assert [line.split()[0] for line in remarks(slow)] == ["Queries:", "x", "compile"]


class Checker(HTMLParser):
    """Every tag is closed, and nothing is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "link", "br"}:
            self.open.append(tag)
        self.fetched += [value for name, value in attrs if name in {"src", "href"} and value and value[:1] not in "#d"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def checked(text: str) -> str:
    checker = Checker()
    checker.feed(text)
    assert not checker.open and not checker.fetched and "default-src 'none'" in text
    return text


def test_the_page_of_a_run_is_whole() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is an extra")
    text = checked(bench_page(RECORD, "a <title>", "an intro"))
    assert "a &lt;title&gt;" in text and "A &lt;CPU&gt; &amp; more" in text and text.count("<svg") == 3
    for figure in plots.of_run(RECORD):
        root = ET.fromstring(figure.svg)
        assert root.get("role") == "img" and root.get("aria-label") and "currentColor" in figure.svg


def test_pages_do_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "installed", lambda: False)
    assert plots.INSTALL in checked(bench_page(RECORD, "t", "")).replace("&#x27;", "'")


def test_a_report_of_several_files(tmp_path: Path) -> None:
    step = {"rows": [{"way": "<b>", "ms": {"a": 1.5}}]}
    sources = [
        ResultFile("run.json", RECORD),
        ResultFile("page.json", {"tables": {"step": {"smollm2": step}}}),
        ResultFile("notes.jsonl", [{"a": 1}]),
    ]
    text = checked(report(sources))
    assert "step: smollm2" in text and "&lt;b&gt;" in text and "ms.a" in text and "notes.jsonl" in text
    with pytest.raises(MalformedFileError, match=r"notes\.jsonl: no result in there"):
        report(sources[2:])
    with pytest.raises(MalformedFileError, match="has the names of a result but not its content"):
        report([ResultFile("hollow.json", {"rows": 3})])
    (tmp_path / "a.json").write_text(json.dumps(RECORD))
    (tmp_path / "notes.md").write_text("no result")
    assert [name for name, _ in results([tmp_path])] == ["a.json"]
