"""Rows in, text cells out: the columns that tables of measurements have, and how numbers are written. Pure.

A table of a run is chosen keys of its rows; :data:`COLUMNS` says what each key is called and how it is shown, in the terminal,
on the page and in the documentation alike. ``"cold.us"`` is ``row["cold"]["us"]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

BUSY = 0.1
"""A share of the processors that others took, from which on times mean little."""
WAYS = {"cold": "after other work has emptied the caches", "loop": "in a loop, the layer in the caches"}


class ReportTable(NamedTuple):
    """Text cells, a heading for each column, and what has to be known to read them. The first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


def duration(seconds: float) -> str:
    """``0.000_083 -> "83.0 µs"``"""
    unit, size = next(((unit, size) for unit, size in (("s", 1.0), ("ms", 1e-3)) if seconds >= 0.9995 * size), ("µs", 1e-6))
    return f"{_three_digits(seconds / size)} {unit}"


def micros(value: float) -> str:
    return duration(1e-6 * value)


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


def size(value: float) -> str:
    """``123_456_789 -> "123 MB"``"""
    unit, scale = next(((unit, scale) for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if value >= scale), ("B", 1.0))
    return f"{_three_digits(value / scale)} {unit}" if scale > 1 else f"{value:.0f} B"


def field(value: Any) -> str:
    """``None -> "–", 0.12345 -> "0.1235", 12345 -> "12,345"``"""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


class Column(NamedTuple):
    """What a key is called, and how its value is shown; ``absent``: what stands where a row does not have it."""

    title: str
    shown: Callable[[Any], str] = field
    absent: str = "–"


COLUMNS: dict[str, Column] = {
    "layer": Column("layer"),
    "contestant": Column("method"),
    "batch": Column("at once"),
    "k": Column("k"),
    "cold.us": Column("cold, a query", micros),
    "cold.x": Column("cold, × the fastest dense product", times),
    "cold.over": Column("fastest dense product, cold"),
    "loop.us": Column("in a loop, a query", micros),
    "loop.x": Column("in a loop, × the fastest dense product", times),
    "loop.over": Column("fastest dense product, in a loop"),
    "same": Column("of the ids right", percent),
    "worst": Column("worst |Δlog p|", nats, "no log p"),
    "proved": Column("ids proved", percent),
    "read": Column("read, of float32", percent),
    "about.promise": Column("promise", str, "none"),
    "about.reads": Column("what it reads"),
    "about.build": Column("built in, processor time", duration),
    "about.memory": Column("memory", size),
    "what": Column("what"),
    "way": Column("way"),
    "ms": Column("ms a token"),
    "times": Column("faster", times),
    "equal": Column("same tokens", percent),
    "us": Column("a row", micros),
    "x": Column("× the fastest dense way", times),
    "seconds": Column("seconds", duration),
    "encoder": Column("of them in the encoder", duration),
    "decoding": Column("the others, faster", times),
    "bytes": Column("bytes", size),
    "setting": Column("setting"),
    "alike": Column("rows of the same ids", percent),
    "processors": Column("processor time", duration),
    "but for ties": Column("or of ties of float32", percent),
    "topk": Column("ten, processor time a query", micros),
    "least": Column("one, processor time a query", micros),
    "graph": Column("graph, processor time a query", micros),
    "gain": Column("ten / (graph + one)", times),
    "gain, bytes": Column("ten / one, bytes read", times),
    "per second": Column("queries a second of one processor", "{:,}".format),
    "build": Column("built in, processor time", duration),
}
"""The one list of columns."""


def value(row: Mapping[str, Any], key: str) -> Any:
    """``value({"cold": {"us": 3}}, "cold.us") -> 3``; None where it is not there."""
    found: Any = row
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def table(rows: Iterable[Mapping[str, Any]], keys: Iterable[str], title: str = "", caption: str = "") -> ReportTable:
    """Chosen keys of rows; one that :data:`COLUMNS` does not have is its own heading."""
    columns = {key: COLUMNS.get(key, Column(key)) for key in keys}

    def cell(row: Mapping[str, Any], key: str) -> str:
        found = value(row, key)
        return columns[key].absent if found is None else columns[key].shown(found)

    cells = tuple(tuple(cell(row, key) for key in columns) for row in rows)
    return ReportTable(title, tuple(column.title for column in columns.values()), cells, caption)


def ways(record: Mapping[str, Any]) -> list[str]:
    """In which ways the rows of a run were timed, cold first."""
    return [way for way in WAYS if any(way in row for row in record["rows"])]


def comparison(record: Mapping[str, Any], batch: int) -> ReportTable:
    """Everyone at one batch size: speed and what the answers are worth in one row."""
    rows = [row for row in record["rows"] if row["batch"] == batch]
    timed = [key for way in ways(record) for key in (f"{way}.us", f"{way}.x") if not (busy(record) and key.endswith(".x"))]
    over = "; ".join(f"{WAYS[way]}: {value(rows[0], f'{way}.over')}" for way in ways(record))
    over = "none is told, since others used the machine" if busy(record) else over
    title = f"One query, k = {rows[0]['k']}" if batch == 1 else f"{batch} queries at once, k = {rows[0]['k']}"
    keys = ("contestant", *timed, "same", "worst", "proved", "read")
    return table(rows, keys, title, f"Fastest dense product: {over}. {caption(record)}")


def busy(record: Mapping[str, Any]) -> bool:
    """Whether other programs took so much of the machine that a factor would say little."""
    return (record.get("environment", {}).get("others") or 0.0) > BUSY


def batches(record: Mapping[str, Any]) -> list[int]:
    return sorted({row["batch"] for row in record["rows"]})


def caption(record: Mapping[str, Any]) -> str:
    """What the times of a run hold for."""
    layer = record["layer"]
    shape = f"{layer['vocab']:,} classes × {layer['dim']} dimensions, stored as {layer['dtype']}"
    return f"{shape}; cold: after {record['environment']['emptied_by']}. {machine(record['environment'])}"


def machine(made: Mapping[str, Any]) -> str:
    """Processor, threads, our level and what the processor has, what else the machine did, our version and commit, date."""
    words = [made.get("gpu") or made.get("cpu"), f"{made['threads']} threads" if "threads" in made else None]
    used, has = ", ".join(made.get("isa_used", [])), ", ".join(made.get("isa", []))
    words.append(f"we took {used}, the processor has {has}" if used and has else used or has)  # rivals may take any of it
    words.append(f"OpenMP waits {made['waits']}" if made.get("waits") else None)
    if made.get("others") is not None:
        busy = ": BUSY, so times mean little, measure again" if made["others"] > BUSY else ""
        words.append(f"other programs took {made['others']:.0%} of the processors{busy}")
    commit = f" at {made['commit']}" if made.get("commit") else ""
    words += [f"headlong {made['headlong']}{commit}" if made.get("headlong") else None, made.get("date")]
    return "; ".join(str(word) for word in words if word) + "." if any(words) else ""


def engines(record: Mapping[str, Any]) -> ReportTable:
    """What each contestant says of itself; an engine's own line without the promise, which has a column."""
    rows = []
    for row in {row["contestant"]: row for row in record["rows"]}.values():
        about = row["about"]
        engine = about["engine"].replace(f"{about['promise']}, ", "") if "engine" in about else None
        rows.append({**row, "about": {"reads": engine, **about}})
    keys = ("contestant", "about.promise", "about.reads", "about.build", "about.memory")
    return table(rows, keys, "What each one promises and is")
