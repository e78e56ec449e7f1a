"""Measurements that agree: one alone may have met another program, and would then be kept for good.

    kept = the least of each time so far
    settled    two measurements in a row agree within :data:`AGREED`, and others left the processors alone meanwhile

Until then every process that asks measures again, :data:`AT_ONCE` times at most and :data:`MOST` times in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headlong.costs.machine_load import Neighbours
from headlong.costs.measured import TIMED

AGREED = 1.4
"""About half a step of the costs that are taken over."""
ALONE = 0.15
"""Of the processors: what others may take while something is measured."""
AT_ONCE, MOST = 3, 24
"""Measurements of one process, and of all."""


class Kept(NamedTuple):
    """The least of each time, how many measurements that is of, and whether they are settled."""

    times: Mapping[str, float]
    measurements: int
    settled: bool

    @property
    def done(self) -> bool:
        return self.settled or self.measurements >= MOST

    def said(self) -> str:
        """How they were measured, in words."""
        beside = "" if self.settled else f" while it was busy, {self.measurements} times"
        return f"measured on this machine{beside}"


def kept_of(entry: Any) -> Kept | None:
    """What an entry of the cache says; None: nothing that can be used."""
    try:
        kept = Kept({name: float(entry["times"][name]) for name in TIMED}, int(entry["measurements"]), entry["settled"] is True)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return kept if kept.measurements > 0 and all(0 < time < float("inf") for time in kept.times.values()) else None


def measured_again(kept: Kept | None, measure: Callable[[], Mapping[str, float]]) -> Kept:
    """With some measurements more: until two agree."""
    for _ in range(AT_ONCE):
        beside = Neighbours()
        found = measure()
        alone = (beside.share() or 0.0) <= ALONE
        kept = joined(kept, found, alone)
        if kept.done:
            break
    assert kept is not None
    return kept


def joined(kept: Kept | None, found: Mapping[str, float], alone: bool) -> Kept:
    """What is kept with one measurement more, which was taken ``alone`` or beside others."""
    if kept is None:
        return Kept({name: round(found[name], 6) for name in TIMED}, 1, False)
    apart = max(max(found[name] / kept.times[name], kept.times[name] / found[name]) for name in TIMED)
    least = {name: min(round(found[name], 6), kept.times[name]) for name in TIMED}
    return Kept(least, kept.measurements + 1, alone and apart <= AGREED)
