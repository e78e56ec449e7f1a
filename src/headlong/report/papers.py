"""The lines of published tables, joined over seeds and counted. Pure: reads no file.

A line is what ``headlong reproduce`` appends: ``setting``, ``got``, ``expected`` (low, high, tolerance) and ``verdict`` by
metric.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headlong.report.tables import ReportTable

Line = Mapping[str, Any]
Group = Sequence[Line]


def joined(lines: Sequence[Line]) -> list[Group]:
    """Lines whose settings differ in nothing but the seed, together, in the order in which they came first."""
    groups: dict[tuple[tuple[str, str], ...], list[Line]] = {}
    for line in lines:
        key = tuple((name, str(value)) for name, value in line["setting"].items() if name != "seed")
        groups.setdefault(key, []).append(line)
    return list(groups.values())


def verdicts(lines: Sequence[Line]) -> Counter[str]:
    """How many published figures matched and how many differ."""
    return Counter(line["verdict"][metric] for line in lines for metric in line["expected"])


def paper_table(lines: Sequence[Line], title: str, source: str) -> ReportTable:
    """A row for each setting; where something was published, its range and the verdict stand beside our number."""
    if not lines:
        return ReportTable(title, (), (), "No rows.")
    groups = joined(lines)
    settings = [name for name in lines[0]["setting"] if name != "seed"]
    metrics = list(dict.fromkeys(name for line in lines for name in line["got"]))
    seeds = ("seeds",) if max(map(len, groups)) > 1 else ()
    rows = [
        (
            *(str(group[0]["setting"].get(name, "")) for name in settings),
            *(str(len(group)) for _ in seeds),
            *(_cell(group, name) for name in metrics),
        )
        for group in groups
    ]
    return ReportTable(title, (*settings, *seeds, *metrics), tuple(rows), f"Published: {source}.")


def _cell(group: Group, metric: str) -> str:
    values = [line["got"][metric] for line in group if metric in line["got"]]
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 and len(set(values)) > 1 else ""
    got = f"{statistics.fmean(values):.5g}{spread}"
    expected = group[0]["expected"].get(metric)
    if expected is None:
        return got
    low, high, *_ = expected
    published = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    counts = Counter(line["verdict"][metric] for line in group)
    verdict = next(iter(counts)) if len(counts) == 1 else f"matched in {counts['matched']} of {len(group)}"
    return f"{got}, {verdict} ({published})"
