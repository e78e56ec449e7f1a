"""One HTML file that opens anywhere: tables, and plots drawn as inline SVG.

No script, no font and no picture is fetched. Colours follow the reader's light or dark setting, wide tables scroll inside
their own box, every plot scales with the page, says in words what it shows, and names its points on hover. Pure: text in,
text out; what is in the tables is :mod:`headlong.report.tables`'s business.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from headlong.report.plots import Point, Row, dot_plot, scatter
from headlong.report.summaries import Summary
from headlong.report.tables import ReportTable, duration, nats, percent, round_duration, times

COLOURS = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6570; --paper: #fff; --line: #d5dae0; --accent: #1f5fbf;
  --rival: #c08a2e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ed; --soft: #9aa5b1; --paper: #14171b; --line: #343b44; --accent: #7fb0ff;
    --rival: #d9a64e; }
}
"""
DRAWN = """
svg text { font: 12px system-ui, sans-serif; fill: var(--ink); } svg .soft { fill: var(--soft); }
svg .grid { stroke: var(--line); stroke-width: 1; } svg .mark { fill: var(--accent); }
svg .mark.dense { fill: var(--soft); opacity: .55; } svg .mark.rival { fill: var(--rival); }
svg .span { stroke: var(--accent); stroke-width: 2; fill: none; opacity: .55; }
"""
PICTURE = COLOURS + DRAWN
"""The style of a plot that is a file of its own."""
STYLE = (
    COLOURS
    + """
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 62rem; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.wide { overflow-x: auto; } .note { color: var(--soft); font-size: .85rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
thead th { vertical-align: bottom; } th:first-child, .text { text-align: left; }
tbody th { font-weight: 600; white-space: nowrap; }
figure { margin: 1rem 0; } svg { width: 100%; height: auto; max-width: 46rem; min-width: 31rem; }
td { white-space: nowrap; } td.text { white-space: normal; min-width: 12rem; }
details { border-top: 1px solid var(--line); padding: .2rem 0; } details details { margin-left: .8rem; }
summary { cursor: pointer; font-weight: 600; padding: .45rem 0; } .words { font-size: 1.05rem; }
h3, h4 { font-size: 1.02rem; margin: 1.2rem 0 .4rem; }
"""
    + DRAWN
)


class Figure(NamedTuple):
    """A plot and the sentence that says what it shows."""

    title: str
    svg: str
    caption: str = ""


class Paragraph(NamedTuple):
    """A paragraph; ``soft``: in small grey letters."""

    text: str
    soft: bool = False


class Section(NamedTuple):
    """Parts behind a heading that unfolds them; ``open``: unfolded at first."""

    title: str
    parts: Sequence[Any]
    open: bool = False


Part = ReportTable | Figure | Paragraph | Section


def page(title: str, intro: str, parts: Sequence[Part]) -> str:
    """The whole file."""
    body = "\n".join(_part(part, 2) for part in parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{_text(title)}</h1>\n{f'<p>{_text(intro)}</p>' if intro else ''}\n{body}\n</main>\n</body>\n</html>\n"
    )


def times_figure(found: Sequence[Summary], batch: int) -> Figure:
    """Medians at one batch size, with the 10th and 90th percentile."""
    mine = sorted((entry for entry in found if entry.batch == batch), key=lambda entry: entry.median)
    rows = [Row(one.contestant, one.median, one.low, one.high, f"{duration(one.median)}, {times(one.speedup)}") for one in mine]
    queries = "one query at a time" if batch == 1 else f"{batch} queries at once"
    title = f"Time per query, {queries}"
    return Figure(title, dot_plot(title, rows, round_duration), "Dot: median. Line: 10th to 90th percentile. Left is faster.")


def speed_and_error(found: Sequence[Summary]) -> Figure:
    """Time at the smallest batch against the worst error, of those that give probabilities."""
    smallest = min(entry.batch for entry in found)
    points = [
        Point(one.contestant, one.median, max(one.worst, 1e-16), f"{duration(one.median)}, {nats(one.worst)} nats")
        for one in found
        if one.batch == smallest and one.worst is not None
    ]
    title = "Speed against error"
    note = "Worst |Δlog p| over all queries, in nats. Down and left is better. Methods without probabilities are left out."
    svg = scatter(title, points, (round_duration, lambda value: f"{value:.0e}"), ("time per query", "nats"))
    return Figure(title, svg, note)


FASTEST = 2
"""How many of those that miss nothing are drawn beside the others: more would cover each other, and all are in the table."""


def speed_and_misses(found: Sequence[Summary]) -> Figure:
    """Time at the smallest batch against the share of the best classes that were missed; at the foot some that miss none."""
    smallest = min(entry.batch for entry in found)
    mine = sorted((one for one in found if one.batch == smallest), key=lambda one: (one.agreement == 1, one.median))
    mine = mine[: FASTEST + sum(one.agreement < 1 for one in mine)]
    least = min([1 - one.agreement for one in mine if one.agreement < 1], default=1e-2)
    foot = 10.0 ** math.floor(math.log10(least / 2))  # a power of ten has its place on the axis
    points = [
        Point(one.contestant, one.median, max(1 - one.agreement, foot), f"{duration(one.median)}, {percent(one.agreement)}")
        for one in mine
    ]
    title = "Speed against misses"
    note = (
        "Share of the true best classes that are not in the answer. Down and left is better; "
        f"at the foot are the {FASTEST} fastest of those that miss none."
    )
    shown = (round_duration, lambda value: "none" if value < 1.01 * foot else percent(value))
    return Figure(title, scatter(title, points, shown, ("time per query", "missed"), foot), note)


LONG = 24
"""A column with a longer cell holds words, which are set to the left; the others hold numbers."""


def _part(part: Part, level: int) -> str:
    if isinstance(part, Section):
        inside = "\n".join(_part(one, level + 1) for one in part.parts)
        shown = " open" if part.open else ""
        return f"<details{shown}><summary>{_text(part.title)}</summary>\n{inside}\n</details>"
    if isinstance(part, Paragraph):
        return f'<p class="{"note" if part.soft else "words"}">{_text(part.text)}</p>'
    return _table(part, level) if isinstance(part, ReportTable) else _figure(part, level)


def _head(title: str, level: int) -> str:
    return f"<h{level}>{_text(title)}</h{level}>\n" if title else ""


def _table(table: ReportTable, level: int) -> str:
    words = [any(len(row[place]) > LONG for row in table.rows) for place in range(len(table.columns))]
    marks = [' class="text"' if long else "" for long in words]
    heads = "".join(f'<th scope="col"{mark}>{_text(name)}</th>' for name, mark in zip(table.columns, marks, strict=True))
    rows = "\n".join(f"<tr>{_cells(row, marks)}</tr>" for row in table.rows)
    return (
        f"{_head(table.title, level)}"
        f'<div class="wide" tabindex="0"><table><thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n'
        + (f'<p class="note">{_text(table.caption)}</p>' if table.caption else "")
    )


def _cells(row: Sequence[str], marks: Sequence[str]) -> str:
    cells = "".join(f"<td{mark}>{_number(cell)}</td>" for mark, cell in zip(marks[1:], row[1:], strict=True))
    return f'<th scope="row">{_text(row[0])}</th>{cells}'


def _number(cell: str) -> str:
    """Quartiles behind a number, "2.40× (2.00–2.67)", come below it where the page is narrow."""
    return re.sub(r" (\([^()]*–[^()]*\))$", r'<span class="spread"> \1</span>', _text(cell))


def _figure(figure: Figure, level: int) -> str:
    note = f'<figcaption class="note">{_text(figure.caption)}</figcaption>' if figure.caption else ""
    return f'{_head(figure.title, level)}<figure><div class="wide" tabindex="0">{figure.svg}</div>{note}</figure>'


def _text(text: str) -> str:
    return html.escape(text, quote=True)
