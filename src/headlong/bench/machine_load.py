"""What else a machine does while something is timed on it: the load before, and what others take of its processors."""

from __future__ import annotations

import os
import time
from pathlib import Path


def load_average() -> float | None:
    """Processes that wanted a processor in the last minute, where the system counts them."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


class Neighbours:
    """``share() = (processor time of everyone - ours) / (time gone by * processors)`` since it was made."""

    def __init__(self) -> None:
        self._start, self._everyone, self._ours = time.perf_counter(), _everyone(), _ours()

    def share(self) -> float | None:
        """None where the system does not tell."""
        everyone = _everyone()
        if self._everyone is None or everyone is None:
            return None
        possible = (time.perf_counter() - self._start) * (os.cpu_count() or 1)
        others = (everyone - self._everyone) - (_ours() - self._ours)
        return round(min(max(others / possible, 0.0), 1.0), 3) if possible else None


def _everyone() -> float | None:
    """Seconds that the machine's processors were not idle; from /proc/stat: user, nice, system, idle, iowait, irq, ..."""
    try:
        counts = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return (sum(counts) - sum(counts[3:5])) / os.sysconf("SC_CLK_TCK")


def _ours() -> float:
    return sum(os.times()[:4])  # and of children that have ended
