"""The answer of a run, at the top of its page: one plot, at most five rows, and a sentence that says what they mean. Pure."""

from __future__ import annotations

from headlong.report.bars import Bar, bars
from headlong.report.measured_on import BUSY
from headlong.report.page import Figure, Paragraph, Part
from headlong.report.summaries import DENSE, WAYS, Record, Summary, baselines, summaries, ways
from headlong.report.tables import ReportTable, caption, duration, factor, nats, percent, times

OURS = 3
"""Rows of ours."""


def answer(record: Record, name: str = "") -> list[Part]:
    """Of the smallest batch, cold where that was timed: the fastest dense product, our fastest with proofs, one other.

    ``name``: of the file, for the caption.
    """
    way = ways(record)[0]
    found = summaries(record, way)
    smallest = min(one.batch for one in found)
    against = baselines(record, way)[smallest]
    at = {one.contestant: one for one in found if one.batch == smallest}
    chosen = rows(at, against)
    queries = "One query" if smallest == 1 else f"{smallest} queries at once, each"
    title = f"{queries}, {WAYS[way]}"
    shown = [Bar(one.contestant, one.median, duration(one.median), kind_of(one, against)) for one in chosen]
    cells = tuple(
        (one.contestant, duration(one.median), factor(one), percent(one.agreement), nats(one.worst), percent(one.proved))
        for one in chosen
    )
    same = f"same top {record['settings']['k']}"
    columns = ("method", "time", f"over {against} (quartiles)", same, "worst |Δlog p|", "proved")
    note = f"{name}: {caption(record, way=way)}" if name else caption(record, way=way)
    others = record["environment"].get("others") or 0.0
    busy = f" But other programs took {others:.0%} of the processors meanwhile: measure again." if others > BUSY else ""
    return [Paragraph(meaning(chosen, against) + busy), Figure("", bars(title, shown)), ReportTable("", columns, cells, note)]


def rows(at: dict[str, Summary], against: str) -> list[Summary]:
    """At most five of a batch's summaries: slowest first."""
    ours = sorted((one for one in at.values() if one.proved == 1 and one.agreement == 1), key=lambda one: one.median)[:OURS]
    others = [one for one in at.values() if one.proved is None and one.contestant != against]
    others.sort(key=lambda one: (one.contestant in DENSE, one.median))  # a search rather than a slower product
    return sorted([at[against], *ours, *others[:1]], key=lambda one: -one.median)


def kind_of(one: Summary, against: str) -> str:
    """The colour of its bar."""
    return "dense" if one.contestant in (against, *DENSE) else "rival" if one.proved is None else "ours"


def meaning(chosen: list[Summary], against: str) -> str:
    """What the rows say, in two sentences."""
    base = next(one for one in chosen if one.contestant == against)
    ours = [one for one in chosen if one.proved == 1]
    if not ours:
        return f"Nothing that took part proves its answers; {against} takes {duration(base.median)}."
    best = ours[-1]
    first = (
        f"{best.contestant} takes {duration(best.median)} where {against}, the fastest dense product, takes "
        f"{duration(base.median)}: {times(best.speedup)}, with every id proved to be the layer's own."
    )
    if best.speedup < 1:
        ours_takes = f"{best.contestant} {duration(best.median)}"
        first = f"Here the plain product wins: {against} takes {duration(base.median)}, {ours_takes}."
    others = [one for one in chosen if one.proved is None and one.contestant not in (against, *DENSE)]
    if not others:
        return first
    other = others[0]
    found = "all of the best" if other.agreement == 1 else f"{percent(other.agreement)} of the best, and does not say which"
    return f"{first} {other.contestant} takes {duration(other.median)} and found {found}."
