"""What a command says: rows of published tables and printed figures as text tables, and how far it is.

A line is what ``reproduce`` appends: ``setting``, ``got``, ``expected`` (low, high, tolerance) and ``verdict`` by metric. A
table is its headings and its rows of cells.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]
Shown = tuple[Sequence[str], Sequence[Sequence[str]]]
SPEAKS_EVERY = 15.0
"""Seconds between two lines of progress."""
CELLS = ("printed of", "printed", "ours", "status", "what ours is, or takes")


def paper_table(lines: Sequence[Line]) -> Shown:
    """A row for each setting; where something was published, its range and the verdict stand beside our number."""
    names = {kind: list(dict.fromkeys(name for line in lines for name in line[kind])) for kind in ("setting", "got")}
    rows = [(*(str(line["setting"].get(name, "")) for name in names["setting"]), *(_cell(line, name) for name in names["got"]))
            for line in lines]  # fmt: skip
    return (*names["setting"], *names["got"]), rows


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


def progress(label: str) -> Callable[[int, int], None]:
    """A line now and then that says how far a stage is."""
    started = told = time.monotonic()

    def move(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told > SPEAKS_EVERY:
            told = now
            sys.stderr.write(f"{label}: {done} of {total}, {now - started:.0f} s\n")

    return move


def _cell(line: Line, metric: str) -> str:
    if metric not in line["got"]:
        return "–"
    got, (low, high, *_) = f"{line['got'][metric]:.5g}", line["expected"].get(metric, (None, None))
    return got if low is None else f"{got}, {line['verdict'][metric]} ({f'{low:g}' if low == high else f'{low:g} to {high:g}'})"
