"""Records of any study as tables: every number of the file is on the page, raw times are not."""

from __future__ import annotations

from headlong.report.measured_on import measured_where, ran
from headlong.report.records import field, record_tables
from headlong.report.sections import ResultFile, report

RECORD = {
    "facts": {"classes": 10_000, "killed": {"rank 0": {"said": "gone"}}, "tests": [{"p": 0.25}, {"p": 0.5}], "gaps": []},
    "environment": {"cpu": "a CPU", "threads": 2, "versions": {"numpy": "2.4"}, "date": "2026-11-21"},
    "rows": [
        {"way": "ours", "ms": 1.23456, "seconds": [1.0, 2.0], "equal": True},
        {"way": "theirs", "ms": None, "bytes": 4096},
    ],
}


def test_rows_and_facts_become_tables() -> None:
    tables = record_tables("study.json", RECORD)
    assert tables is not None
    rows, facts = tables
    assert rows.columns == ("way", "ms", "equal", "bytes")
    assert rows.rows == (("ours", "1.235", "yes", "–"), ("theirs", "–", "–", "4,096"))
    assert rows.caption == "a CPU; 2 threads; numpy 2.4; 2026-11-21"
    expected = (("classes", "10,000"), ("killed, rank 0, said", "gone"), ("tests 1, p", "0.25"), ("tests 2, p", "0.5"))
    assert facts.rows == expected


def test_what_is_no_record_is_left_to_others() -> None:
    assert record_tables("odd.json", {"a": 1}) is None
    assert record_tables("odd.json", {"rows": [1, 2]}) is None
    runs = record_tables("runs.json", {"runs": [{"batch": 1}]})
    assert runs is not None and runs[0].rows == (("1",),) and runs[0].caption == ""


def test_the_page_shows_them_and_escapes_them() -> None:
    page = report([ResultFile("study.json", {**RECORD, "rows": [{"way": "<b>&"}]})])
    assert "study.json: facts" in page and "&lt;b&gt;&amp;" in page and "<b>&" not in page


def test_fields() -> None:
    assert [field(value) for value in (None, False, 3, 0.123456, "text")] == ["–", "no", "3", "0.1235", "text"]
    assert measured_where({}) == ""


def test_rows_of_several_builds_name_each_of_them_once() -> None:
    old, new = {"date": "2026-11-21"}, {"date": "2026-11-22", "headlong": "0.1.0", "commit": "0123456789ab"}
    bare = {"date": "2026-11-22", "commit": "ab"}
    assert ran([old, new, new, old]) == "2026-11-21, commit not kept; 2026-11-22, headlong 0.1.0 at 0123456789ab"
    assert ran([bare]) == "2026-11-22, commit ab"
