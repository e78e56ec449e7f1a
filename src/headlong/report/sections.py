"""One page from any mix of raw results: runs of ``bench``, ``inspect --json``, rows of ``reproduce``, other records. Pure.

A file of another kind is named in the page's last table rather than dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headlong.errors import MalformedFileError
from headlong.report.browse import browsable
from headlong.report.page import Figure, page, speed_and_error, times_figure
from headlong.report.papers import paper_table
from headlong.report.plots import Point, Row, Series, curve, dot_plot, lines, scatter
from headlong.report.records import record_tables
from headlong.report.tables import (
    Table,
    comparison,
    duration,
    engines,
    percent,
    round_duration,
    summaries,
)

Part = Table | Figure


class Source(NamedTuple):
    """A file's name, and what was in it: one JSON object, or the objects of its lines."""

    name: str
    content: Any


def report(sources: Sequence[Source], title: str = "headlong: results") -> str:
    """The HTML of everything in ``sources``, in their order."""
    parts: list[Part] = []
    other: list[tuple[str, str]] = []
    for source in sources:
        try:
            found = _parts(source)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # whatever foreign JSON can hold
            raise MalformedFileError(
                f"{source.name} has the names of a result but not its content; expected a file that headlong wrote"
            ) from error
        parts += found or []
        if found is None:
            other.append((source.name, _kind(source.content)))
    if not parts:
        names = ", ".join(name for name, _ in other)
        raise MalformedFileError(f"{names}: no result in there; expected what bench --json, inspect --json or reproduce wrote")
    if other:
        parts.append(Table("Files without a picture here", ("file", "kind"), tuple(other)))
    names = ", ".join(source.name for source in sources)
    intro = f"Made from {names}. Click a heading to sort by it; point at a mark, or move to it with Tab, and it is named."
    return browsable(page(title, intro, parts))


def _parts(source: Source) -> list[Part] | None:
    content = source.content
    if isinstance(content, Mapping) and "runs" in content and "truth" in content:
        return _bench(source.name, content)
    if isinstance(content, Mapping) and "singular_values" in content:
        return _inspection(source.name, content)
    if isinstance(content, Mapping) and (tables := record_tables(source.name, content)):
        return list(tables)
    if isinstance(content, list) and content and all(_is_paper_line(line) for line in content):
        return [paper_table(content, f"{source.name}: as published, and here", content[0].get("source", "see docs/papers"))]
    return None


def _is_paper_line(line: Any) -> bool:
    return isinstance(line, Mapping) and {"setting", "got"} <= line.keys()


def _kind(content: Any) -> str:
    if isinstance(content, Mapping):
        return str(content.get("format", "JSON"))
    return f"{len(content)} lines of JSON" if isinstance(content, list) else "JSON"


def _bench(name: str, record: Mapping[str, Any]) -> list[Part]:
    found = summaries(record)
    batches = sorted({entry.batch for entry in found})
    parts: list[Part] = [comparison(record, f"{name}: time, agreement, error, bytes")]
    parts += [speed_and_error(found), bytes_and_time(record)]
    if len(batches) > 1:
        parts.append(crossover(record))
    return [*parts, *(times_figure(found, batch) for batch in batches), engines(record)]


def bytes_and_time(record: Mapping[str, Any]) -> Figure:
    """What a query reads against what it takes, at the smallest batch, of those that count their bytes."""
    found = summaries(record)
    smallest = min(entry.batch for entry in found)
    points = [
        Point(one.contestant, one.read, one.median, f"{percent(one.read)} of the float32 layer in {duration(one.median)}")
        for one in found
        if one.batch == smallest and one.read
    ]
    title = "Bytes against time"
    note = "On a line through the origin all would read at the same speed. Down and left is better."
    svg = scatter(title, points, (lambda value: f"{100 * value:g}%", round_duration), ("read, of float32", "time per query"))
    return Figure(title, svg, note)


def crossover(record: Mapping[str, Any]) -> Figure:
    """Time per query over batch size: where two lines cross, the better choice changes."""
    found = summaries(record)
    names = list(dict.fromkeys(entry.contestant for entry in found))
    series = [
        Series(
            name,
            tuple((entry.batch, entry.median, f"{entry.batch} at once, {duration(entry.median)} each") for entry in mine),
        )
        for name in names
        if (mine := sorted((entry for entry in found if entry.contestant == name), key=lambda entry: entry.batch))
    ]
    title = "Time per query by batch size"
    labels = (lambda value: f"{value:g}", round_duration)
    svg = lines(title, series, labels, ("queries at once", "time per query"))
    return Figure(title, svg, "Where lines cross, the choice changes.")


def _inspection(name: str, facts: Mapping[str, Any]) -> list[Part]:
    singular = [float(value) for value in facts["singular_values"] if value > 0]
    what = f"{facts['vocab']:,} classes × {facts['dim']} dimensions, {facts['dtype']}"
    rows = [
        ("row norm", *(f"{value:.4g}" for value in facts["row_norms"])),
        ("int8 interval, nats", *(f"{value:.3g}" for value in facts["int8_widths"])),
        ("rows scored for a proved top k", *(f"{value:,.0f}" for value in facts["candidates"])),
    ]
    columns = ("", *(f"{value}%" for value in facts["percentiles"]))
    parts: list[Part] = [Table(f"{name}: the layer", columns, tuple(rows), f"{what}; percentiles.")]
    widths = [max(float(value), 1e-9) for value in facts["int8_widths"]]
    if len(widths) >= 5:
        title = "Interval widths of the int8 look"
        words = f"median {widths[2]:.3g} nats, 5% {widths[1]:.3g}, 95% {widths[3]:.3g}"
        row = Row("int8", widths[2], widths[1], widths[3], words)
        parts.append(Figure(title, dot_plot(title, [row], lambda value: f"{value:g} nats"), "Dot: median. Line: 5% to 95%."))
    if singular:
        title = "Singular values"
        svg = curve(title, singular, ("direction", "singular value"), lambda value: f"{value:.3g}")
        parts.append(Figure(f"{title} of {name}", svg, "A steep fall means that few directions carry the layer."))
    return [*parts, *ranks(facts)]


def ranks(facts: Mapping[str, Any]) -> list[Part]:
    """Where a low-rank preview puts the class that is really the likeliest."""
    found = facts.get("preview_ranks")
    if not found:
        return []
    title = "Rank of the likeliest class in a low-rank preview"
    rows = []
    for width, values in found.items():
        low, middle, high = (max(1.0, float(value) + 1) for value in values[1:4])
        rows.append(Row(f"width {width}", middle, low, high, f"median {middle:.0f}, 95% within {high:.0f}"))
    note = "Rank 1: the preview alone would have found it. Dot: median. Line: 5% to 95% of the queries."
    return [Figure(title, dot_plot(title, rows, lambda value: f"{value:g}"), note)]

