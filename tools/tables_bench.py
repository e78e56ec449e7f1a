"""The tables of ``headlong bench``: every contestant of one run, and layers with a known spectrum beside each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tables_records import RESULTS

from headlong.bench.measure import read_run
from headlong.report.summaries import baselines, summaries, ways
from headlong.report.tables import ReportTable, comparisons, duration, markdown, percent, times

BESIDE = ("torch fp32", "full", "cascade", "calibrated, ids only", "calibrated, default promise")


def layers() -> str:
    """Speed-ups over the fastest dense product, and what the ids read."""
    records = [read_run(file) for file in sorted(RESULTS.glob("bench-synthetic-*.json"), key=_order)]
    columns = ("layer", "a", "at once", "fastest dense product, each", *BESIDE, "ids proved", "read for ids")
    rows = [row for record in records for row in _rows(record)]
    dates = sorted({record["environment"]["date"] for record in records})
    made = records[0]["environment"]
    caption = f"Cold / in a loop. bfloat16 layers, k = 10; {made['cpu']}, {made['threads']} threads; {' and '.join(dates)}."
    return markdown(ReportTable("", columns, tuple(rows), caption))


def _order(file: Path) -> tuple[int, str]:
    facts = read_run(file)["layer"]
    return facts["vocab"] * facts["dim"], file.name


def _rows(record: dict[str, Any]) -> list[tuple[str, ...]]:
    """Cold and in a loop."""
    found = {way: {(one.contestant, one.batch): one for one in summaries(record, way)} for way in ways(record)}
    over = {way: baselines(record, way) for way in found}
    facts = record["layer"]
    power = facts["name"].rpartition(",")[2]
    rows = []
    for batch in sorted({batch for _, batch in found["loop"]}):
        bases = [f"{duration(found[way][over[way][batch], batch].median)}, {over[way][batch]}" for way in found]
        cells = [" / ".join(times(by[name, batch].speedup) for by in found.values()) for name in BESIDE]
        ids = found["loop"]["calibrated, ids only", batch]
        size = f"{facts['vocab']:,} × {facts['dim']:,}"
        read = percent(ids.read) if batch == 1 else ""  # in batches queries share it
        rows.append((size, power, str(batch), " / ".join(bases), *cells, percent(ids.proved), read))
    return rows


def of(path: str) -> Callable[[], str]:
    """Every contestant of one run."""
    return lambda: "\n\n".join(f"{table.title}:\n\n{markdown(table)}" for table in comparisons(read_run(RESULTS / path)))


BLOCKS = {
    "synthetic-layers": layers, "batches": of("bench-wikitext2.json"), "batches-ptb": of("bench-ptb-lstm.json"),
    "demo": of("demo.json"),
}  # fmt: skip
