"""One page from any mix of raw results: runs of ``bench``, ``inspect --json``, other records. Pure.

A file of another kind is named in the page's last table rather than dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headlong.errors import MalformedFileError
from headlong.report.interactive import browsable
from headlong.report.page import Figure, Paragraph, Part, Section, page, speed_and_error, speed_and_misses, times_figure
from headlong.report.plots import Point, Row, Series, curve, dot_plot, lines, scatter
from headlong.report.records import record_tables
from headlong.report.summaries import WAYS, summaries, ways
from headlong.report.tables import ReportTable, comparison, duration, engines, percent, round_duration
from headlong.report.top_of_page import answer

KINDS = ("Speed of every method, layer by layer", "Layers inspected", "Other measurements")
"""The groups of a report."""


class ResultFile(NamedTuple):
    """A file's name, and what was in it: one JSON object, or the objects of its lines."""

    name: str
    content: Any


def report(sources: Sequence[ResultFile], title: str = "headlong: results") -> str:
    """The HTML of everything in ``sources``: the answer of the widest run, then a group for each kind, a fold for each file."""
    kinds: dict[str, list[Section]] = {kind: [] for kind in KINDS}
    other: list[tuple[str, str]] = []
    for source in sources:
        try:
            found = _parts(source)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # whatever foreign JSON can hold
            raise MalformedFileError(
                f"{source.name} has the names of a result but not its content; expected a file that headlong wrote"
            ) from error
        if found is None:
            other.append((source.name, _kind(source.content)))
        else:
            kinds[found.kind].append(Section(source.name, found.parts))
    files = sum(map(len, kinds.values()))
    if not files:
        names = ", ".join(name for name, _ in other)
        raise MalformedFileError(f"{names}: no result in there; expected what bench -o or inspect --json wrote")
    parts: list[Part] = [*_answer(sources)]
    parts.append(Paragraph(f"Made from {len(sources)} files. Groups unfold; a click on a heading sorts by it.", soft=True))
    for kind, groups in kinds.items():
        if groups:
            parts.append(Section(f"{kind} ({len(groups)})", groups, open=files == 1))
    if other:
        parts.append(Section(f"Files without a picture here ({len(other)})", [ReportTable("", ("file", "kind"), tuple(other))]))
    return browsable(page(title, "", parts))


def _answer(sources: Sequence[ResultFile]) -> list[Part]:
    """The answer of the run with the most contestants; of those the largest layer's."""
    runs = [source for source in sources if _is_bench(source.content)]
    if not runs:
        return []
    layers = {source.name: source.content["layer"] for source in runs}
    size = {name: layer["vocab"] * layer["dim"] for name, layer in layers.items()}
    widest = max(runs, key=lambda source: (len(source.content["answers"]), size[source.name]))
    return answer(widest.content, widest.name)


def bench_page(record: Mapping[str, Any], title: str, intro: str, extra: Sequence[Part] = ()) -> str:
    """One run: its answer, what else there is to say, then everything else in groups."""
    return browsable(page(title, intro, [*answer(record), *extra, *_folded(record)]))


def _folded(record: Mapping[str, Any]) -> list[Part]:
    found = summaries(record, ways(record)[0])
    plots = [times_figure(found, batch) for batch in sorted({entry.batch for entry in found})]
    return [
        *(
            Section(f"Every method: calls {WAYS[way]}", [comparison(record, way=way)._replace(title="")])
            for way in ways(record)
        ),
        Section("Speed against misses and errors", [speed_and_misses(found), speed_and_error(found)]),
        Section("Times with their spread", plots),
        Section("What each one promises", [engines(record)._replace(title="")]),
    ]


class Content(NamedTuple):
    """What a file holds: one of ``KINDS``, and its parts."""

    kind: str
    parts: list[Part]


def _parts(source: ResultFile) -> Content | None:
    content = source.content
    if _is_bench(content):
        return Content(KINDS[0], _bench(content))
    if isinstance(content, Mapping) and "singular_values" in content:
        return Content(KINDS[1], _inspection(source.name, content))
    if isinstance(content, Mapping) and (tables := record_tables(source.name, content)):
        return Content(KINDS[2], list(tables))
    return None


def _is_bench(content: Any) -> bool:
    return isinstance(content, Mapping) and "runs" in content and "truth" in content


def _kind(content: Any) -> str:
    if isinstance(content, Mapping):
        return str(content.get("format", "JSON"))
    return f"{len(content)} lines of JSON" if isinstance(content, list) else "JSON"


def _bench(record: Mapping[str, Any]) -> list[Part]:
    parts: list[Part] = [*answer(record), bytes_and_time(record)]
    if len(_batches(record, _broadest(record))) > 1:
        parts.append(crossover(record))
    return [*parts, *_folded(record)]


def _broadest(record: Mapping[str, Any]) -> str:
    """The way that was timed at the most batch sizes; cold of equals."""
    return max(ways(record), key=lambda way: len(_batches(record, way)))


def _batches(record: Mapping[str, Any], way: str) -> set[int]:
    return {one.batch for one in summaries(record, way)}


def bytes_and_time(record: Mapping[str, Any]) -> Figure:
    """What a query reads against what it takes, at the smallest batch, of those that count their bytes."""
    found = summaries(record, ways(record)[0])
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
    found = summaries(record, _broadest(record))
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
    parts: list[Part] = [ReportTable(f"{name}: the layer", columns, tuple(rows), f"{what}; percentiles.")]
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

