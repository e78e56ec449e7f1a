"""A record of ``headlong bench --gguf`` as a table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from headlong.report.tables import ReportTable, machine, times

COLUMNS = ("sampler", "sequences", "llama.cpp, ms a step", "headlong, ms a step", "llama.cpp / headlong")


def decoding(record: Mapping[str, Any]) -> ReportTable:
    """Milliseconds of a step of all sequences, and the median of the ratios of turns that followed each other."""
    rows = []
    for entry in record["runs"]:
        theirs, ours, ratio = medians(entry)
        rows.append((entry["sampler"], str(entry["sequences"]), f"{theirs:.2f}", f"{ours:.2f}", times(ratio)))
    same = ", ".join(str(entry["same"]) for entry in record["runs"] if "same" in entry)
    parts = ", ".join(f"{part} {size / 2**20:,.0f} MiB" for part, size in record["memory"].items())
    words = [
        f"{record['tokens']} tokens a turn, medians of {len(record['runs'][0]['seconds']['headlong'])} turns",
        "the factor is the median of ratios of turns side by side",
        f"greedy tokens that are the same: {same}" if same else "", in_float64(record), parts, machine(record["environment"]),
    ]  # fmt: skip
    return ReportTable(record["model"], COLUMNS, tuple(rows), "; ".join(word for word in words if word))


def in_float64(record: Mapping[str, Any]) -> str:
    """How many of our greedy tokens a float64 product of the same hidden vectors gives, too."""
    each = [(entry["float64"], entry["steps"]) for entry in record["runs"] if "float64" in entry]
    if not each:
        return ""
    equal, all_of_them = (sum(part) for part in zip(*each, strict=True))
    return f"ours that are those of a float64 product of the same hidden vectors: {equal} of {all_of_them}"


def medians(entry: Mapping[str, Any]) -> tuple[float, float, float]:
    """Milliseconds a step of llama.cpp and of ours, and the median of the ratios of turns side by side."""
    theirs, ours = entry["seconds"]["llama.cpp"], entry["seconds"]["headlong"]
    ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
    return 1e3 * statistics.median(theirs), 1e3 * statistics.median(ours), statistics.median(ratios)
