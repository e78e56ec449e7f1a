"""What README's first screen says of stored runs: cold calls, a whole decode step, calls in a loop.

Every line is printed only where a run supports it. Speed-ups are over the fastest dense product of the same run, the case in
which a plain product comes nearest (or wins) is always there, and rivals that may be wrong are last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headlong.report.bars import Bar, bars
from headlong.report.measured_on import machine
from headlong.report.summaries import DENSE, TIE, Record, Summary, agreement, baselines, share, summaries, worst_gap
from headlong.report.tables import ReportTable, duration, factor_of, nats, percent, spread, times

CALIBRATED = ("calibrated, ids only", "calibrated, default promise")
OURS = ("cascade", "calibrated, default promise", "calibrated, ids only")
SEARCHES = ("hnswlib",)
WORDS = {
    "cascade": "headlong",
    "calibrated, default promise": "headlong, calibrated",
    "calibrated, ids only": "headlong, calibrated, ids only",
    "hnswlib": "hnswlib, a graph",
}
"""The contestants of README as a reader names them."""
STEP = "decode step, top-p"


def headline(cold: Record, answers: Record) -> ReportTable:
    """Cold calls of one query; what the answers are worth is from a run of ``bench`` on the same layer."""
    rows = {row["method"]: row for row in cold["rows"]}
    quality = {entry["contestant"]: entry for entry in answers["answers"]}
    over = cold["facts"]["over"]
    dense = sorted((name for name in DENSE if name in rows), key=lambda name: -rows[name]["median_us"])
    shown = [name for name in (*dense, *OURS, *SEARCHES) if name in rows and name in quality]
    truth = answers["truth"]["log_probs"]
    plain = rows[over]["median_us"]
    cells = tuple((WORDS.get(name, name), *_times(rows[name], plain), *_worth(quality[name], truth)) for name in shown)
    columns = ("one query", "time (quartiles)", f"over {over} (quartiles)", "same top 10", "worst |Δlog p|", "promise")
    layer = answers["layer"]
    note = (
        f"A trained layer of {layer['vocab']:,} classes × {layer['dim']} dimensions; before each call "
        f"{cold['facts']['between two calls']}; {over} is the fastest dense product there. {machine(cold['environment'])}"
    )
    return ReportTable("", columns, cells, note)


def elsewhere(cold: Record) -> str:
    """One sentence: the same calls on another processor."""
    rows, over = {row["method"]: row for row in cold["rows"]}, cold["facts"]["over"]
    plain = rows[over]["median_us"]
    ours = ", ".join(f"{WORDS[name]} {times(plain / rows[name]['median_us'])}" for name in OURS)
    return (
        f"On a processor without AVX-512, {over} (weights and queries in int8) is the fastest dense product, "
        f"{duration(1e-6 * plain)}; over that: {ours}. {machine(cold['environment'])}"
    )


def _times(row: Mapping[str, Any], plain: float) -> tuple[str, str]:
    median, low, high = (row[name] for name in ("median_us", "q25_us", "q75_us"))
    return spread(1e-6 * median, 1e-6 * low, 1e-6 * high), factor_of(plain / median, plain / high, plain / low)


def _worth(entry: Mapping[str, Any], truth: Sequence[Sequence[float]]) -> tuple[str, str, str]:
    right = agreement(entry.get("true", truth), [row[-1] for row in truth])
    return percent(right), nats(worst_gap(entry)), entry["about"].get("promise", "none")


def picture(cold: Record, answers: Record) -> str:
    """The cold times as bars: dense products, ours, a graph; how often the best k were wrong, or that they are proved."""
    rows = {row["method"]: row for row in cold["rows"]}
    quality = {entry["contestant"]: entry for entry in answers["answers"]}
    dense = sorted((name for name in DENSE if name in rows), key=lambda name: -rows[name]["median_us"])
    shown = [*((name, "dense") for name in dense), *((name, "ours") for name in OURS), *((name, "rival") for name in SEARCHES)]
    found = []
    for name, kind in shown:
        if name in rows and name in quality:
            seconds, off = 1e-6 * rows[name]["median_us"], missed(answers, quality[name])
            sure = off == 0 and all(quality[name].get("proved", [0]))
            worth = "proved" if sure else f"{percent(off)} wrong" if off else ""
            found.append(Bar(WORDS.get(name, name), seconds, ", ".join(filter(None, (duration(seconds), worth))), kind))
    return bars(f"Time of one query after other layers, and how often its top {answers['settings']['k']} is wrong", found)


def decode(runs: Sequence[Record]) -> str:
    """One sentence: a whole decode step in transformers, other layers included, model by model."""
    parts, equal, asked = [], 0, 0
    for run in runs:
        facts = run["facts"]
        ratios = [row["times"] for row in run["rows"] if row["what"] == STEP and row["batch"] == 1]
        if ratios:
            name = {"gpt2": "GPT-2", "llama": "a small Llama", "gemma": "Gemma 3"}.get(facts["shape"], facts["shape"])
            parts.append(f"**{_span(ratios)}** for {name}'s shape ({facts['vocab']:,} tokens)")
        equal, asked = equal + facts["greedy tokens equal"], asked + facts["greedy tokens"]
    return (
        f"A whole decode step of `generate()` with top-p sampling, the model's other layers included: {_listed(parts)}; "
        f"{equal:,} of {asked:,} greedy tokens are those of stock transformers."
    )


def recommender(record: Record) -> str:
    """One sentence: the best of very many items for one user, over the fastest dense product of the same run."""
    found = {one.contestant: one for one in summaries(record) if one.batch == min(baselines(record))}
    over = baselines(record)[min(baselines(record))]
    best = min((found[name] for name in OURS if name in found), key=lambda one: one.median)
    layer = record["layer"]
    return (
        f"The best {record['settings']['k']} of {layer['vocab']:,} items ({layer['dim']} dimensions, synthetic) for one user, "
        f"ids proved: {duration(best.median)} where {over} takes {duration(found[over].median)}, **{times(best.speedup)}**."
    )


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _span(ratios: Sequence[float]) -> str:
    low, high = times(min(ratios)), times(max(ratios))
    return low if low == high else f"{low.rstrip('×')}–{high}"


def loop(record: Record) -> str:
    """One sentence: the same engines called in a loop of nothing else, and where a plain product comes nearest."""
    found = {(one.contestant, one.batch): one for one in summaries(record)}
    against = baselines(record)
    least = min(against)
    said = [(WORDS[name], found[name, least]) for name in OURS if (name, least) in found]
    parts = ", ".join(f"{word} {duration(one.median)} ({times(one.speedup)})" for word, one in said)
    text = f"In a loop of such calls, with the layer in the caches, compared with {against[least]}: {parts}."
    plain, ours = hardest(list(found.values()))
    if plain.batch == least:
        return text
    verdict = "the plain product wins" if plain.median < ours.median else "the lead shrinks"
    return (
        f"{text} In batches {verdict}: {plain.batch} at once, {WORDS.get(ours.contestant, ours.contestant)} takes "
        f"{duration(ours.median)} a query, {plain.contestant} {duration(plain.median)}."
    )


def hardest(found: list[Summary]) -> tuple[Summary, Summary]:
    """The best plain product and our best engine with log-probabilities, where the first does best beside the second."""

    def best(batch: int, names: tuple[str, ...]) -> Summary:
        return min((entry for entry in found if entry.batch == batch and entry.contestant in names), key=lambda e: e.median)

    pairs = [(best(batch, DENSE), best(batch, OURS[:2])) for batch in sorted({entry.batch for entry in found})]
    return min(pairs, key=lambda pair: pair[0].median / pair[1].median)


def wrong(record: Record) -> str:
    """How often the best k of products in fewer bits and of graphs are not the layer's own: the sentence before their times."""
    k = record["settings"]["k"]
    found = {entry["contestant"]: entry for entry in record["answers"]}
    others = [name for name in ("torch bf16", "torch int8", "torch int8 dynamic", *SEARCHES) if name in found]
    parts = [f"{name} {percent(missed(record, found[name]))}" for name in others]
    mine = [found[name] for name in OURS if name in found]
    ours = percent(max(missed(record, entry) for entry in mine))
    proved = share([flag for entry in mine for flag in entry["proved"]])
    queries = record["settings"]["queries"]
    return (
        f"How often the top {k} is not the layer's own, of {queries} queries: {', '.join(parts)}; headlong {ours}, "
        f"with {percent(proved)} of the rows proved."
    )


def missed(record: Record, entry: Mapping[str, Any]) -> float:
    """Share of the queries with an id that is not among the best."""
    truth = record["truth"]["log_probs"]
    pairs = zip(entry.get("true", truth), (row[-1] for row in truth), strict=True)
    return 1 - share([all(value is not None and value >= least - TIE for value in row) for row, least in pairs])
