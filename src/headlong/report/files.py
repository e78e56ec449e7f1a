"""Pages from runs: one of ``bench``, or everything in a folder of results. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headlong.errors import MalformedFileError
from headlong.report import plots
from headlong.report.page import Part, Section, page
from headlong.report.tables import ReportTable, batches, busy, comparison, engines, machine, micros, percent, table, times, ways


class ResultFile(NamedTuple):
    """A file's name, and what was in it: one JSON object, or the objects of its lines."""

    name: str
    content: Any


def bench_page(record: Mapping[str, Any], title: str, intro: str, extra: Sequence[Part] = ()) -> str:
    """One run: what it says in a sentence, a table for each batch size, plots, what each contestant promises."""
    return page(title, [intro, *extra, *run_parts(record)])


def run_parts(record: Mapping[str, Any]) -> list[Part]:
    figures = plots.of_run(record)
    tables = [comparison(record, batch) for batch in batches(record)]
    found: list[Part] = [meaning(record), *remarks(record), *figures[:1], tables[0], *figures[1:]]
    found += [Section(one.title, [one._replace(title="")]) for one in tables[1:]]
    found.append(Section("What each one promises and is", [engines(record)._replace(title="")]))
    return found if figures else [*found, plots.INSTALL]


def meaning(record: Mapping[str, Any]) -> str:
    """What the rows of the smallest batch say, losses included."""
    way, batch = ways(record)[0], batches(record)[0]
    rows = [row for row in record["rows"] if row["batch"] == batch]
    ours = [row for row in rows if "promise" in row["about"] and row["same"] == 1]
    over = rows[0][way]["over"]
    base = next(row for row in rows if row["contestant"] == over)
    if not ours:
        return f"Nothing that promises its answers took part and was right; {over} takes {micros(base[way]['us'])}."
    if busy(record):
        return "Other programs used the machine meanwhile: times mean little, and no factor is told. The answers are compared."
    best = min(ours, key=lambda row: float(row[way]["us"]))
    said = f"{best['contestant']} takes {micros(best[way]['us'])} where {over} takes {micros(base[way]['us'])}"
    if best[way]["x"] < 1:
        return f"Here a plain product is faster: {said}."
    missed = f" Of its ids {percent(base['same'])} are right." if base["same"] < 1 else ""
    return f"{said}: {times(best[way]['x'])}.{missed}"


MADE_UP = "made up"
"""Where the queries of a run came from, when none were given."""


def remarks(record: Mapping[str, Any]) -> Iterator[str]:
    """Whose queries were asked, who took no part, and what ``compile`` chose."""
    if record["layer"].get("hidden") == MADE_UP:
        yield (
            "Queries: random vectors, as no HIDDEN was given, scaled so that the most likely class has probability 0.3. "
            "A trained model's vectors usually need less to be read: pass some, and more of them as --calibration."
        )
    for entry in record.get("left_out", []):
        yield f"{entry['contestant']} took no part: {entry['why']}."
    chosen = next((row["about"]["reason"] for row in record["rows"] if row["contestant"] == "headlong"), None)
    if chosen is not None:
        yield f"compile takes, by itself: {chosen}."


def report(sources: Sequence[ResultFile]) -> str:
    """The HTML of everything in ``sources``; a fold for each run, and the files that hold none by name."""
    folds: list[Section] = []
    other: list[tuple[str, str]] = []
    for source in sources:
        try:
            found = list(_folds(source))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # whatever foreign JSON can hold
            raise MalformedFileError(
                f"{source.name} has the names of a result but not its content; expected a file that headlong wrote"
            ) from error
        folds += found
        if not found:
            other.append((source.name, type(source.content).__name__))
    if not folds:
        names = ", ".join(name for name, _ in other)
        raise MalformedFileError(f"{names}: no result in there; expected what bench -o or inspect --json wrote")
    parts: list[Part] = [f"Made from {len(sources)} files. Groups unfold; a click on a heading sorts by it."]
    parts += folds if len(folds) > 1 else list(folds[0].parts)
    if other:
        parts.append(Section(f"Files without a table ({len(other)})", [ReportTable("", ("file", "kind"), tuple(other))]))
    return page("headlong: results", parts)


def _folds(source: ResultFile) -> Iterator[Section]:
    """A section for each run in a file."""
    content = source.content
    if not isinstance(content, Mapping):
        return
    for title, runs in content.get("tables", {}).items():
        for name, run in runs.items():
            yield Section(f"{title}: {name}", list(_run(run)))
    if "singular_values" in content:
        yield Section(source.name, list(_inspection(content)))
    elif "rows" in content:
        yield Section(source.name, list(_run(content)))


def _run(record: Mapping[str, Any]) -> list[Part]:
    rows = record["rows"]
    if rows and all("contestant" in row and "same" in row and ("cold" in row or "loop" in row) for row in rows):
        return run_parts(record)
    keys = dict.fromkeys(key for row in rows for key in _flat(row))
    return [table(rows, keys, caption=machine(record.get("environment", {})))]


def _flat(row: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """Keys of objects within objects, joined by dots; lists are left out."""
    for key, one in row.items():
        if isinstance(one, Mapping):
            yield from _flat(one, f"{before}{key}.")
        elif not isinstance(one, list):
            yield f"{before}{key}"


def _inspection(facts: Mapping[str, Any]) -> Iterator[Part]:
    what = f"{facts['vocab']:,} classes × {facts['dim']} dimensions, {facts['dtype']}"
    rows = [
        ("row norm", *(f"{one:.4g}" for one in facts["row_norms"])),
        ("interval of a code, nats", *(f"{one:.3g}" for one in facts["widths"])),
        ("rows scored for a proved top k", *(f"{one:,.0f}" for one in facts["candidates"])),
    ]
    columns = ("", *(f"{one}%" for one in facts["percentiles"]))
    yield ReportTable("The layer", columns, tuple(rows), f"{what}; percentiles.")
    yield from plots.spectrum(facts["singular_values"])
