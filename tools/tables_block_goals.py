"""What searches in blocks were to reach, and what the committed runs say (docs/blocks.md)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tables_records import missing, record

from headlong.report.tables import ReportTable, markdown

RUNS = ("blocks", "recall-curves", "phrases", "characters", "characters-curves", "promise-failures", "storm")
SHARES = {"WikiText-2, a trained GPT's": 0.025, "a recommender's, made": 0.04, "an LSTM's, made": 0.13}
"""The most of the float32 layer that a query for proved ids may read."""
PROVED, PROMISED, GRAPH, ENOUGH, HOT = "headlong, ids proved", "headlong, ids but for 0.01", "hnswlib", 0.985, 0.98
GRAPHS_AND_LISTS = ("hnswlib", "faiss HNSW", "faiss IVF")
MILLION, CURVES = 1_000_000, "recall-curves"


def goals() -> str:
    """A line for each: what was wanted, what was measured, and where."""
    for name in RUNS:
        if text := missing(name):
            return text
    lines = [*_shares(), *_beside_indexes(), *_large(), *_kept()]
    return markdown(ReportTable("", ("wanted", "measured", "run"), tuple(lines)))


def _shares() -> list[tuple[str, str, str]]:
    runs = {run["layer"]: run["blocks"]["share_of_float32"] for run in record("blocks")["runs"]}
    return [
        (f"ids proved, {layer}: at most {most:.1%} of float32's bytes", f"{runs[layer]:.1%}", "blocks")
        for layer, most in SHARES.items()
    ]


def _beside_indexes() -> list[tuple[str, str, str]]:
    rows: list[dict[str, Any]] = record("recall-curves")["rows"]
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    gpt = [row for row in rows if row["layer"].startswith("WikiText-2")]
    proved, graph = _own(gpt, PROVED)["cold_us"], _fastest(gpt, "cold_us", ENOUGH, (GRAPH,))
    cold, hot = [], []
    for layer in layers:
        own = [row for row in rows if row["layer"] == layer]
        mine = _own(own, PROMISED)
        cold.append(f"{mine['cold_us']:.0f} / {_fastest(own, 'cold_us', mine['recall']):.0f}")
        hot.append(f"{mine['loop_us']:.0f} / {_fastest(own, 'loop_us', HOT, GRAPHS_AND_LISTS):.0f}")
    return [
        (
            f"cold, ids proved on WikiText-2: no slower than hnswlib that finds {ENOUGH:.1%}",
            f"{proved:.0f} / {graph:.0f} µs",
            CURVES,
        ),
        ("cold, ids but for 0.01: less than any index that finds as many, four layers", f"{', '.join(cold)} µs", CURVES),
        (f"in a loop, the same: less than graphs and lists that find {HOT:.0%}", f"{', '.join(hot)} µs", CURVES),
    ]


def _large() -> list[tuple[str, str, str]]:
    times = next(run for run in record("phrases")["timed"] if run["classes"] > MILLION)
    ways = ("ms, batch 1, in a loop", "ms, batch 1, cold", "ms, batch 64, in a loop")
    times_less = [f"{times[way]['plain'] / times[way]['blocks']:.0f}" for way in ways]
    curve = [row for row in record("characters-curves")["rows"] if row["contestant"] == "headlong, blocks"]
    first, last = (end(curve, key=lambda row: int(row["classes"])) for end in (min, max))
    times_more = math.log(last["classes"] / first["classes"])
    grown = [math.log(last[way] / first[way]) / times_more for way in ("loop_us", "cold_us", "batch_us")]
    peaks = [
        run["build peak"] / run["kept"]
        for name in ("phrases", "characters")
        for run in record(name)["counted"]
        if run["way"] == "blocks" and run["classes"] >= MILLION
    ]
    return [
        (
            "a million classes: in a loop, cold, 64 at once five times as fast as a pass",
            f"{', '.join(times_less)} times",
            "phrases",
        ),
        ("10^4 to 10^7 classes: time grows slower than V^0.7", _listed("V^{:.2f}", grown), "characters-curves"),
        ("a million classes and more: building takes 1.3 of what is kept", _listed("{:.2f}", peaks), "phrases, characters"),
    ]


def _kept() -> list[tuple[str, str, str]]:
    runs, storm = record("blocks")["runs"], record("storm")
    asked = [run["blocks"] for run in runs]
    promised = [
        row for row in record("promise-failures")["rows"] if "ids but for" in row["promise"] and "," not in row["promise"]
    ]
    within = sum(row["failures"] <= row["promised"] * row["trials"] for row in promised)
    trials = sum(row["trials"] for row in promised)
    wrong, checked = (sum(run[name] for run in asked) for name in ("wrong", "checked"))
    return [
        ("no proved id is wrong", f"{wrong} of {checked:,} queries", "blocks"),
        (
            "nor on random and adversarial layers, whatever is asked",
            f"{len(storm['trouble'])} of {storm['cases']:,} cases",
            "storm",
        ),
        ("ids that may fail stay within their rates", f"{within} of {len(promised)}, {trials:,} queries", "promise-failures"),
    ]


def _listed(form: str, numbers: list[float]) -> str:
    return ", ".join(form.format(number) for number in numbers)


def _own(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(row for row in rows if row["contestant"] == name)


def _fastest(rows: list[dict[str, Any]], way: str, recall: float, names: tuple[str, ...] = ()) -> float:
    """The least time of an index that finds as large a share."""
    others = [row for row in rows if not row["contestant"].startswith("headlong") and row["recall"] >= recall]
    return min((row[way] for row in others if not names or row["contestant"].startswith(names)), default=math.inf)


BLOCKS: dict[str, Callable[[], str]] = {"blocks-goals": goals}
