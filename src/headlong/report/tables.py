"""Raw runs in, tables out. Pure: reads no clock, no file and no layer.

::

    speed-up      = median seconds of the baseline / median seconds of the contestant       same batch size
    agreement     = share of the ids that are among the true top k (ties count)             over all queries
    worst         = max |log p^ - log p| in nats                                            over all queries and ids
    proved        = share of the queries whose ids the contestant says are proved
    read          = bytes read per query / bytes of the float32 layer

A new column is a function of the stored record (:mod:`headlong.bench.run` says what is in it) and needs no new run. The HTML
page around these tables is :mod:`headlong.report.page`'s.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Record = Mapping[str, Any]

BASELINES = ("torch fp32", "numpy fp32")
"""The first of these that took part is what speed-ups are over, unless the run names another."""
TIE = 2e-6
"""Log-probabilities this near count as equal: they are stored with six decimals."""


class Summary(NamedTuple):
    """One contestant at one batch size; times in seconds per query, None for what it does not have."""

    contestant: str
    batch: int
    median: float
    low: float
    high: float
    speedup: float
    agreement: float
    worst: float | None
    proved: float | None
    read: float | None


class Table(NamedTuple):
    """Text cells, a heading for each column, and what has to be known to read them. The first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


def baseline(record: Record) -> str:
    """The contestant that speed-ups are measured against."""
    names = [run["contestant"] for run in record["runs"]]
    wanted = (record["settings"].get("baseline"), *BASELINES)
    return next((name for name in wanted if name in names), names[0])


def summaries(record: Record) -> list[Summary]:
    """One entry for each run of the record, in its order."""
    against = baseline(record)
    base = {run["batch"]: statistics.median(run["seconds"]) for run in record["runs"] if run["contestant"] == against}
    quality = {entry["contestant"]: entry for entry in record["answers"]}
    truth = record["truth"]["log_probs"]
    found = []
    for run in record["runs"]:
        entry, batch = quality[run["contestant"]], run["batch"]
        median = statistics.median(run["seconds"])
        found.append(
            Summary(
                contestant=run["contestant"],
                batch=batch,
                median=median / batch,
                low=percentile(run["seconds"], 10) / batch,
                high=percentile(run["seconds"], 90) / batch,
                speedup=base[batch] / median,
                agreement=agreement(entry.get("true", truth), [row[-1] for row in truth]),
                worst=worst_gap(entry),
                proved=share(entry["proved"]) if "proved" in entry else None,
                read=run["bytes"] / (4 * record["layer"]["vocab"] * record["layer"]["dim"]) if "bytes" in run else None,
            )
        )
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest of the sorted values, as NumPy's default."""
    ranked = sorted(values)
    place = (len(ranked) - 1) * percent / 100
    lower = int(place)
    upper = min(lower + 1, len(ranked) - 1)
    return ranked[lower] + (ranked[upper] - ranked[lower]) * (place - lower)


def agreement(true: Sequence[Sequence[float | None]], kth: Sequence[float]) -> float:
    """Share of the named ids whose true log-probability reaches the k-th largest of their query."""
    hits = [value is not None and value >= least - TIE for row, least in zip(true, kth, strict=True) for value in row]
    return share(hits)


def worst_gap(entry: Mapping[str, Any]) -> float | None:
    """The largest error of a log-probability; None where the contestant gives none."""
    gaps = [abs(value) for row in entry.get("gap", []) for value in row if value is not None]
    return max(gaps, default=None)


def share(flags: Sequence[bool]) -> float:
    """``mean(flags)``; of none: 1, since nothing failed."""
    return sum(flags) / len(flags) if flags else 1.0


def comparison(record: Record, title: str = "") -> Table:
    """A row for each contestant, two columns for each batch size, then what its answers are worth."""
    found = summaries(record)
    batches = sorted({entry.batch for entry in found})
    names = list(dict.fromkeys(entry.contestant for entry in found))
    timed = [heading for batch in batches for heading in (_batch_heading(batch), "speed-up")]
    columns = ("method", *timed, f"top-{record['settings']['k']} agreement", "worst |Δlog p|", "ids proved", "read")
    rows = []
    for name in names:
        mine = {entry.batch: entry for entry in found if entry.contestant == name}
        cells = [cell for batch in batches for cell in _timed_cells(mine.get(batch))]
        first = mine[min(mine)]
        rows.append((name, *cells, percent(first.agreement), nats(first.worst), percent(first.proved), percent(first.read)))
    return Table(title, columns, tuple(rows), caption(record))


def _batch_heading(batch: int) -> str:
    return "1 query" if batch == 1 else f"{batch} at once, each"


def _timed_cells(entry: Summary | None) -> tuple[str, str]:
    return ("", "") if entry is None else (duration(entry.median), times(entry.speedup))


def caption(record: Record, batch: str = "the smallest batch") -> str:
    """Machine, threads, versions, date: what the numbers hold for."""
    made, layer, settings = record["environment"], record["layer"], record["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    return (
        f"{layer['vocab']:,} classes × {layer['dim']} dimensions, stored as {layer['dtype']}; "
        f"{settings['queries']} queries, k = {settings['k']}; medians of interleaved calls, "
        f"speed-up over {baseline(record)}; read: bytes per query at {batch}, of the float32 layer. "
        f"{made.get('gpu') or made['cpu']}, {made['threads']} threads, {', '.join(made['isa_used'] or made['isa'])}; "
        f"Python {made['python']}, {versions}; {made['date']}."
    )


def engines(record: Record) -> Table:
    """What each contestant says of itself."""
    rows = []
    for entry in record["answers"]:
        about = entry["about"]
        rows.append((entry["contestant"], about.get("promise", "none"), about.get("engine", about.get("reads", ""))))
    return Table("What each one promises", ("method", "promise", "what it is"), tuple(rows))


def markdown(table: Table) -> str:
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


def topk_table(lines: Sequence[Mapping[str, Any]], rows: int) -> Table:
    """A row for each answered query: its best classes with their probabilities, its error and its proof."""
    cells = []
    for line in lines:
        pairs = zip(line["ids"], line["log_probs"], strict=True)
        best = ", ".join(f"{i}: –" if value is None else f"{i}: {percent(math.exp(value))}" for i, value in pairs)
        error = "open" if line["error"] is None else f"{line['error']:.1e}"
        cells.append((str(line["row"]), best, error, "proved" if line["proved"] else "not proved"))
    more = f"{rows - len(lines):,} more rows; --json prints all of them." if rows > len(lines) else ""
    return Table("", ("row", "class: probability", "error, nats", "ids"), tuple(cells), more)


def paper_list(entries: Sequence[tuple[str, str, str]]) -> Table:
    """Every table of every paper, and whether it can run here."""
    return Table("Tables of papers", ("table", "claim", "here"), tuple(entries))
