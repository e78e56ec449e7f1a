"""The tables that are one committed run each: its columns and their titles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tables_records import missing, plain, record

from headlong.report.measured_on import measured_where
from headlong.report.records import field
from headlong.report.tables import ReportTable, markdown

VERIFIED = {
    "contestant": "engine", "rows": "hidden vectors", "violations": "violations", "worst_off": "worst error, nats",
    "mean_bytes": "bytes a query", "dense_rows": "finished densely",
}  # fmt: skip
BANDWIDTH = {
    "query": "query", "vocab": "classes", "dim": "dimensions", "gigabytes_per_second": "GB/s",
    "plain_gigabytes_per_second": "plain read, GB/s", "share": "share",
}  # fmt: skip
FLAT = {
    "kind": "layer", "vocab": "classes", "dim": "dimensions", "batch": "at once", "full_seconds": "full, s",
    "cascade_seconds": "cascade, s", "over": "cascade over full", "dense": "finished densely",
}  # fmt: skip

STEP = {
    "layer": "layer", "torch_us": "torch bf16, µs", "headlong_us": "headlong, µs", "speed_up": "times faster",
    "nucleus_median": "median nucleus", "nucleus_p90": "90 %", "nucleus_largest": "largest", "rows": "exact rows",
    "dense": "finished densely",
}  # fmt: skip
BUILD = {
    "layer": "layer", "promise": "promise", "compile_s": "compile, s", "yardstick_s": "two products and eigh, s",
    "ratio": "ratio",
    "kept": "kept beside it, of the bfloat16 layer", "rounds": "rounds",
}  # fmt: skip
COLD = {
    "method": "method", "median_us": "median, µs", "q25_us": "25 %", "q75_us": "75 %", "p90_us": "90 %",
    "speed_up": "times the fastest dense product",
}  # fmt: skip
ADAPT = {
    "promise": "promise", "engine": "engine", "share_read": "of float32's bytes", "a loop, us": "in a loop, µs",
    "a loop, over": "of the calibrated one's time", "cold caches, us": "cold, µs",
    "cold caches, over": "of the calibrated one's cold time",
}  # fmt: skip
MASKS = {"layer": "layer", "mask": "mask", "median_us": "median, µs", "over_no_mask": "of the unmasked time", "wrong": "wrong"}
FAILURES = {
    "layer": "layer", "promise": "promise", "over": "over", "promised": "rate promised", "failures": "failures",
    "trials": "trials", "low": "at least", "high": "at most", "worst": "worst error", "share_read": "of float32's bytes",
    "commit": "counted at",
}  # fmt: skip
BETS = {
    "layer": "layer", "eps": "within", "delta": "but for", "scored": "scored", "bet": "drawn by the bet",
    "any": "by any valid rule", "closer": "the same, closer looks first", "known": "the variance known",
    "error": "error left, of eps", "own": "rows in all, by any valid rule at best",
}  # fmt: skip
LOOK_ANSWERS = {
    "layer": "layer", "batch": "queries a call", "k": "k", "all classes": "radii of all classes", "all classes, wrong": "wrong",
    "the answer": "radii of the answer", "the answer, wrong": "wrong", "scan": "the scan alone", "rows": "k rows",
    "wider": "a prefix of 48, radii of all classes", "wider, wrong": "wrong",
}  # fmt: skip
PROMISE_TIMES = {
    "promise": "promise", "median_us": "median, µs", "q25_us": "25 %", "q75_us": "75 %", "share_read": "of float32's bytes",
    "rows": "exact rows", "compile_s": "compile, s", "beside": "beside", "over": "of its time", "bar": "meant",
}  # fmt: skip
GROWTH = {
    "vocab": "classes", "dim": "dimensions", "median_us": "median, µs", "bytes": "bytes", "gigabytes_per_second": "GB/s",
    "sum_gigabytes_per_second": "a sum of them, GB/s", "rows": "exact rows", "build_s": "build, s",
}  # fmt: skip

NEAR, SLOWEST = 1.1, 5  # times; rows that are shown however near they are


BEFORE = {
    "nothing": "in a loop", "cold caches": "cold", "torch on all cores": "after torch", "a pause of 5 ms": "after a pause",
}  # fmt: skip


def promise_times() -> str:
    """What may fail beside what never does: how many of the ratios that were meant are kept, and all of them."""
    if text := missing("promise-times"):
        return text
    rows = [row for row in record("promise-times")["rows"] if "bar" in row]
    kept = sum(row["kept"] for row in rows)
    each = "; ".join(f"{row['promise']}: {row['over']:.2f} times {row['beside']}, meant {row['bar']}" for row in rows)
    said = f"{kept} of {len(rows)} ratios are as low as they were meant to be. {each}."
    return f"{said}\n\n{plain('promise-times', PROMISE_TIMES)()}"


def choice(name: str = "choice", most: int = 10_000) -> str:
    """How often ``auto`` was as fast as anything a user may name, and where it was least so: ``most`` of these cases."""
    if text := missing(name):
        return text
    found = record(name)
    far = sum(row["over"] > NEAR for row in found["rows"])
    rows = sorted(found["rows"], key=lambda row: -row["over"])[: min(most, max(far, SLOWEST))]
    columns = {"layer": "layer", "promise": "promise", "batch": "at once", "state": "state", "auto": "asked for",
               "fastest": "the faster", "over": "auto over it"}  # fmt: skip
    table = tuple(tuple(field(row[key]) for key in columns) for row in rows)
    near, where = len(found["rows"]) - far, found["environment"]
    said = f"In {near} of {len(found['rows'])} cases `auto` took at most {NEAR} times the fastest's time; the slowest:"
    caption = f"{where['cpu']}, {where['threads']} threads, {where['date']}."
    return f"{said}\n\n{markdown(ReportTable('', tuple(columns.values()), table, caption))}"


def parts() -> str:
    """What each question costs, and how much of that, cold, is Python and the arrays of the answer."""
    if text := missing("call-breakdown"):
        return text
    found = record("call-breakdown")
    asked: dict[tuple[str, str], dict[str, Any]] = {}
    for row in found["rows"]:
        asked.setdefault((row["promise"], row["call"]), {})[row["state"]] = row
    states = ("a loop", "cold caches", "after torch on all cores")
    titles = ("promise", "call", *(f"{state}, µs" for state in states), "Python and arrays of the cold call, µs")
    table = []
    for (promise, call), by in asked.items():
        cold = by["cold caches"]["parts_us"]
        ours = sum(cold[part] for part in ("Python before", "hand-back", "Python after"))
        table.append((promise, call, *(field(by[state]["total_us"]) for state in states), field(ours)))
    caption = f"Medians; between cold calls {found['megabytes between']} MB. {measured_where(found['environment'])}."
    return markdown(ReportTable("", titles, tuple(table), caption))


def two_builds(name: str) -> str:
    """This commit over an older one: times of single calls, each the ratio of medians, and of calls in batches."""
    if text := missing(name):
        return text
    found = record(name)
    rows: dict[str, list[Any]] = {}
    for row in found["rows"]:
        rows.setdefault(row["promise"], []).append(row)
    cases = [(BEFORE[row["before"]], row["batch"]) for row in next(iter(rows.values()))]
    titles = ("promise", *(state if batch == 1 else f"{state}, {batch} at once" for state, batch in cases), "bytes of one")
    table = tuple(
        (name, *(f"{row['ratio']:.2f}" for row in of), f"{of[0]['this_bytes'] / of[0]['other_bytes']:.2f}")
        for name, of in rows.items()
    )
    between = f"cold: {found['megabytes between']} MB are read in between"
    caption = f"Medians of {found['this']} over those of {found['other']}, in turns in one run; {between}."
    return markdown(ReportTable("", titles, table, f"{caption} {measured_where(found['environment'])}."))


def batch_instructions() -> str:
    """What a query of a batch takes, and what of it."""
    if text := missing("batch-instructions"):
        return text
    found = record("batch-instructions")
    parts = list(dict.fromkeys(part for row in found["rows"] for part in row.get("parts", {})))
    titles = ("what", "at once", "instructions a query, thousands", *parts)
    table = tuple(
        (row["contestant"], field(row["batch"]), f"{row['instructions'] / 1000:,.0f}",
         *(f"{row['parts'].get(part, 0) / 1000:,.0f}" if "parts" in row else "" for part in parts))
        for row in found["rows"]
    )  # fmt: skip
    caption = f"Counted by callgrind, AVX2, one thread; {measured_where(found['environment'])}."
    return markdown(ReportTable("", titles, table, caption))


BLOCKS: dict[str, Callable[[], str]] = {
    "verified": plain("verify-wikitext2", VERIFIED),
    "bandwidth": plain("bandwidth", BANDWIDTH),
    "flat": plain("flat", FLAT),
    "sampling-step": plain("sampling-step", STEP),
    "masks": plain("masks", MASKS),
    "cold-calls": plain("cold-calls", COLD),
    "cold-calls-avx2": plain("cold-calls-avx2", COLD),
    "build-costs": plain("build-costs", BUILD),
    "promise-failures": plain("promise-failures", FAILURES),
    "promise-kinds": plain("promise-kinds", FAILURES),
    "bets": plain("bets", BETS),
    "look-answers": plain("look-answers", LOOK_ANSWERS),
    "promise-times": promise_times,
    "growth": plain("growth", GROWTH),
    "adapt": plain("adapt", ADAPT),
    "auto": choice, "auto-drawn": lambda: choice("choice-drawn", 12),
    "call-parts": parts,
    "batch-instructions": batch_instructions,
    "two-builds": lambda: two_builds("two-builds"),
    "two-builds-avx2": lambda: two_builds("two-builds-avx2"),
    "two-builds-samples": lambda: two_builds("two-builds-samples"),
}
