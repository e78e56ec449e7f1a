"""What a run on a GPU says: ratios to PyTorch's best form, the share of the measured bandwidth, what left its proof. Pure.

::

    over PyTorch   = fastest median of PyTorch (as it is, compiled, graph) / fastest median of ours (as it is, graph)
    bandwidth      = bytes of the layer / full's median, of what the faster of a plain read and a plain copy moves a second
    outside        = proved ids that float64 refutes, log-probabilities beyond their error, proved draws that are others

A ledger (``results/device.json``) names every row that is planned and where it is, or that it was not run, and why.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from headlong.report.summaries import Record
from headlong.report.tables import ReportTable, percent, times

RIVAL = "torch"
WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2}
NOT_RUN = "not run"
COLUMNS = ("layer", "at once", "full over PyTorch", "of the bandwidth", "cascade over PyTorch", "auto, of full's time")


class Ratios(NamedTuple):
    """One batch size of a run; None for what did not take part."""

    full: float | None
    bandwidth: float | None
    cascade: float | None
    auto: float | None
    steps: dict[str, float | None]


def ratios(record: Record, batch: int) -> Ratios:
    """The file's first lines, computed."""
    runs = _medians(record["runs"], batch)
    full, cascade, auto, rival = (_fastest(runs, stem) for stem in ("full", "cascade", "auto", RIVAL))
    layer, speed = record["layer"], _bandwidth(record["ceilings"], batch)
    size = layer["vocab"] * layer["dim"] * WIDTHS[layer["dtype"]]
    steps = {}
    for step in dict.fromkeys(entry["step"] for entry in record["steps"]):
        found = _medians([entry for entry in record["steps"] if entry["step"] == step], batch)
        ours = _fastest({name: value for name, value in found.items() if not name.startswith(RIVAL)}, "")
        steps[step] = _over(_fastest(found, RIVAL), ours)
    share = None if full is None or speed is None else size / full / speed
    return Ratios(_over(rival, full), share, _over(rival, cascade), _over(auto, full), steps)


def _medians(entries: Sequence[Mapping[str, Any]], batch: int) -> dict[str, float]:
    return {entry["contestant"]: statistics.median(entry["seconds"]) for entry in entries if entry["batch"] == batch}


def _fastest(medians: Mapping[str, float], stem: str) -> float | None:
    return min((value for name, value in medians.items() if name.startswith(stem)), default=None)


def _over(rival: float | None, ours: float | None) -> float | None:
    return None if rival is None or ours is None else rival / ours


def _bandwidth(ceilings: Sequence[Mapping[str, Any]], batch: int) -> float | None:
    """Bytes a second: a run's ``bytes`` are those of one query."""
    found = [e["bytes"] * batch / statistics.median(e["seconds"]) for e in ceilings if e["batch"] == batch]
    return max(found, default=None)


def outside(record: Record) -> tuple[int, int]:
    """How often a proof did not hold, and how many answers and draws were checked."""
    asked = [entry for name in ("answers", "runs") for entry in record[name] if "outside" in entry]
    wrong = sum(entry["outside"] for entry in asked) + sum(entry["wrong"] for entry in record["draws"])
    checked = len(asked) * record["settings"]["queries"] + sum(entry["queries"] for entry in record["draws"])
    return wrong, checked


def device_table(name: str, record: Record) -> ReportTable:
    """A row for each batch size of one run, and below it where it ran and what could not run there."""
    steps = list(dict.fromkeys(entry["step"] for entry in record["steps"]))
    rows = tuple(_row(name, record, batch, steps) for batch in sorted({run["batch"] for run in record["runs"]}))
    return ReportTable("On the device", (*COLUMNS, *steps, "outside its proof"), rows, said(record))


def said(record: Record) -> str:
    """Where it ran, and what could not run there."""
    failed = sorted({f"{entry['contestant']} ({entry['error']})" for entry in record["failed"]})
    return "; ".join([record["environment"]["gpu"], record["environment"]["date"], *(f"failed: {one}" for one in failed)])


def _row(name: str, record: Record, batch: int, steps: Sequence[str]) -> tuple[str, ...]:
    found, (wrong, checked) = ratios(record, batch), outside(record)
    cells = (_times(found.full), percent(found.bandwidth), _times(found.cascade), percent(found.auto))
    return (name, str(batch), *cells, *(_times(found.steps.get(step)) for step in steps), f"{wrong} of {checked:,}")


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else times(ratio)


def ledger_table(ledger: Record, records: Mapping[str, Record], steps: Sequence[str]) -> ReportTable:
    """Every planned row: its ratios, or that it was not run; rows of one layer that were not run share a line."""
    columns = (*COLUMNS, *steps, "outside its proof")
    rows: list[tuple[str, ...]] = []
    for layer, mine in _by_layer(ledger["rows"]):
        there = [row for row in mine if row["state"] != NOT_RUN]
        rows += [_row(layer, records[row["file"]], row["batch"], steps) for row in there if row["file"] in records]
        gone = ", ".join(str(row["batch"]) for row in mine if row["state"] == NOT_RUN)
        if gone:
            rows.append((layer, gone, *[NOT_RUN] * (len(columns) - 2)))
    caption = ". ".join(dict.fromkeys(said(record) for record in records.values()))
    missing = sorted({f"{NOT_RUN}: {row['why']}; `{row['command']}`" for row in ledger["rows"] if row["state"] == NOT_RUN})
    return ReportTable("", columns, tuple(rows), " ".join(part for part in (caption, *missing) if part))


def _by_layer(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    benches = [row for row in rows if "study" not in row]
    for layer in dict.fromkeys(row["layer"] for row in benches):
        yield layer, [row for row in benches if row["layer"] == layer]
