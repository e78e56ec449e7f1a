"""One HTML file that opens anywhere: tables that sort by a click on a heading, and plots as inline SVG.

Nothing is fetched, and a content policy in the page forbids it. Colours follow the reader's light or dark setting, wide tables
scroll inside their own box. Pure: text in, text out.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template
from typing import Any, NamedTuple

from headlong.report.plots import Figure
from headlong.report.tables import ReportTable

PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>$title</title>
<style>
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6570; --paper: #fff; --line: #d5dae0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #9aa5b1; --paper: #14171b; --line: #343b44; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto; max-width: 62rem;
  padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.2; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.wide { overflow-x: auto; } .note { color: var(--soft); font-size: .85rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th:first-child, .text { text-align: left; } tbody th { font-weight: 600; } td { white-space: nowrap; }
td.text { white-space: normal; min-width: 12rem; } thead th { cursor: pointer; vertical-align: bottom; }
figure { margin: 1rem 0; } svg { width: 100%; height: auto; max-width: 46rem; min-width: 24rem; }
summary { cursor: pointer; font-weight: 600; padding: .45rem 0; } details { border-top: 1px solid var(--line); }
@media (max-width: 40rem) { body { padding: .6rem; } table { font-size: .82rem; } }
</style>
</head>
<body>
<main>
<h1>$title</h1>
$body
</main>
<script>
const units = {'µs': 1e-6, 'ms': 1e-3, 's': 1, 'kB': 1e3, 'MB': 1e6, 'GB': 1e9};
function key(text) {
  const found = /^[<>]?\\s*(-?[\\d,]*\\.?\\d+(?:e[-+]?\\d+)?)\\s*(µs|ms|s|kB|MB|GB)?(?![a-z])/i.exec(text);
  return found ? parseFloat(found[1].replace(/,/g, '')) * (units[found[2]] || 1) : null;
}
for (const head of document.querySelectorAll('thead th')) {
  head.tabIndex = 0;
  const sort = () => {
    const table = head.closest('table'), column = head.cellIndex, sign = head.ariaSort === 'ascending' ? -1 : 1;
    for (const other of table.querySelectorAll('thead th')) other.ariaSort = null;
    head.ariaSort = sign > 0 ? 'ascending' : 'descending';
    const rows = Array.from(table.tBodies[0].rows, row => [row.cells[column].textContent.trim(), row]);
    rows.sort(([a], [b]) => {
      const x = key(a), y = key(b);
      if (x !== null && y !== null) return sign * (x - y);
      return x === null && y === null ? sign * a.localeCompare(b) : (x === null) - (y === null);
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
  };
  head.addEventListener('click', sort);
  head.addEventListener('keydown', event => { if (event.key === 'Enter') sort(); });
}
</script>
</body>
</html>
""")
LONG = 24
"""A column with a longer cell holds words, which are set to the left; the others hold numbers."""


class Section(NamedTuple):
    """Parts behind a heading that unfolds them."""

    title: str
    parts: Sequence[Any]


Part = ReportTable | Figure | Section | str


def page(title: str, parts: Sequence[Part]) -> str:
    """The whole file; a string is a paragraph."""
    return PAGE.substitute(title=escape(title), body="\n".join(_part(part) for part in parts))


def _part(part: Part) -> str:
    if isinstance(part, str):
        return f"<p>{escape(part)}</p>" if part else ""
    if isinstance(part, Section):
        return f"<details><summary>{escape(part.title)}</summary>\n{''.join(map(_part, part.parts))}</details>"
    return _table(part) if isinstance(part, ReportTable) else _figure(part)


def _head(title: str) -> str:
    return f"<h2>{escape(title)}</h2>\n" if title else ""


def _table(table: ReportTable) -> str:
    words = [any(len(row[place]) > LONG for row in table.rows) for place in range(len(table.columns))]
    marks = [' class="text"' if long else "" for long in words]
    heads = "".join(f'<th scope="col"{mark}>{escape(name)}</th>' for name, mark in zip(table.columns, marks, strict=True))

    def line(row: Sequence[str]) -> str:
        cells = "".join(f"<td{mark}>{escape(cell)}</td>" for mark, cell in zip(marks[1:], row[1:], strict=True))
        return f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>'

    rows = "\n".join(map(line, table.rows))
    note = f'<p class="note">{escape(table.caption)}</p>' if table.caption else ""
    body = f"<table><thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>"
    return f'{_head(table.title)}<div class="wide" tabindex="0">{body}</div>\n{note}'


def _figure(figure: Figure) -> str:
    note = f'<figcaption class="note">{escape(figure.caption)}</figcaption>' if figure.caption else ""
    return f'{_head(figure.title)}<figure><div class="wide" tabindex="0">{figure.svg}</div>{note}</figure>'
