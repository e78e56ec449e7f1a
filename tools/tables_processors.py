"""The tables of docs/processors.md: instructions, emulated tests, other systems, what AVX-512 leaves unused, two builds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tables_records import missing, record

from headlong.report.tables import ReportTable, markdown

SUITES = {"engines": "engines against float64", "oracle": "the helper that compares"}
LOOPS = {"usmmla": "not used: `usmmla`"}  # that no level has
SLOWER = 1.03  # what a call may take of what it took, before it is named


def _of(name: str, made: Callable[[dict[str, Any]], ReportTable]) -> str:
    return missing(name) or markdown(made(record(name)))


def instructions(bits: int) -> str:
    """A scan's inner loops, counted: a row for each level, a column for each number of queries."""

    def made(record: dict[str, Any]) -> ReportTable:
        counted = [row for row in record["rows"] if row["bits"] == bits]
        counts = sorted({row["queries"] for row in counted})
        rows = []
        for level in dict.fromkeys(row["level"] for row in counted):
            mine = {row["queries"]: row for row in counted if row["level"] == level}
            cells = (f"{row['per_class_and_query']:.0f} ({row['of_sdot']:.2f})" if row else "" for row in map(mine.get, counts))
            rows.append((LOOPS.get(level, level), *cells))
        read = {row["queries"]: row["bytes_per_class_and_query"] for row in counted}  # of codes: the same for every level
        rows.append(("bytes, any level", *(f"{read[n]:.0f}" for n in counts)))
        titles = ("level", *(f"{n} {'query' if n == 1 else 'queries'}" for n in counts))
        compilers = "; ".join(dict.fromkeys(record["compilers"].values()))
        return ReportTable("", titles, tuple(rows), f"{record['dim']} coordinates, codes of {bits} bits. {compilers}.")

    return _of("instructions", made)


def _three_digits(number: float) -> str:
    return f"{number:.3g}" if number < 1000 else f"{number:,.0f}"


def kernel_counts() -> str:
    """Instructions of whole calls as they ran under QEMU, a row for each kind of kernel, and bytes of the layer."""

    def made(record: dict[str, Any]) -> ReportTable:
        found = {(row["kernel"], row["level"]): row for row in record["rows"]}
        levels = dict.fromkeys(row["level"] for row in record["rows"])
        rows = []
        for kernel in dict.fromkeys(row["kernel"] for row in record["rows"]):
            mine = [found[kernel, level] for level in levels]
            counts = (_three_digits(row["instructions"]) for row in mine)
            rows.append((kernel, mine[0]["each"], *counts, _three_digits(mine[0]["bytes"])))
        titles = ("kernel", "for each", *levels, "bytes read")
        caption = f"512 coordinates; {record['emulator']}; sources of {record['commit']}."
        return ReportTable("", titles, tuple(rows), caption)

    return _of("kernel-counts", made)


def few_bits() -> str:
    """Times the number of SDOT, for one query and for four."""

    def made(record: dict[str, Any]) -> ReportTable:
        found = {(row["level"], row["bits"], row["queries"]): row["of_sdot"] for row in record["rows"]}
        levels = dict.fromkeys(row["level"] for row in record["rows"] if row["level"] not in LOOPS)
        cells = [(bits, queries) for bits in (4, 2, 1) for queries in (1, 4)]
        rows = tuple((level, *(f"{found[level, bits, queries]:.2f}" for bits, queries in cells)) for level in levels)
        titles = tuple(f"{bits} bits, {queries} at once" for bits, queries in cells)
        return ReportTable("", ("level", *titles), rows, "")

    return _of("instructions", made)


def emulated() -> str:
    """A row for each suite and commit: tests that passed on each level, failed or were skipped where any did."""

    def made(record: dict[str, Any]) -> ReportTable:
        levels = [level for level in ("neon", "dotprod", "i8mm") if any(row["level"] == level for row in record["rows"])]
        usual = Counter(row["commit"] for row in record["rows"]).most_common(1)[0][0]
        rows = []
        for suite, commit in dict.fromkeys((row["suite"], row["commit"]) for row in record["rows"]):
            mine = {row["level"]: row for row in record["rows"] if (row["suite"], row["commit"]) == (suite, commit)}
            name = SUITES.get(suite, suite) if commit == usual else f"{SUITES.get(suite, suite)}, at {commit}"
            rows.append((name, *(_ended(mine.get(level)) for level in levels)))
        processors = "; ".join(dict.fromkeys(f"{row['level']} on {row['processor']}" for row in record["rows"]))
        sources = f"sources of {usual}, where no other commit is named"
        return ReportTable("", ("suite", *levels), tuple(rows), f"{record['emulator']}; {processors}; {sources}.")

    return _of("emulated", made)


def _ended(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not run"
    more = [f"{row[word]} {word}" for word in ("failed", "skipped") if row[word]]
    more += [f"{row['seconds']:,} s"] + ["cut short"] * (not row["whole"])
    return ", ".join([f"{row['passed']:,} passed", *more])


def targets() -> str:
    """A row for each system that this machine is not: what compiled, and which levels' kernels ran against the reference."""

    def made(record: dict[str, Any]) -> ReportTable:
        ran = {row["target"]: ", ".join(row["ran"]) or "none" for row in record["rows"]}
        rows = [(row["target"], str(row["files"]), str(row["warnings"]), ran[row["target"]]) for row in record["rows"]]
        return ReportTable("", ("system", "files", "warnings", "kernels that ran"), tuple(rows), f"Zig {record['zig']}.")

    return _of("targets", made)


def wheels() -> str:
    """A row for each wheel that was built here: its size, where its tests ran, and how many passed there."""

    def made(record: dict[str, Any]) -> ReportTable:
        titles = ("wheel", "MB", "its tests ran on", "passed", "skipped", "commit")
        fields = ("ran on", "passed", "skipped", "commit")
        rows = [(row["wheel"], f"{row['bytes'] / 1e6:.1f}", *(str(row[field]) for field in fields)) for row in record["rows"]]
        return ReportTable("", titles, tuple(rows), "")

    return _of("wheels", made)


def extras() -> str:
    """Nanoseconds a class, in a cache and from memory."""

    def made(record: dict[str, Any]) -> ReportTable:
        found = {(row["what"], row["way"], row["size"]): row for row in record["rows"]}
        rows = []
        for what, way in dict.fromkeys((row["what"], row["way"]) for row in record["rows"]):
            small, large = found[what, way, "512 KiB"], found[what, way, "memory"]
            error = f"{small['error']:.2g}" if "quer" in what else ""
            rows.append((what, way, f"{small['ns']:.1f}", f"{large['ns']:.1f}", error))
        about = record["environment"]
        absent, rounds = ", ".join(about["absent"]), about["rounds"]
        caption = f"{about['processor']}, 512 coordinates, medians of {rounds} rounds. Absent: {absent}."
        return ReportTable(
            "", ("codes or queries", "by", "512 KiB, ns", "memory, ns", "error, 2^-24 lengths"), tuple(rows), caption
        )

    return _of("avx512-extras", made)


def speeds() -> str:
    """Two builds of headlong: the time of the newer one over the older's."""

    def made(record: dict[str, Any]) -> ReportTable:
        found = record["rows"]
        rows = [(row["case"], f"{row['old_us']:,.1f}", f"{row['new_us']:,.1f}", f"{row['ratio']:.3f}") for row in found]
        builds, rounds, pairs = (record["environment"][name] for name in ("builds", "rounds", "pairs"))
        titles = ("call", f"{builds['old']}, µs", f"{builds['new']}, µs", "ratio")
        within = sum(row["ratio"] <= SLOWER for row in found)
        said = f"{within} of {len(found)} calls take at most {SLOWER} times what they took."
        caption = f"Top-10, {pairs} pairs of processes, {rounds} rounds each: least times, medians of the pairs' ratios. {said}"
        return ReportTable("", titles, tuple(rows), caption)

    return _of("x86-speeds", made)


AFTER = {"nothing": "in a loop", "cold caches": "cold", "torch on all cores": "after torch", "a pause of 5 ms": "after a pause"}


def whole_calls(name: str) -> str:
    """Calls of whole engines by a newer build: how many take at most 3 % more than they did, and which take more."""
    if text := missing(name):
        return text
    found = record(name)
    rows = found["rows"]
    slower = [row for row in rows if row["ratio"] > SLOWER]
    named = [f"{row['promise']}, {AFTER[row['before']]}, {row['batch']} at once: {row['ratio']:.3f}" for row in slower]
    within = f"{len(rows) - len(slower)} of {len(rows)} calls by {found['this']} take at most {SLOWER} times what they took by"
    return f"{within} {found['other']}. " + ("More: " + "; ".join(named) if named else "None takes more") + "."


BLOCKS: dict[str, Callable[[], str]] = {
    "instructions": lambda: instructions(8),
    "instructions-few-bits": few_bits,
    "kernel-counts": kernel_counts,
    "emulated": emulated,
    "targets": targets,
    "wheels": wheels,
    "avx512-extras": extras,
    "x86-speeds": speeds,
    "whole-calls": lambda: whole_calls("two-builds"),
    "whole-calls-avx2": lambda: whole_calls("two-builds-avx2"),
}
