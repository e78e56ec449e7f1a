"""The page of ``headlong report``: whole without a script, and browsed in Chromium where that is installed."""

from __future__ import annotations

import json
import re
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from bench_record import RECORD
from chromium import CHROMIUM, DARK, photograph
from headlong.cli.inputs import results
from headlong.errors import MalformedFileError
from headlong.report.page import Paragraph
from headlong.report.sections import ResultFile, bench_page, report
from headlong.report.top_of_page import answer
from thinned import left_out

INSPECTED = {
    "vocab": 900, "dim": 32, "dtype": "float32", "percentiles": [0, 5, 50, 95, 100], "row_norms": [1, 2, 3, 4, 5],
    "singular_values": [3.0, 2.0, 1.0, 0.0], "int8_widths": [0.01, 0.02, 0.05, 0.1, 0.2], "candidates": [10, 11, 20, 40, 90],
    "preview_ranks": {"2": [0, 0, 3, 40, 90], "8": [0, 0, 0, 1, 2]},
}  # fmt: skip
PAPER = [{"setting": {"width": "D/8"}, "got": {"kl": 0.5}, "expected": {}, "verdict": {}}]
SOURCES = [
    ResultFile("bench.json", RECORD),
    ResultFile("layer.json", INSPECTED),
    ResultFile("paper.jsonl", PAPER),
    ResultFile("odd.json", {"a": 1}),
]


def test_every_section_is_there_and_nothing_is_fetched() -> None:
    page = report(SOURCES)
    for title in (
        "<summary>bench.json</summary>", "Every method: calls after other work", "Every method: calls in a loop",
        "Speed against error", "Bytes against time", "Time per query by batch size", "Interval widths",
        "Singular values of layer.json", "Rank of the likeliest class",
        "What each one promises", "Files without a picture here (2)",
    ):  # fmt: skip
        assert title in page, title
    assert "default-src 'none'" in page and page.count("<script>") == 1
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", page)


def test_the_answer_comes_first_and_files_are_folded() -> None:
    page = report(SOURCES)
    before = page[: page.index("<details")]
    assert "Made from 4 files" in before and "odd.json" not in before
    assert "cascade takes 5.00 ms where torch bf16, the fastest dense product, takes 12.0 ms: 2.40×" in before
    assert "hnswlib takes 2.00 ms and found 75.0% of the best, and does not say which" in before
    assert before.count("<svg") == 1 and before.count("<tr>") == 1 + 3
    assert "<details open>" not in page
    assert "<details open>" in report(SOURCES[:1]), "one file is not hidden"


def test_the_answer_of_a_busy_machine_says_so() -> None:
    busy = deepcopy(RECORD)
    for share, said in ((0.3, True), (0.02, False)):
        busy["environment"]["others"] = share
        words = answer(busy)[0]
        assert isinstance(words, Paragraph) and ("took 30% of the processors meanwhile: measure again" in words.text) is said


def test_the_answer_says_when_the_plain_product_wins() -> None:
    slow = deepcopy(RECORD)
    slow["cold"][2]["seconds"] = [20e-3]
    words = answer(slow)[0]
    assert isinstance(words, Paragraph)
    assert words.text.startswith("Here the plain product wins: torch bf16 takes 12.0 ms, cascade 20.0 ms.")
    slow["answers"][2]["proved"] = [0, 1]
    words = answer(slow)[0]
    assert isinstance(words, Paragraph) and words.text.startswith("Nothing that took part proves")


def test_files_are_read_by_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(INSPECTED))
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, PAPER)) + "\n")
    (tmp_path / "notes.md").write_text("no result")
    assert [name for name, _ in results([tmp_path])] == ["a.json", "b.jsonl"]
    with pytest.raises(MalformedFileError, match=r"notes\.md is not a \.json or \.jsonl"):
        results([tmp_path / "notes.md"])
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(MalformedFileError, match=r"c\.json is not JSON"):
        results([tmp_path])


PROBE = """
<script>
window.addEventListener('load', () => {
  const found = {};
  const table = document.querySelector('table'), rows = () => Array.from(table.tBodies[0].rows, r => r.cells[1].textContent);
  const buttons = table.querySelectorAll('thead button');
  buttons[1].click(); found.rising = rows(); found.sort = buttons[1].parentNode.getAttribute('aria-sort');
  buttons[1].click(); found.falling = rows();
  const mark = document.querySelector('figure svg g[tabindex]');
  mark.dispatchEvent(new PointerEvent('pointerenter'));
  found.hovered = mark.closest('figure').querySelector('.named').textContent;
  found.title = mark.querySelector('title').textContent; mark.focus(); found.focused = document.activeElement === mark;
  found.wide = document.documentElement.scrollWidth <= window.innerWidth;
  found.paper = getComputedStyle(document.body).backgroundColor;
  const said = document.createElement('pre');
  said.id = 'found'; said.textContent = JSON.stringify(found); document.body.append(said);
});
</script></body>"""


def browse(page: Path, *flags: str) -> tuple[dict[str, Any], str]:
    """The page opened in headless Chromium without a network: what the probe saw, and what the console said."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (Debian: apt-get install chromium); the page's script is not run")
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
        f"--user-data-dir={page.parent / 'profile'}", "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=2000",
        *flags, "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    said = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert said, done.stderr[-2000:]
    return json.loads(said[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")), done.stderr


@pytest.mark.parametrize("width", [390, left_out(1200)])
def test_the_page_in_chromium(tmp_path: Path, width: int) -> None:
    page = tmp_path / "report.html"
    page.write_text(report(SOURCES).replace("</body>", PROBE), encoding="utf-8")
    found, console = browse(page, f"--window-size={width},800", "--blink-settings=preferredColorScheme=0")
    assert "CONSOLE" not in console, console
    assert found["sort"] == "ascending"
    assert found["rising"] == found["falling"][::-1] and len(set(found["rising"])) == len(found["rising"])
    assert found["hovered"] == found["title"] != ""
    assert found["focused"] is True
    assert found["wide"] is True, "the page is wider than the window"


PAGES = {"report": lambda: report(SOURCES), "demo": lambda: bench_page(RECORD, "headlong demo", "A next-word layer.")}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PAGES)
def test_screenshots_of_both_pages(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.html").write_text(PAGES[name](), encoding="utf-8")
    for word, width, flags in (("phone", 500, ()), ("desk", 1200, ()), ("dark", 1200, (DARK,))):
        shot = photograph(tmp_path / f"{name}.html", f"{name}-{word}", width, *flags)
        assert shot.size > 20_000, "a blank page"
        assert shot.light < 0.3 if flags else shot.light > 0.8
