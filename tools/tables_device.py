"""The tables of what is measured on a GPU: every planned row, with its numbers or the words *not run*."""

from __future__ import annotations

from typing import Any

from tables_records import RESULTS, record

from headlong.bench.device_contestants import STEPS
from headlong.bench.measure import read_run
from headlong.report.device import NOT_RUN, ledger_table
from headlong.report.records import field
from headlong.report.tables import ReportTable, markdown
from studies import papers

METRICS = {"us": "µs", "plain": "as it is", "graph": "as a graph", "rows": "rows", "bytes": "bytes"}


def device() -> str:
    """Every layer and batch size."""
    found = record("device")
    files = {row["file"] for row in found["rows"] if row["state"] != NOT_RUN and "study" not in row}
    records = {name: read_run(RESULTS / name) for name in sorted(files)}
    return markdown(ledger_table(found, records, list(STEPS)))


def study_cuda() -> str:
    """The study's time rows: of each planned row its medians, or that it was not run."""
    rows = []
    planned = [row for row in record("device")["rows"] if "study" in row]
    for row in planned:
        got: dict[str, Any] = {}
        if row["state"] != NOT_RUN:
            lines = papers.read(RESULTS / row["file"])
            got = next(line["got"] for line in lines if line["setting"]["head"] == row["head"])
        cells = [field(got[key]) if key in got else "–" if got else NOT_RUN for key in METRICS]
        rows.append((row["layer"], row["head"], *cells))
    missing = sorted({f"{NOT_RUN}: {row['why']}; `{row['command']}`" for row in planned if row["state"] == NOT_RUN})
    return markdown(ReportTable("", ("layer", "head or engine", *METRICS.values()), tuple(rows), " ".join(missing)))


BLOCKS = {"device": device, "study-cuda": study_cuda}
