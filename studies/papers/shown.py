"""Rows of published tables, joined over seeds, and printed figures as text tables. Pure: reads no file.

A line is what ``reproduce`` appends: ``setting``, ``got``, ``expected`` (low, high, tolerance) and ``verdict`` by metric. A
table is its headings and its rows of cells.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]
Group = Sequence[Line]
Shown = tuple[Sequence[str], Sequence[Sequence[str]]]
CELLS = ("printed of", "printed", "ours", "status", "what ours is, or takes")


def joined(lines: Sequence[Line]) -> list[Group]:
    """Lines whose settings differ in nothing but the seed, together, in the order in which they came first."""
    groups: dict[tuple[tuple[str, str], ...], list[Line]] = {}
    for line in lines:
        key = tuple((name, str(value)) for name, value in line["setting"].items() if name != "seed")
        groups.setdefault(key, []).append(line)
    return list(groups.values())


def paper_table(lines: Sequence[Line]) -> Shown:
    """A row for each setting; where something was published, its range and the verdict stand beside our number."""
    if not lines:
        return ("no rows",), []
    groups = joined(lines)
    settings = [name for name in lines[0]["setting"] if name != "seed"]
    metrics = list(dict.fromkeys(name for line in lines for name in line["got"]))
    seeds = ("seeds",) if max(map(len, groups)) > 1 else ()
    rows = [
        (
            *(str(group[0]["setting"].get(name, "")) for name in settings),
            *(str(len(group)) for _ in seeds),
            *(_cell(group, name) for name in metrics),
        )
        for group in groups
    ]
    return (*settings, *seeds, *metrics), rows


def counted(counts: Mapping[str, Mapping[str, int]]) -> Shown:
    """What became of the printed figures: a row for each study, a column for each status."""
    statuses = list(next(iter(counts.values()), {}))
    rows = [(paper, str(sum(mine.values())), *(str(mine[status]) for status in statuses)) for paper, mine in counts.items()]
    return ("study", "printed", *statuses), rows


def show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns under their headings, on stdout."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in (columns, ["-" * width for width in widths], *rows):
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")
    sys.stdout.write("\n")


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same for a page, set to the left."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 and len(set(values)) > 1 else ""
    return f"{statistics.fmean(values):.5g}{spread}"


def _cell(group: Group, metric: str) -> str:
    values = [line["got"][metric] for line in group if metric in line["got"]]
    if not values:
        return "–"
    got = _mean(values)
    expected = group[0]["expected"].get(metric)
    if expected is None:
        return got
    low, high, *_ = expected
    published = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    counts = Counter(line["verdict"][metric] for line in group)
    verdict = next(iter(counts)) if len(counts) == 1 else f"matched in {counts['matched']} of {len(group)}"
    return f"{got}, {verdict} ({published})"
