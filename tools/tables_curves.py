"""Beside approximate indexes: ids but for a rate at equal recall (docs/beside.md), and growth with classes (docs/blocks.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headlong.report.tables import Table, markdown

RESULTS = Path(__file__).resolve().parent.parent / "results"
RUN, GROWTH = RESULTS / "recall-curves.json", RESULTS / "classes-curves.json"
RECALL, ALL_FOUND = 0.98, ("headlong, blocks", "headlong, plain", "faiss Flat")
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
        f"{facts['asked']:,} queries that were not used for calibration, {facts['timed']} of them timed one at a time. Cold "
        f"calls follow {facts['between two cold calls']} of other weights. "
        f"{about['cpu']}, {about['threads']} threads, {about['date']}."
    )
    return markdown(Table("", header, tuple(lines))) + f"\n\n{caption}"


def _times(rows: list[dict[str, Any]]) -> str:
    """The fastest of an index's settings in a loop, and cold; a dash where none of them is right as often."""
    if not rows:
        return "–"
    return f"{min(row['loop_us'] for row in rows):.0f} / {min(row['cold_us'] for row in rows):.0f}"


def _at_recall(rows: list[dict[str, Any]]) -> str:
    """The fastest setting of an index that finds enough; else the most that one finds."""
    enough = [row for row in rows if row["recall"] >= RECALL]
    return _times(enough) if enough or not rows else f"finds {max(row['recall'] for row in rows):.0%}"


def classes_curves() -> str:
    """For each number of classes our engines, and each index's fastest setting at :data:`RECALL`."""
    record = json.loads(GROWTH.read_text(encoding="utf-8"))
    lines = []
    for vocab in sorted({row["classes"] for row in record["rows"]}):
        rows = [row for row in record["rows"] if row["classes"] == vocab]
        ours = [[row for row in rows if row["contestant"] == name] for name in ALL_FOUND]
        near = [_at_recall([row for row in rows if row["contestant"] == name]) for name in INDEXES[:4]]
        lines.append((f"{vocab:,}", *(_times(own) for own in ours), *near))
    header = ("classes", "headlong, blocks", "headlong, every class", "faiss Flat", *INDEXES[:4])
    about = record["environment"]
    caption = (
        f"Microseconds in a loop / cold, one query at a time. An index is at its fastest setting that finds {RECALL:.0%} of "
        "the ten ids; where none does, the most that it finds at any; –: not built. "
        f"{about['cpu']}, {about['threads']} threads, {about['date']}."
    )
    return markdown(Table("", header, tuple(lines))) + f"\n\n{caption}"


BLOCKS = {"recall-curves": recall_curves, "classes-curves": classes_curves}
