"""Metrics on a run made by hand, numbers as text, and a page that is well formed and needs nothing from outside."""

from __future__ import annotations

import re
from copy import deepcopy
from html.parser import HTMLParser

import pytest

from bench_record import COLD, RECORD
from headlong.report import readme
from headlong.report.axes import Axis
from headlong.report.measured_on import machine
from headlong.report.page import page, speed_and_misses
from headlong.report.plots import Point, Row, curve, dot_plot, scatter
from headlong.report.sections import bench_page
from headlong.report.summaries import agreement, baselines, percentile, summaries, ways, worst_gap
from headlong.report.tables import (
    ReportTable,
    caption,
    comparison,
    comparisons,
    duration,
    markdown,
    nats,
    percent,
    round_duration,
    times,
    topk_table,
)


def test_a_summary_is_what_the_definitions_say() -> None:
    first, _, cascade, hnsw, *_, last = summaries(RECORD)
    assert (first.median, first.speedup, first.agreement, first.worst, first.proved) == (10e-3, 0.5, 1.0, 2e-6, None)
    assert (cascade.median, cascade.speedup, cascade.worst, cascade.proved, cascade.read) == (2e-3, 2.5, 0.0, 1.0, 0.25)
    assert (hnsw.agreement, hnsw.worst, hnsw.read) == (0.75, None, None)
    assert (last.median, last.speedup) == (4e-3, 0.25)
    assert first.low == pytest.approx(8.4e-3)
    assert first.high == pytest.approx(11.6e-3)


def test_ties_count_and_missing_ids_do_not() -> None:
    kth = [-1.0, -2.0]
    assert agreement([[-0.5, -1.0], [-0.25, -2.0 - 1e-6]], kth) == 1.0
    assert agreement([[-0.5, -1.0], [-0.25, -2.0 - 1e-4]], kth) == 0.75
    assert agreement([[None, -1.0], [None, None]], kth) == 0.25
    assert agreement([], []) == 1.0


def test_worst_gap_looks_at_every_id() -> None:
    assert worst_gap({"gap": [[0.0, -0.3], [0.2, None]]}) == 0.3
    assert worst_gap({}) is None
    assert worst_gap({"gap": [[None]]}) is None


def test_speed_ups_are_over_the_fastest_dense_product_of_each_batch() -> None:
    assert baselines(RECORD) == {1: "torch bf16", 4: "torch bf16"}
    slower = deepcopy(RECORD)
    slower["runs"][1]["seconds"] = [11e-3]
    assert baselines(slower) == {1: "torch fp32", 4: "torch bf16"}
    assert "the fastest dense product (torch fp32 at 1, torch bf16 at 4)" in caption(slower)
    assert baselines({**RECORD, "settings": {"baseline": "hnswlib"}}) == {1: "hnswlib", 4: "torch bf16"}
    assert baselines({"settings": {}, "runs": [{"contestant": "only", "batch": 1, "seconds": [1.0]}]}) == {1: "only"}


def test_cold_calls_come_first_and_factors_carry_quartiles() -> None:
    assert ways(RECORD) == ["cold", "loop"] and ways({**RECORD, "cold": []}) == ["loop"]
    cascade = summaries(RECORD, "cold")[2]
    assert (cascade.median, cascade.speedup) == (5e-3, 12 / 5)
    assert (cascade.slower, cascade.faster) == (12 / 6, 12 / 4.5)
    first, second = comparisons(RECORD)
    assert first.rows[2][2] == "2.40× (2.00–2.67)" and "each after 96 MB of other weights" in first.caption
    assert "in a loop" in second.title and "after 96 MB" not in second.caption


def test_a_busy_machine_is_said() -> None:
    said = machine(COLD["environment"])
    assert "load average 0.5 before, other programs took 30% of the processors: BUSY" in said
    assert "headlong 0.1.0 at 0123456789ab" in said
    quiet = machine({**COLD["environment"], "others": 0.01})
    assert "took 1% of the processors" in quiet and "BUSY" not in quiet


@pytest.mark.parametrize(
    ("values", "at", "found"), [([1.0], 90, 1.0), ([3.0, 1.0], 50, 2.0), ([1, 2, 3, 4, 5], 25, 2.0), ([1, 2], 100, 2)]
)
def test_percentiles_are_numpys(values: list[float], at: float, found: float) -> None:
    assert percentile(values, at) == found


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "100%"),
        (0.0, "0%"),
        (0.5, "50.0%"),
        (0.9999, "99.99%"),
        (0.99999, "99.999%"),
        (1 - 1e-9, ">99.999%"),
        (1e-9, "<0.001%"),
        (0.0004, "0.04%"),
        (1.002, "100.2%"),
        (None, "–"),
    ],
)
def test_percent_never_rounds_to_all_or_nothing(value: float | None, text: str) -> None:
    assert percent(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (83e-6, "83.0 µs"),
        (0.9996e-3, "1.00 ms"),
        (0.9994e-3, "999 µs"),
        (12.34e-3, "12.3 ms"),
        (2.5, "2.50 s"),
        (250e-6, "250 µs"),
    ],
)
def test_durations_have_three_digits(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_numbers_as_text() -> None:
    assert [times(ratio) for ratio in (0.5, 9.99, 12.34, 99.96, 600)] == ["0.50×", "9.99×", "12.3×", "100×", "600×"]
    assert [nats(value) for value in (None, 0.0, 0.0213, 3.4e-7)] == ["no log p", "0", "0.021", "3e-07"]
    assert [round_duration(value) for value in (2e-3, 5e-5, 1.0)] == ["2 ms", "50 µs", "1 s"]


def test_the_comparison_has_a_row_for_everyone() -> None:
    table = comparison(RECORD, "title", "loop")
    assert table.columns == (
        "method", "1 query", "speed-up (quartiles)", "4 at once, each", "speed-up (quartiles)",
        "top-2 agreement", "worst |Δlog p|", "ids proved", "read",
    )  # fmt: skip
    worth = ("100%", "0", "100%", "25.0%")
    assert table.rows[2] == ("cascade", "2.00 ms", "2.50× (2.00–3.33)", "4.00 ms", "0.25× (0.25–0.25)", *worth)
    assert table.rows[3] == ("hnswlib", "1.00 ms", "5.00× (5.00–5.00)", "", "", "75.0%", "no log p", "–", "–")
    for fact in ("A <CPU> & more", "2 threads", "avx2", "numpy 2.0", "2026-01-02", "1,000 classes"):
        assert fact in caption(RECORD)


def test_markdown_keeps_its_columns() -> None:
    lines = markdown(ReportTable("", ("a", "|b|"), (("x|y", "1"),), "note")).splitlines()
    assert lines == ["| a | \\|b\\| |", "|---|--:|", "| x\\|y | 1 |", "", "note"]


def test_the_readme_shows_cold_calls_over_the_fastest_dense_product() -> None:
    table = readme.headline(COLD, RECORD)
    assert "over torch bf16 (quartiles)" in table.columns and "BUSY" in table.caption
    assert [row[0] for row in table.rows] == ["torch fp32", "torch bf16", "headlong", "hnswlib, a graph"]
    assert table.rows[2] == ("headlong", "5.00 ms (4.50–6.00)", "2.40× (2.00–2.67)", "100%", "0", "ids proved")
    assert table.rows[3][3:] == ("75.0%", "no log p", "none")
    picture = readme.picture(COLD, RECORD)
    assert picture.count("<rect") == 4 and picture.count('class="mark ours"') == 1
    assert "headlong: 5.00 ms, proved" in picture and "a graph: 2.00 ms, 50.0% wrong" in picture
    unproved = deepcopy(RECORD)
    unproved["answers"][2]["proved"] = [1, 0]
    assert "proved" not in readme.picture(COLD, unproved)


def test_the_readme_shows_where_a_plain_product_wins() -> None:
    text = readme.loop(RECORD)
    assert "with torch bf16: headlong 2.00 ms (2.50×)" in text
    assert "the plain product wins: 4 at once, headlong takes 4.00 ms a query, torch bf16 1.00 ms" in text
    faster = deepcopy(RECORD)
    faster["runs"][6]["seconds"] = [1e-3]
    assert "the lead shrinks" in readme.loop(faster) or "wins" not in readme.loop(faster)


def test_the_readme_says_how_often_others_are_wrong() -> None:
    record = deepcopy(RECORD)
    text = readme.wrong(record)
    assert "hnswlib 50.0%" in text and "torch bf16 0%" in text and "headlong 0%, with 100% of the rows proved" in text
    record["answers"][2] |= {"true": [[-0.5, -9.0], [-0.25, -2.0]], "proved": [0, 1]}
    assert "headlong 50.0%, with 50.0% of the rows proved" in readme.wrong(record)


def test_a_recommender_is_summed_up() -> None:
    text = readme.recommender(RECORD)
    assert text.startswith("The best 2 of 1,000 items (10 dimensions, synthetic)")
    assert "2.00 ms where torch bf16 takes 5.00 ms, **2.50×**" in text


def test_a_decode_step_is_summed_up() -> None:
    steps = [{"what": readme.STEP, "batch": 1, "times": ratio} for ratio in (1.5, 1.25)]
    rows = [*steps, {"what": "else", "batch": 1, "times": 9}]
    facts = {"shape": "gpt2", "vocab": 50257, "greedy tokens equal": 99, "greedy tokens": 100}
    text = readme.decode([{"facts": facts, "rows": rows}])
    assert "**1.25–1.50×** for GPT-2's shape (50,257 tokens)" in text and "99 of 100 greedy tokens" in text


def test_answers_as_text() -> None:
    line = {"row": 3, "ids": [7, -1], "log_probs": [-0.5, None], "error": None, "proved": False}
    table = topk_table([line], 9)
    assert table.rows == (("3", "7: 60.7%, -1: –", "open", "not proved"),)
    assert table.caption.startswith("8 more rows")


class Checked(HTMLParser):
    """Raises where tags do not close in order; keeps everything that would be fetched."""

    EMPTY = ("meta", "link", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.tables = 0
        self.feed(text)
        self.close()
        if self.open:
            raise ValueError(f"{self.open} are never closed")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tables += tag == "table"
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag in ("link", "script", "img", "iframe"):
            self.fetched.append(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            raise ValueError(f"</{tag}> closes nothing")


def test_the_page_is_whole_and_fetches_nothing() -> None:
    text = bench_page(RECORD, "A <title>", "An & intro")
    checked = Checked(text)
    assert set(checked.fetched) <= {"data:,", "link", "script"}, "the icon and the script are inside"
    assert checked.tables == 4  # five rows; every method, cold and in a loop; promises
    assert "url(" not in text
    assert "@import" not in text
    for part in ("A &lt;title&gt;", "An &amp; intro", "A &lt;CPU&gt;", "prefers-color-scheme: dark", "width=device-width"):
        assert part in text
    assert text.count("<svg") == text.count('role="img" aria') == 4  # the answer, one batch, misses, errors
    for words in re.findall(r'aria-label="([^"]+)"', text):
        assert "cascade" in words


def test_the_fastest_that_miss_nothing_stand_at_the_foot() -> None:
    svg = speed_and_misses(summaries(RECORD)).svg
    heights = {name: float(y) for y, name in re.findall(r'cy="([\d.]+)"[^>]*/><text[^>]*>([^<]+)', svg)}
    assert heights["cascade"] == max(heights.values()) > heights["hnswlib"]
    assert ">none<" in svg and "torch fp32" not in heights, "two others are faster"


def test_the_page_check_can_fail() -> None:
    with pytest.raises(ValueError, match="closes nothing"):
        Checked("<p><b></p></b>")
    with pytest.raises(ValueError, match="never closed"):
        Checked("<div>")
    assert Checked('<script src="https://x"></script>').fetched == ["https://x", "script"]


def test_axes_put_values_between_their_ends() -> None:
    axis = Axis.over([1e-3, 1e-1], 0, 100)
    assert 0 < axis.at(1e-3) < axis.at(1e-2) < axis.at(1e-1) < 100
    assert axis.at(1e-2) == pytest.approx(50)
    assert all(0 <= axis.at(tick) <= 100 for tick in axis.ticks())
    assert len(Axis.over([1e-16, 1.0], 0, 1).ticks()) <= 8
    assert Axis.over([5.0], 0, 1).at(5.0) == pytest.approx(0.5)


def test_plots_of_one_point_and_of_equal_points() -> None:
    for svg in (
        dot_plot("t", [Row("a", 1.0, 1.0, 1.0, "n")], str),
        scatter("t", [Point("a", 1.0, 1.0, "n"), Point("b", 1.0, 1.0, "n")], (str, str), ("x", "y")),
        curve("t", [2.0], ("i", "v"), str),
    ):
        Checked(page("t", "i", []).replace("</main>", f"{svg}</main>"))
        assert "nan" not in svg


def test_labels_of_near_points_do_not_overlap() -> None:
    points = [Point(name, 1.0 + index / 1000, 1.0, "") for index, name in enumerate("abcdef")]
    svg = scatter("t", [*points, Point("far", 100.0, 9.0, "")], (str, str), ("x", "y"))
    heights = [float(y) for y in re.findall(r'<text x="[\d.]+" y="([\d.]+)">[a-f]</text>', svg)]
    assert len(heights) == 6
    assert min(abs(a - b) for i, a in enumerate(heights) for b in heights[:i]) >= 13
