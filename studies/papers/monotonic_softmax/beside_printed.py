"""Ganea et al. (2019): how far a head lies below the plain softmax here.

::

    share   = the head's figure / the softmax's, mean over the seeds that both have

Perplexities of recipes this different cannot be compared: the talk's own share (``talk.printed``) stands beside ours, and no
verdict is drawn from it. Times are compared between rows with the same type of products only: bfloat16 takes another time than
float32.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Line = Mapping[str, Any]

SOFTMAX = "softmax"
METRICS = {"valid": "valid", "test": "test", "seconds an epoch": "cpu_seconds_per_epoch"}


class Beside(NamedTuple):
    """One figure of a head: mean and standard deviation over its seeds; ``share`` of the softmax's over ``pairs`` seeds."""

    mean: float
    spread: float
    seeds: int
    share: float
    pairs: int

    def shown(self, digits: int = 1) -> str:
        """``104.4 ± 0.2``"""
        return f"{self.mean:.{digits}f}" + (f" ± {self.spread:.{digits}f}" if self.spread else "")


def beside(lines: Sequence[Line], head: str, column: str) -> Beside | None:
    """One of ``METRICS``; None where the head has no row. ``share`` is nan where no softmax's row can stand beside it."""
    metric = METRICS[column]
    mine, plain = ({row["setting"]["seed"]: row for row in lines if row["setting"]["head"] == name} for name in (head, SOFTMAX))
    if not mine:
        return None
    pairs = [(plain[seed], row) for seed, row in mine.items() if seed in plain]
    if metric == "cpu_seconds_per_epoch":
        pairs = [pair for pair in pairs if products(pair[0]) == products(pair[1])]
    values = [row["got"][metric] for row in mine.values()]
    shares = [row["got"][metric] / base["got"][metric] for base, row in pairs]
    share = statistics.fmean(shares) if shares else math.nan
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return Beside(statistics.fmean(values), spread, len(values), share, len(pairs))


def products(line: Line) -> str | None:
    """The type of its products, such as "float32"; None of rows from before that was recorded."""
    found = line.get("environment", {}).get("products")
    return None if found is None else str(found)
