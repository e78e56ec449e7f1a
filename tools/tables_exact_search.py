"""Exact searches by published bounds beside blocks (docs/beside.md): what a query reads of the layer, and its time."""

from __future__ import annotations

from typing import Any

from tables_records import missing, record

from headlong.report.tables import ReportTable, markdown

RUN = "exact-search"
LIST = "MAXIMUS, "


def exact_search() -> str:
    """A line for each layer and contestant; of MAXIMUS's numbers of clusters the one that scores the fewest rows."""
    if text := missing(RUN):
        return text
    found = record(RUN)
    lines = [line(row, found["rows"]) for row in found["rows"] if row in best(found["rows"])]
    header = ("layer", "search", "rows scored", "bytes, of float32", "loop / cold, µs", "wrong")
    facts, about = found["facts"], found["environment"]
    asked = sorted({row["asked"] for row in found["rows"]}, reverse=True)
    busy = [row["others"] for row in found["rows"] if row.get("others") is not None]
    others = f"; other programs took {min(busy):.0%} to {max(busy):.0%} of the processors" if busy else ""
    caption = (
        f"Top {facts['k']} of {' or '.join(map(str, asked))} queries, {facts['timed']} of them timed one at a time, in turns. "
        f"Cold calls follow a sum over {facts['between two cold calls']}. LEMP's bytes are unknown; torch reads float32 rows. "
        f"{about['cpu']}, 1 thread, {about['date']}{others}."
    )
    return markdown(ReportTable("", header, tuple(lines))) + f"\n\n{caption}"


def best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows but those of MAXIMUS with a number of clusters that scores more."""
    lists = [row for row in rows if row["contestant"].startswith(LIST)]
    least = {layer: min((row for row in lists if row["layer"] == layer), key=lambda row: float(row["rows"]))
             for layer in {row["layer"] for row in lists}}  # fmt: skip
    return [row for row in rows if row not in lists or row is least[row["layer"]]]


def line(row: dict[str, Any], rows: list[dict[str, Any]]) -> tuple[str, ...]:
    whole = 4.0 * row["classes"] * (row["dim"] + 1)
    read = f"{row['bytes'] / whole:.1%}" if "bytes" in row else "–"
    first = next(other for other in rows if other["layer"] == row["layer"])
    name = f"{row['layer']}, {row['classes']:,} x {row['dim']}" if row is first else ""
    times = f"{row['loop_us']:,.0f} / {row['cold_us']:,.0f}" if "loop_us" in row else "–"
    return name, row["contestant"], f"{row['rows']:,.0f}", read, times, str(row["wrong"])


BLOCKS = {"exact-search": exact_search}
