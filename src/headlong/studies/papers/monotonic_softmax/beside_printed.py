"""Ganea et al. (2019): how far a row lies below the plain softmax here, beside how far it lay below it in print.

::

    share   = test perplexity of the row / the softmax's, mean over the seeds both have
    spread  = the same of sqrt(sd(softmax)^2 + sd(row)^2)           a share within it of 1 is no difference
    verdict = "matched" where the printed share and ours lie on the same side of 1, or both are no difference

Perplexities of recipes this different cannot be compared, the sides on which their rows lie can; where a training was stopped
early not even those: such rows are a stand-in and get no verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headlong.studies.papers.monotonic_softmax.printed import AGAIN, TABLE
from headlong.studies.papers.verdicts import verdict_on

Line = Mapping[str, Any]

SOFTMAX = "softmax"
NO_DIFFERENCE = {"SigSoftmax", "GSS(-1.5, 2.5)"}
"""p = .39 and .26 in the replication."""


def printed_share(corpus: str, head: str) -> float | None:
    """In the talk, or else in the replication; our own PLIF stands beside the published one."""
    table, again = TABLE[corpus], AGAIN[corpus]
    name = "PLIF, published" if head == "PLIF, ours" else head
    name = "MoS, K = 15, PLIF, published" if name == "MoS, K = 15, PLIF" else name
    if name in table:
        return table[name][2] / table[SOFTMAX][2]
    return again[name] / again[SOFTMAX] if name in again else None


class Place(NamedTuple):
    """A head's row: its mean and spread over the seeds, its share of the softmax's perplexity, and what was printed."""

    head: str
    seeds: int
    parameters: int
    valid: tuple[float, float]
    test: tuple[float, float]
    seconds: float
    share: float
    printed: float | None
    verdict: str


def places(table: str, lines: Sequence[Line]) -> list[Place]:
    """Every head of a table's lines, as they come; empty before the softmax has been run."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line["setting"]["head"], []).append(line)
    if SOFTMAX not in groups:
        return []
    base = {line["setting"]["seed"]: line["got"] for line in groups[SOFTMAX]}
    corpus, _, kind = table.partition("-")
    return [_place(head, group, base, printed_share(corpus, head), kind) for head, group in groups.items()]


def _place(head: str, group: Sequence[Line], base: Mapping[str, Line], printed: float | None, kind: str) -> Place:
    got = [line["got"] for line in group]
    pairs = [(base[line["setting"]["seed"]], line["got"]) for line in group if line["setting"]["seed"] in base]
    valid, test = (_mean([one[split] for one in got]) for split in ("valid", "test"))
    share = statistics.fmean(mine["test"] / plain["test"] for plain, mine in pairs) if pairs else math.nan
    seconds = [mine["cpu_seconds_per_epoch"] / plain["cpu_seconds_per_epoch"] for plain, mine in pairs]
    plain, sd = _mean([one["test"] for one in base.values()])
    verdict = _verdict(head, share, math.hypot(sd, test[1]) / plain, printed, kind, len(pairs))
    return Place(
        head, len(group), round(got[0]["parameters"]), valid, test, statistics.fmean(seconds) if pairs else math.nan, share,
        printed, verdict,
    )  # fmt: skip


def _verdict(head: str, share: float, spread: float, printed: float | None, kind: str, pairs: int) -> str:
    if printed is None or head == SOFTMAX:
        return "no figure"
    if kind == "early" or pairs < 2:
        return "stand-in"
    ours = 0 if abs(share - 1) <= spread else math.copysign(1, share - 1)
    theirs = 0 if head in NO_DIFFERENCE else math.copysign(1, printed - 1)
    return verdict_on(ours == theirs)


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """With the standard deviation; 0 for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
