"""Raw runs in, tables out. Pure: reads no clock, no file and no layer.

A column is a function of the stored record (see :mod:`headlong.bench.run`), not a new run: ``summaries.py`` has the numbers,
``page.py`` is the page around the tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headlong.report.measured_on import machine
from headlong.report.summaries import WAYS, Record, Summary, baselines, summaries, ways


class ReportTable(NamedTuple):
    """Text cells, a heading for each column, and what has to be known to read them. The first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


def comparison(record: Record, title: str = "", way: str = "") -> ReportTable:
    """A row for each contestant, two columns for each batch size, then what its answers are worth; the first way by itself."""
    way = way or ways(record)[0]
    found = summaries(record, way)
    batches = sorted({entry.batch for entry in found})
    names = list(dict.fromkeys(entry.contestant for entry in found))
    timed = [heading for batch in batches for heading in (_batch_heading(batch), "speed-up (quartiles)")]
    columns = ("method", *timed, f"top-{record['settings']['k']} agreement", "worst |Δlog p|", "ids proved", "read")
    rows = []
    for name in names:
        mine = {entry.batch: entry for entry in found if entry.contestant == name}
        cells = [cell for batch in batches for cell in _timed_cells(mine.get(batch))]
        first = mine[min(mine)]
        rows.append((name, *cells, percent(first.agreement), nats(first.worst), percent(first.proved), percent(first.read)))
    return ReportTable(title or f"Calls {WAYS[way]}", columns, tuple(rows), caption(record, way=way))


def comparisons(record: Record) -> list[ReportTable]:
    """A table for each way in which calls were timed, cold first."""
    return [comparison(record, way=way) for way in ways(record)]


def _batch_heading(batch: int) -> str:
    return "1 query" if batch == 1 else f"{batch} at once, each"


def _timed_cells(entry: Summary | None) -> tuple[str, str]:
    return ("", "") if entry is None else (duration(entry.median), factor(entry))


def factor(entry: Summary) -> str:
    """A summary's speed-up with its quartiles."""
    return factor_of(entry.speedup, entry.slower, entry.faster)


def factor_of(ratio: float, slower: float, faster: float) -> str:
    """``"5.00× (4.41–5.52)"``"""
    return f"{times(ratio)} ({_three_digits(slower)}–{_three_digits(faster)})"


def caption(record: Record, batch: str = "the smallest batch", way: str = "loop") -> str:
    """Machine, threads, versions, date: what the numbers hold for."""
    made, layer, settings = record["environment"], record["layer"], record["settings"]
    emptied = f", each after {record['emptied_by']}" if way == "cold" and "emptied_by" in record else ""
    return (
        f"{layer['vocab']:,} classes × {layer['dim']} dimensions, stored as {layer['dtype']}; "
        f"{settings['queries']} queries, k = {settings['k']}; medians of calls in turns{emptied}; "
        f"speed-up over {_against(record, way)}; read: bytes per query at {batch}, of the float32 layer. {machine(made)}"
    )


def _against(record: Record, way: str) -> str:
    """``"the fastest dense product (torch int8 at 1, torch bf16 at 8)"``"""
    found = baselines(record, way)
    names = list(dict.fromkeys(found.values()))
    if len(names) == 1:
        return names[0]
    parts = (f"{name} at {' and '.join(str(batch) for batch, one in found.items() if one == name)}" for name in names)
    return f"the fastest dense product ({', '.join(parts)})"


def engines(record: Record) -> ReportTable:
    """What each contestant says of itself."""
    rows = []
    for entry in record["answers"]:
        about = entry["about"]
        rows.append((entry["contestant"], about.get("promise", "none"), about.get("engine", about.get("reads", ""))))
    return ReportTable("What each one promises", ("method", "promise", "what it is"), tuple(rows))


def markdown(table: ReportTable) -> str:
    """A Markdown table, numbers to the right, its caption below."""
    rule = "|---|" + "--:|" * (len(table.columns) - 1)
    lines = [_markdown_row(table.columns), rule, *(_markdown_row(row) for row in table.rows)]
    return "\n".join([*lines, "", table.caption] if table.caption else lines)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def duration(seconds: float) -> str:
    """``0.000_083 -> "83 µs"``"""
    unit, size = _unit(seconds)
    return f"{_three_digits(seconds / size)} {unit}"


def spread(seconds: float, low: float, high: float) -> str:
    """``0.0083, 0.008, 0.009 -> "8.30 ms (8.00–9.00)"``: one unit for all three."""
    unit, size = _unit(seconds)
    return f"{_three_digits(seconds / size)} {unit} ({_three_digits(low / size)}–{_three_digits(high / size)})"


def round_duration(seconds: float) -> str:
    """``0.002 -> "2 ms"``: a round number, for the marks of an axis."""
    unit, size = _unit(seconds)
    return f"{seconds / size:g} {unit}"


def _unit(seconds: float) -> tuple[str, float]:
    """The largest unit of which there is one, once three digits are kept."""
    return next(((unit, size) for unit, size in (("s", 1.0), ("ms", 1e-3)) if seconds >= 0.9995 * size), ("µs", 1e-6))


def times(ratio: float) -> str:
    """``12.34 -> "12.3×"``"""
    return f"{_three_digits(ratio)}×"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def percent(value: float | None) -> str:
    """Never rounds a number below one up to 100 %, nor one above zero down to 0 %."""
    if value is None:
        return "–"
    if value in (0.0, 1.0):
        return f"{value:.0%}"
    text = next((text for digits in (1, 2, 3) if (text := f"{100 * value:.{digits}f}") not in _ROUNDED_AWAY), None)
    return f"{text}%" if text else ("<0.001%" if value < 0.5 else ">99.999%")


_ROUNDED_AWAY = {"0.0", "0.00", "0.000", "100.0", "100.00", "100.000"}


def nats(value: float | None) -> str:
    """Two digits; "no log p" where there are no probabilities to be wrong."""
    if value is None:
        return "no log p"
    return "0" if value == 0 else f"{value:.2g}" if value >= 1e-4 else f"{value:.0e}"


def topk_table(lines: Sequence[Mapping[str, Any]], rows: int) -> ReportTable:
    """A row for each answered query: its best classes with their probabilities, its error and its proof."""
    cells = []
    for line in lines:
        pairs = zip(line["ids"], line["log_probs"], strict=True)
        best = ", ".join(f"{i}: –" if value is None else f"{i}: {percent(math.exp(value))}" for i, value in pairs)
        error = "open" if line["error"] is None else f"{line['error']:.1e}"
        cells.append((str(line["row"]), best, error, "proved" if line["proved"] else "not proved"))
    more = f"{rows - len(lines):,} more rows; --json prints all of them." if rows > len(lines) else ""
    return ReportTable("", ("row", "class: probability", "error, nats", "ids"), tuple(cells), more)
