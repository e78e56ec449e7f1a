"""Beside approximate indexes: ids but for a rate at equal recall (docs/beside.md), and growth with classes (docs/blocks.md)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from headlong.report.tables import ReportTable, markdown

RESULTS = Path(__file__).resolve().parent.parent / "results"
RUN = RESULTS / "recall-curves.json"
RECALL = 0.98
EXACT = {
    "headlong, blocks": "headlong, blocks", "headlong, plain": "headlong, every class", "faiss Flat": "faiss Flat",
    "torch": "torch",
}  # fmt: skip
"""Who finds all ids, by the name in a run."""
INDEXES = ("hnswlib", "faiss HNSW", "faiss IVF", "usearch", "scann")
LIFTED, SMALL = ", lifted", re.compile(r", (\d+) links")
"""An index over rows made equally long, and a graph of fewer links: a column takes the best of all."""


def recall_curves() -> str:
    """For each of our engines, an index's fastest setting whose recall is no lower."""
    record = json.loads(RUN.read_text(encoding="utf-8"))
    rows = record["rows"]
    lines = []
    for own in (row for row in rows if row["contestant"].startswith("headlong")):
        others = [row for row in rows if row["layer"] == own["layer"] and row["recall"] >= own["recall"]]
        name = own["contestant"].removeprefix("headlong, ")
        cells = [_times([row for row in others if _index(row) == index]) for index in INDEXES]
        lines.append((own["layer"], name, f"{own['recall']:.2%}", f"{own['loop_us']:.0f} / {own['cold_us']:.0f}", *cells))
    header = ("layer", "headlong", "of the ten ids", "loop / cold, µs", *INDEXES)
    facts, about = record["facts"], record["environment"]
    caption = (
        f"{facts['asked']:,} queries that were not used for calibration, {facts['timed']} of them timed one at a time. Cold "
        f"calls follow {facts['between two cold calls']} of other weights. "
        f"{about['cpu']}, {about['threads']} threads, {about['date']}."
    )
    return markdown(ReportTable("", header, tuple(lines))) + f"\n\n{caption}"


def _index(row: dict[str, Any]) -> str:
    return SMALL.sub("", str(row["contestant"]).removesuffix(LIFTED))


def _times(rows: list[dict[str, Any]]) -> str:
    """The fastest of an index's settings in a loop, cold, and in a batch; a dash where none of them is right as often."""
    if not rows:
        return "–"
    ways = [way for way in ("loop_us", "cold_us", "batch_us") if way in rows[0]]
    return " / ".join(f"{min(row[way] for row in rows):,.0f}" for way in ways)


def _at_recall(rows: list[dict[str, Any]]) -> str:
    """The fastest setting of an index that finds enough; else the most that one finds."""
    enough = [row for row in rows if row["recall"] >= RECALL]
    return _times(enough) if enough or not rows else f"finds {max(row['recall'] for row in rows):.0%}"


def growth(name: str) -> str:
    """For each number of classes our engines, and each index's fastest setting at :data:`RECALL`."""
    record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    named = {_index(row) for row in record["rows"]}
    exact, indexes = [one for one in EXACT if one in named], [one for one in INDEXES if one in named]
    lines = []
    for vocab in sorted({row["classes"] for row in record["rows"]}):
        rows = [row for row in record["rows"] if row["classes"] == vocab]
        ours = [[row for row in rows if row["contestant"] == one] for one in exact]
        near = [_at_recall([row for row in rows if _index(row) == one]) for one in indexes]
        lines.append((f"{vocab:,}", *(_times(own) for own in ours), *near))
    header = ("classes", *(EXACT[one] for one in exact), *indexes)
    about = record["environment"]
    batch = f" / and of each query where {record['queries']} are asked at once" if "batch_us" in record["rows"][0] else ""
    caption = (
        f"Microseconds in a loop / cold, one query at a time{batch}. An index is at its fastest setting that finds "
        f"{RECALL:.0%} of the ten ids; where none does, the most that it finds at any; –: not built. {_graphs(record['rows'])}"
        f"{about['cpu']}, {about['threads']} threads, {about['date']}."
    )
    return markdown(ReportTable("", header, tuple(lines))) + f"\n\n{caption}"


def _graphs(rows: list[dict[str, Any]]) -> str:
    """Which graphs have fewer links than elsewhere."""
    small: dict[str, set[tuple[int, str]]] = {}
    for row in rows:
        if found := SMALL.search(row["contestant"]):
            small.setdefault(found[1], set()).add((row["classes"], _index(row)))
    said = []
    for links, graphs in sorted(small.items(), key=lambda one: -int(one[0])):
        classes = [f"{vocab:,}" for vocab in sorted({vocab for vocab, _ in graphs})]
        over = " and ".join([*filter(None, [", ".join(classes[:-1])]), classes[-1]])
        whose = "Graphs" if not said else " and ".join(sorted({f"{name}'s" for _, name in graphs}))
        said.append(f"{whose} over {over} classes {'has' if said else 'have'} {links} links")
    return f"{', '.join(said)}, others 32. " if said else ""


BLOCKS = {
    "recall-curves": recall_curves,
    "classes-curves": lambda: growth("classes-curves"),
    "classes-curves-avx2": lambda: growth("classes-curves-avx2"),
    "characters-curves": lambda: growth("characters-curves"),
    "characters-curves-avx2": lambda: growth("characters-curves-avx2"),
}
