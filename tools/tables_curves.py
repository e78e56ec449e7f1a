"""Ids but for a rate beside approximate indexes, at equal recall: the table of docs/beside.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headlong.report.tables import Table, markdown

RUN = Path(__file__).resolve().parent.parent / "results" / "recall-curves.json"
INDEXES = ("hnswlib", "faiss HNSW", "faiss IVF", "usearch", "scann")


def recall_curves() -> str:
    """For each of our engines, an index's fastest setting whose recall is no lower."""
    record = json.loads(RUN.read_text(encoding="utf-8"))
    rows = record["rows"]
    lines = []
    for own in (row for row in rows if row["contestant"].startswith("headlong")):
        others = [row for row in rows if row["layer"] == own["layer"] and row["recall"] >= own["recall"]]
        name = own["contestant"].removeprefix("headlong, ")
        cells = [_times([row for row in others if row["contestant"] == index]) for index in INDEXES]
        lines.append((own["layer"], name, f"{own['recall']:.2%}", f"{own['loop_us']:.0f} / {own['cold_us']:.0f}", *cells))
    header = ("layer", "headlong", "of the ten ids", "loop / cold, µs", *INDEXES)
    facts, about = record["facts"], record["environment"]
    caption = (
        f"{facts['asked']:,} queries that chose nothing, {facts['timed']} of them timed one at a time; cold: after "
        f"{facts['between two cold calls']} of other weights. {about['cpu']}, {about['threads']} threads, {about['date']}."
    )
    return markdown(Table("", header, tuple(lines))) + f"\n\n{caption}"


def _times(rows: list[dict[str, Any]]) -> str:
    """The fastest of an index's settings in a loop, and cold; a dash where none of them is right as often."""
    if not rows:
        return "–"
    return f"{min(row['loop_us'] for row in rows):.0f} / {min(row['cold_us'] for row in rows):.0f}"


BLOCKS = {"recall-curves": recall_curves}
