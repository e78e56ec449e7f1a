"""Ganea et al. (2019): how far a row lies below the plain softmax here, beside how far it lies below it in the talk.

::

    share   = the row's figure / the softmax's, mean over the seeds that both have
    spread  = the same of sqrt(sd(softmax)^2 + sd(row)^2)           a share within it of 1 is no difference
    verdict = "matched" where the talk's share and ours lie on the same side of 1

Perplexities of recipes this different cannot be compared, the sides on which their rows lie can. "stand-in" and not a verdict:
where a training was stopped early, where fewer than two seeds have a softmax's row beside them, and where the head is one of
ours, so that the talk's figure is of another. Of a head that the talk has no figure of there is "no figure", whatever a
replication has. Times are compared between rows with the same type of products only: bfloat16 takes another time than float32.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from studies.papers.monotonic_softmax.talk import OURS, Ratios, printed
from studies.papers.verdicts import verdict_on

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


class Place(NamedTuple):
    """A head's row: its figures beside the softmax's, what the talk and the replication have, and the verdict."""

    head: str
    parameters: int
    valid: Beside
    test: Beside
    seconds: Beside
    printed: Ratios
    verdict: str


def places(table: str, lines: Sequence[Line]) -> list[Place]:
    """Every head of a table's lines, as they come; empty before the softmax has been run."""
    heads = list(dict.fromkeys(line["setting"]["head"] for line in lines))
    return [_place(table, head, lines) for head in heads] if SOFTMAX in heads else []


def _place(table: str, head: str, lines: Sequence[Line]) -> Place:
    corpus, _, kind = table.partition("-")
    valid, test, seconds = (beside(lines, head, column) for column in METRICS)
    plain = beside(lines, SOFTMAX, "test")
    assert valid is not None, head
    assert test is not None, head
    assert seconds is not None, head
    assert plain is not None, SOFTMAX
    size = next(round(line["got"]["parameters"]) for line in lines if line["setting"]["head"] == head)
    said = printed(corpus, head)
    verdict = _verdict(head, test, math.hypot(plain.spread, test.spread) / plain.mean, said.talk, kind)
    return Place(head, size, valid, test, seconds, said, verdict)


def _verdict(head: str, test: Beside, spread: float, talk: float | None, kind: str) -> str:
    if talk is None or head == SOFTMAX:
        return "no figure"
    if kind == "early" or test.pairs < 2 or head in OURS:
        return "stand-in"
    ours = 0 if abs(test.share - 1) <= spread else math.copysign(1, test.share - 1)
    return verdict_on(ours == math.copysign(1, talk - 1))
