"""What ``headlong tune`` measured, as rows of tables and as sentences."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from headlong.report.tables import ReportTable, duration, nats, percent


class Trial(NamedTuple):
    """One plan on the held-out vectors.

    ``seconds``  median of one query, ``bytes`` and ``rows`` its means; ``mib`` of previews; ``build`` seconds
    ``error``    worst true |log p^ - log p|; ``wrong`` rows with a wrong id; ``proved`` share of rows whose ids are proved
    """

    name: str
    options: dict[str, Any]
    seconds: float
    bytes: float
    rows: float
    mib: float
    build: float
    error: float
    wrong: int
    proved: float
    kept: bool


class Report(NamedTuple):
    """Everything that was tried, in order; ``held`` vectors were asked."""

    trials: tuple[Trial, ...]
    chosen: str
    held: int
    threads: int


def reasons(report: Report) -> list[str]:
    """One line on the choice, then one for each plan, the fastest first."""
    where = f"{report.held} held-out vectors, {report.threads} thread{'s' * (report.threads > 1)}"
    lines = [f"tuned: {report.chosen}, the fastest of {len(report.trials)} plans on {where}"]
    for trial in sorted(report.trials, key=lambda one: one.seconds):
        told = ", ".join(f"{head} {cell}" for head, cell in zip(HEADS, _cells(trial), strict=True))
        lines.append(f"{trial.name}: {told}{'' if trial.kept else ', promise not kept'}")
    return lines


def table(report: Report) -> ReportTable:
    """A row for each plan, the fastest first."""
    rows = tuple(
        (f"{one.name} (chosen)" if one.name == report.chosen else one.name, *_cells(one))
        for one in sorted(report.trials, key=lambda one: one.seconds)
    )
    return ReportTable("", ("plan", *HEADS), rows, f"Medians on {report.held} held-out vectors, {report.threads} threads.")


HEADS = ("1 query", "MiB read", "rows", "worst |Δlog p|", "ids proved", "wrong", "MiB kept", "build")


def _cells(trial: Trial) -> tuple[str, ...]:
    error = nats(trial.error) if math.isfinite(trial.error) else "not asked"
    return (
        duration(trial.seconds), f"{trial.bytes / 2**20:.2f}", f"{trial.rows:.0f}", error, percent(trial.proved),
        str(trial.wrong), f"{trial.mib:.1f}", duration(trial.build),
    )  # fmt: skip
