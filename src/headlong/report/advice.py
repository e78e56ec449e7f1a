"""What a run of ``bench`` says for the choice of a method: whose queries were asked; did ``compile`` choose well? Pure."""

from __future__ import annotations

from collections.abc import Iterator

from headlong.report.summaries import Record, Summary, summaries, ways
from headlong.report.tables import duration

MADE_UP = "made up"
"""Where the queries of a run came from, when none were given."""
NEAR = 1.1
"""A contestant this near the fastest is as good a choice."""


def remarks(record: Record) -> Iterator[str]:
    """One sentence each."""
    if record["layer"].get("hidden") == MADE_UP:
        yield (
            "Queries: random vectors, as no HIDDEN was given, scaled so that the most likely class has probability 0.3. "
            "A trained model's vectors usually need less to be read: pass some, and more of them as --calibration."
        )
    for entry in record.get("left_out", []):
        yield f"{entry['contestant']} took no part: {entry['why']}."
    way = ways(record)[0]
    found = summaries(record, way)
    smallest = min((one.batch for one in found), default=0)
    mine = [one for one in found if one.batch == smallest and one.proved == 1]
    chosen = next((one for one in mine if one.contestant == "auto"), None)
    if chosen is None:
        return
    about = next(entry["about"] for entry in record["answers"] if entry["contestant"] == "auto")
    promise = f"; where the promise is: {about['promise']}" if "promise" in about else ""  # another has another choice
    yield f"compile takes, by itself: {about.get('reason', about.get('engine', 'auto'))}{promise}."
    best = min(mine, key=lambda one: one.median)
    if chosen.median > NEAR * best.median:
        yield f"{_asked(best, chosen)} is faster on these queries: {duration(best.median)} against {duration(chosen.median)}."


def _asked(best: Summary, chosen: Summary) -> str:
    """What to ask for to get it."""
    if best.contestant.startswith("calibrated"):
        return f"{best.contestant!r} (pass calibration=, and promise no more than you need)"
    if best.contestant.endswith("ids only"):
        return f"{best.contestant!r} (pass eps=math.inf)"
    return f"method={best.contestant!r}"
