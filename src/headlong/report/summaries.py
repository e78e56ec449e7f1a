"""What a run of ``headlong bench`` measured, summed up: medians, quartiles, speed-ups, how often answers agree. Pure.

::

    speed-up      = median seconds of the fastest dense product / median seconds of the contestant   same batch size, same way
    quartiles     = median seconds of that product / quartiles of the contestant's seconds
    agreement     = share of the ids that are among the true top k (ties count)             over all queries
    worst         = max |log p^ - log p| in nats                                            over all queries and ids
    proved        = share of the queries whose ids the contestant says are proved
    read          = bytes read per query / bytes of the float32 layer
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Record = Mapping[str, Any]

DENSE = ("torch bf16", "torch int8", "torch int8 dynamic", "torch fp32", "numpy fp32")
"""Plain products over all rows. The fastest that took part is what speed-ups are over, unless the run names another."""
WAYS = {"cold": "after other work has emptied the caches", "loop": "in a loop, the layer in the caches"}
"""How calls were timed, and what a heading says of it."""
TIE = 2e-6
"""Log-probabilities this near count as equal: they are stored with six decimals."""


class Summary(NamedTuple):
    """One contestant at one batch size; times in seconds per query, None for what it does not have."""

    contestant: str
    batch: int
    median: float
    low: float
    high: float
    speedup: float
    slower: float
    faster: float
    agreement: float
    worst: float | None
    proved: float | None
    read: float | None


def ways(record: Record) -> list[str]:
    """The ways in which the record's calls were timed, cold first."""
    return [way for way in WAYS if timings(record, way)]


def timings(record: Record, way: str) -> Sequence[Mapping[str, Any]]:
    """The record's entries of one way."""
    found: Sequence[Mapping[str, Any]] = record.get("cold", []) if way == "cold" else record["runs"]
    return found


def baselines(record: Record, way: str = "loop") -> dict[int, str]:
    """By batch size: the contestant that speed-ups are relative to."""
    entries = timings(record, way)
    found = {}
    for batch in dict.fromkeys(entry["batch"] for entry in entries):
        medians = {entry["contestant"]: statistics.median(entry["seconds"]) for entry in entries if entry["batch"] == batch}
        named = record["settings"].get("baseline")
        dense = [name for name in DENSE if name in medians] or list(medians)[:1]
        found[batch] = named if named in medians else min(dense, key=medians.__getitem__)
    return found


def summaries(record: Record, way: str = "loop") -> list[Summary]:
    """One entry for each contestant and batch size timed in this way, in the record's order."""
    against = baselines(record, way)
    entries = timings(record, way)
    base = {run["batch"]: run["seconds"] for run in entries if run["contestant"] == against[run["batch"]]}
    quality = {entry["contestant"]: entry for entry in record["answers"]}
    truth = record["truth"]["log_probs"]
    found = []
    for run in entries:
        entry, batch, seconds = quality[run["contestant"]], run["batch"], run["seconds"]
        median, plain = statistics.median(seconds), statistics.median(base[batch])
        found.append(
            Summary(
                contestant=run["contestant"],
                batch=batch,
                median=median / batch,
                low=percentile(seconds, 10) / batch,
                high=percentile(seconds, 90) / batch,
                speedup=plain / median,
                slower=plain / percentile(seconds, 75),
                faster=plain / percentile(seconds, 25),
                agreement=agreement(entry.get("true", truth), [row[-1] for row in truth]),
                worst=worst_gap(entry),
                proved=share(entry["proved"]) if "proved" in entry else None,
                read=run["bytes"] / (4 * record["layer"]["vocab"] * record["layer"]["dim"]) if "bytes" in run else None,
            )
        )
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest of the sorted values, as NumPy's default."""
    ranked = sorted(values)
    place = (len(ranked) - 1) * percent / 100
    lower = int(place)
    upper = min(lower + 1, len(ranked) - 1)
    return ranked[lower] + (ranked[upper] - ranked[lower]) * (place - lower)


def agreement(true: Sequence[Sequence[float | None]], kth: Sequence[float]) -> float:
    """Share of the named ids whose true log-probability reaches the k-th largest of their query."""
    hits = [value is not None and value >= least - TIE for row, least in zip(true, kth, strict=True) for value in row]
    return share(hits)


def worst_gap(entry: Mapping[str, Any]) -> float | None:
    """The largest error of a log-probability; None where the contestant gives none."""
    gaps = [abs(value) for row in entry.get("gap", []) for value in row if value is not None]
    return max(gaps, default=None)


def share(flags: Sequence[bool]) -> float:
    """``mean(flags)``; of none: 1, since nothing failed."""
    return sum(flags) / len(flags) if flags else 1.0
