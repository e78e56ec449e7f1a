"""What the README says of a stored run: the first table, and which method to take when.

Every clause is printed only where the run supports it, and the case in which the plain method does best is always there.
"""

from __future__ import annotations

from collections.abc import Iterator

from headlong.report.tables import Record, Summary, Table, baseline, caption, duration, nats, percent, summaries, times

CALIBRATED = ("calibrated, ids only", "calibrated, default promise", "calibrated, proved within 0.05")
OURS = ("full", "cascade", *CALIBRATED[1:], "auto")
PLAIN = ("torch fp32", "torch bf16", "numpy fp32")
SEARCHES = ("hnswlib",)
SHOWN = ("torch fp32", "torch bf16", "cascade", *CALIBRATED[:2], *SEARCHES)
"""The first table's contestants; results/README.md has all of them at every batch size."""


def headline(record: Record) -> Table:
    """One query at a time; then the batch size at which a plain product comes nearest to us, or wins."""
    found = summaries(record)
    promises = {entry["contestant"]: entry["about"].get("promise", "none") for entry in record["answers"]}
    smallest = min(entry.batch for entry in found)
    one = {entry.contestant: entry for entry in found if entry.batch == smallest}
    shown = [(name, one[name]) for name in SHOWN if name in one]
    plain, ours = hardest(found)
    shown += [(f"{entry.contestant}, {entry.batch} at once", entry) for entry in (plain, ours) if entry.batch != smallest]
    rows = tuple(
        (
            name,
            duration(entry.median),
            times(entry.speedup),
            percent(entry.agreement),
            nats(entry.worst),
            percent(entry.read),
            promises[entry.contestant],
        )
        for name, entry in shown
    )
    over = f"over {baseline(record)}"
    columns = ("one query at a time", "time", over, f"same top {record['settings']['k']}", "worst |Δlog p|", "read", "promise")
    return Table("", columns, rows, caption(record, "the row's batch"))


def hardest(found: list[Summary]) -> tuple[Summary, Summary]:
    """The best plain product and the best proved engine, at the batch size where the first does best beside the second."""

    def best(batch: int, names: tuple[str, ...]) -> Summary:
        return min((entry for entry in found if entry.batch == batch and entry.contestant in names), key=lambda e: e.median)

    pairs = [(best(batch, PLAIN), best(batch, OURS)) for batch in sorted({entry.batch for entry in found})]
    return min(pairs, key=lambda pair: pair[0].median / pair[1].median)


def which_one(record: Record) -> Iterator[str]:
    """Advice that this run supports, one clause each."""
    found = summaries(record)
    smallest = min(entry.batch for entry in found)
    one = {entry.contestant: entry for entry in found if entry.batch == smallest}
    base = baseline(record)
    cascade, learned = one.get("cascade"), one.get("calibrated, default promise")
    if cascade and cascade.agreement == 1 == cascade.proved and cascade.speedup > 1:
        more = ""
        if learned and learned.agreement == 1 == learned.proved and learned.speedup > 1:
            ids = times(one["calibrated, ids only"].speedup)
            more = f" With `calibration=` hidden vectors: {times(learned.speedup)} at the default promise, ids alone {ids}."
        ours = f"`cascade`, {times(cascade.speedup)} {base}, ids proved."
        yield f"**The same answer, one query at a time on a CPU**: {ours}{more}"
    full = one.get("full")
    if full and full.speedup >= 1 and full.worst is not None:
        worst = nats(full.worst)
        yield f"**Log-probabilities exact to rounding**: `full`, {times(full.speedup)} {base}, worst error {worst} nats."
    for name in SEARCHES:
        search = one.get(name)
        same = [entry for name, entry in one.items() if name in OURS and entry.agreement == 1]
        if search and search.agreement < 1 and all(search.speedup > entry.speedup for entry in same):
            yield (
                f"**Ids alone, and some of them may be wrong**: {name} found {percent(search.agreement)} of the top "
                f"{record['settings']['k']} at {times(search.speedup)}, without probabilities."
            )
    plain, proved = hardest(found)
    if plain.median < proved.median:
        yield (
            f"**Large batches**: keep your matrix product; at {plain.batch} at once {plain.contestant} took "
            f"{duration(plain.median)} per query, {proved.contestant} {duration(proved.median)}."
        )
    else:
        yield (
            f"**Large batches**: the lead shrinks; at {plain.batch} at once {proved.contestant} took "
            f"{duration(proved.median)} per query, {plain.contestant} {duration(plain.median)}."
        )
