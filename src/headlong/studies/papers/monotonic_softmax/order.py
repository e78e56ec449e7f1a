"""Ganea et al. (2019): is a row better or worse than the plain softmax here as it was where it was published?

::

    gain    = test perplexity of the softmax - the row's, mean over the seeds both have
    spread  = sqrt(sd(softmax)^2 + sd(row)^2)          a gain within it is no difference
    verdict = "matched" if the published gain and ours have the same sign, or both are no difference

Perplexities of recipes this different cannot be compared, their order can.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Line = Mapping[str, Any]

SOFTMAX = "softmax"
TALK, AGAIN = "the paper's talk, AWD-LSTM", "an independent replication, AWD-LSTM, eleven seeds"


class Gain(NamedTuple):
    """What a row's test perplexity lies below the softmax's, and who says so; 0 where a test found no difference."""

    value: float
    source: str


PUBLISHED: dict[str, dict[str, Gain]] = {
    "ptb": {
        "PLIF, ours": Gain(1.12, TALK),
        "PLIF, published": Gain(1.12, TALK),
        "MoS, K = 3": Gain(1.94, TALK),
        "MoS, K = 3, PLIF": Gain(2.35, TALK),
        "SigSoftmax": Gain(0.0, AGAIN),
        "GSS(-1.5, 2.5)": Gain(0.0, AGAIN),
        "MoC, K = 3": Gain(0.67, AGAIN),
    },
    "wikitext2": {
        "PLIF, ours": Gain(0.36, TALK),
        "MoS, K = 3": Gain(1.89, TALK),
    },
}
"""58.37 less 57.25, 56.43 (K = 15), 56.02; 65.22 less 64.86, 63.33. p = .39 and .26 for SigSoftmax and GSS (unverified)."""


class Place(NamedTuple):
    """A head's row: its mean and spread over the seeds, its gain over the softmax, and the verdict on the gain's sign."""

    head: str
    seeds: int
    parameters: int
    valid: tuple[float, float]
    test: tuple[float, float]
    seconds: float
    gain: float
    published: Gain | None
    verdict: str


def places(corpus: str, lines: Sequence[Line]) -> list[Place]:
    """Every head of a table's lines, as they come; empty before the softmax has been run."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        groups.setdefault(line["setting"]["head"], []).append(line)
    if SOFTMAX not in groups:
        return []
    base = {line["setting"]["seed"]: line["got"] for line in groups[SOFTMAX]}
    return [_place(head, group, base, PUBLISHED[corpus].get(head)) for head, group in groups.items()]


def _place(head: str, group: Sequence[Line], base: Mapping[str, Line], published: Gain | None) -> Place:
    got = [line["got"] for line in group]
    pairs = [(base[line["setting"]["seed"]], line["got"]) for line in group if line["setting"]["seed"] in base]
    valid, test = (_mean([one[split] for one in got]) for split in ("valid", "test"))
    gain = statistics.fmean(plain["test"] - mine["test"] for plain, mine in pairs) if pairs else math.nan
    seconds = [mine["cpu_seconds_per_epoch"] / plain["cpu_seconds_per_epoch"] for plain, mine in pairs]
    spread = math.hypot(_mean([plain["test"] for plain in base.values()])[1], test[1])
    return Place(
        head, len(group), round(got[0]["parameters"]), valid, test, statistics.fmean(seconds) if pairs else math.nan, gain,
        published, _verdict(gain, spread, published),
    )  # fmt: skip


def _verdict(gain: float, spread: float, published: Gain | None) -> str:
    if published is None or math.isnan(gain):
        return "no figure"
    found = 0 if abs(gain) <= spread else math.copysign(1, gain)
    return "matched" if found == (math.copysign(1, published.value) if published.value else 0) else "differs"


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """With the standard deviation; 0 for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
