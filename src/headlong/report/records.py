"""Any other record as tables: its ``rows`` (or ``runs``), its ``facts``, and where it was measured.

A record is one JSON object with ``rows``, a list of objects, and perhaps ``facts`` and ``environment``. Lists (the raw times
of a row) are left to the file; numbers keep four digits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headlong.report.measured_on import measured_where
from headlong.report.tables import ReportTable

LISTS = ("rows", "runs")


def record_tables(name: str, record: Mapping[str, Any]) -> list[ReportTable] | None:
    """A table of the rows and one of the facts; None where the record has neither."""
    listed: Sequence[Mapping[str, Any]] = next((record[key] for key in LISTS if _objects(record.get(key))), [])
    rows = [dict(_flat(row)) for row in listed]
    facts = record.get("facts", {})
    if not rows and not facts:
        return None
    caption = measured_where(record.get("environment", {}))
    columns = tuple(dict.fromkeys(key for row in rows for key in row))
    tables = []
    if rows:
        cells = tuple(tuple(field(row.get(column)) for column in columns) for row in rows)
        tables.append(ReportTable(name, columns, cells, caption))
    if facts:
        said = tuple((key, field(value)) for key, value in _flat(facts))
        tables.append(ReportTable(f"{name}: facts", ("fact", "value"), said, "" if rows else caption))
    return tables


def _objects(value: Any) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _flat(found: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Objects within objects by joined names; lists of objects numbered, other lists left out unless they are short text."""
    for key, value in found.items():
        name = f"{before}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}, ")
        elif _objects(value):
            for place, part in enumerate(value):
                yield from _flat(part, f"{name} {place + 1}, ")
        elif not isinstance(value, list):
            yield name, value


def field(value: Any) -> str:
    """``None -> "–", 0.12345 -> "0.1235", 12345 -> "12,345"``"""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
