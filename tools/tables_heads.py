"""The tables of the pages on expressive heads: their order in language models, and what their steps cost."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from tables_records import left, lines, missing, record

from headlong.report.measured_on import measured_where, ran
from headlong.report.tables import ReportTable, markdown
from studies.papers.monotonic_softmax.beside_printed import SOFTMAX, places, products
from studies.papers.monotonic_softmax.talk import printed


def order(table: str) -> str:
    """Heads inside one recipe, beside the softmax."""
    trained = lines(f"ganea2019.{table}")
    found = places(table, trained)
    if not found:
        return _alone(trained) if trained else f"Not run yet: `python -m studies reproduce ganea2019:{table}`."
    corpus = table.partition("-")[0]
    rows = [
        (
            place.head, f"{place.parameters:,}", str(place.test.seeds), place.valid.shown(), place.test.shown(),
            *(_ratio(value) for value in (place.test.share, place.printed.talk, place.printed.again)),
            *(_ratio(value, 2) for value in (place.seconds.share, printed(corpus, place.head, "seconds an epoch").talk)),
            "" if place.verdict == "no figure" else place.verdict,
        )
        for place in found
        if place.head != SOFTMAX
    ]  # fmt: skip
    plain = next(place for place in found if place.head == SOFTMAX)
    first = (SOFTMAX, f"{plain.parameters:,}", str(plain.test.seeds), plain.valid.shown(), plain.test.shown(), *[""] * 6)
    titles = (
        "head", "parameters", "seeds", "valid", "test", "of the softmax's", "in the talk", "in a replication", "time",
        "time in the talk", "side",
    )  # fmt: skip
    return markdown(ReportTable("", titles, (first, *rows), _of(trained)))


def _ratio(value: float | None, digits: int = 3) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _of(trained: list[dict[str, Any]]) -> str:
    """Every day, build and type of products that rows are of."""
    kinds = Counter(products(line) or "a type that was not kept" for line in trained)
    said = " and ".join(f"{name} ({count} {'row' if count == 1 else 'rows'})" for name, count in kinds.items())
    where = f"{trained[0]['environment']['cpu']}, one thread, other programs ran. Products in {said}"
    times = "Time: processor seconds over the softmax's, of rows with the same products"
    return f"{where}. {times}. Rows are of {ran(line['environment'] for line in trained)}."


def _alone(trained: list[dict[str, Any]]) -> str:
    """Rows without the softmax's, which they would stand beside."""
    shown = {"parameters": ",.0f", "valid": ".1f", "test": ".1f", "cpu_seconds_per_epoch": ".0f"}
    rows = tuple(
        (*line["setting"].values(), *(format(line["got"][name], form) for name, form in shown.items())) for line in trained
    )
    titles = ("head", "seed", "parameters", "valid", "test", "processor seconds an epoch")
    where = f"{measured_where(trained[0]['environment'])}. All other rows are not run."
    return markdown(ReportTable("", titles, rows, where))


def curves() -> str:
    """Validation perplexity after each epoch of two trainings that differ in the head alone; one may have been stopped."""
    names = {"train-ptb-lstm": "softmax", "train-ptb-lstm-plif": "PLIF, 256 knots"}
    if text := missing(*names):
        return text
    found = {head: record(name) for name, head in names.items()}
    epochs = len(found["softmax"]["curve"])
    rows = {}
    for head, run in found.items():
        one = [entry["valid_perplexity"] for entry in run["curve"]]
        rows[head] = [*one, *[None] * (epochs - len(one)), run.get("test", {}).get("perplexity")]
    plain, curve = rows.values()
    rows["PLIF's over the softmax's"] = [mine and mine / base for base, mine in zip(plain, curve, strict=True)]
    shown = tuple(
        (head, *("–" if value is None else f"{value:.1f}" if value > 2 else f"{value:.3f}" for value in values))
        for head, values in rows.items()
    )
    types = ", ".join(f"{head} in {run['environment'].get('products', 'bfloat16')}" for head, run in found.items())
    where = f"Seed 1 of both; products: {types}; `results/train-ptb-lstm*.json`."
    return markdown(ReportTable("", ("after epoch", *map(str, range(1, epochs + 1)), "test"), shown, where))


def hierarchical(part: str = "") -> str:
    """Every head that was trained on one frozen backbone."""
    trained = lines(f"vlasova-softmax.hierarchical{part}")
    if not trained:
        return f"Not run yet: `python -m studies reproduce vlasova-softmax:hierarchical{part}`."
    rows = []
    for line in trained:
        got = line["got"]
        moved = f"{got['moved']:+.1f}%" if "moved" in got else "–"
        shown = (f"{got['top1']:.3f}", f"{got['top10']:.2f}", f"{got['rows']:,.0f}", f"{got['read']:.1%}")
        rows.append((line["setting"]["head"], f"{got['perplexity']:.1f}", moved, *shown))
    titles = ("head", "perplexity", "two passes more", "same best class", "of the best ten", "exact rows", "read")
    return markdown(ReportTable("", titles, tuple(rows), f"Rows are of {ran(line['environment'] for line in trained)}."))


def costs() -> str:
    """A step's time and memory, of the dense head's."""
    if text := missing("head-steps", "head-memory"):
        return text
    times, memory = record("head-steps"), record("head-memory")
    names = [*memory["memory_ratio"], *(name for name in times["time_ratio"] if name not in memory["memory_ratio"])]
    rows = [
        (name, *(f"{found[name]:.2f}" if name in found else "–" for found in (times["time_ratio"], memory["memory_ratio"])))
        for name in names
    ]
    shape = memory["shape"]
    where = f"V = {shape['vocab']:,}, N = {shape['rows']:,}, D = {shape['dim']}; {measured_where(times['environment'])}."
    return markdown(ReportTable("", ("head", "a step's time", "a step's memory"), tuple(rows), f"Of the dense head's. {where}"))


def reading() -> str:
    """A finished layer's links: time per query, speed of the linear layer's, and answers beside float64."""
    if text := missing("link-reading", "link-exact"):
        return text
    times, exact = record("link-reading"), record("link-exact")
    rows = []
    for name, microseconds in times["microseconds"].items():
        link, *kind = name.split(", ")
        rows.append((link, ", ".join(kind), f"{microseconds:.0f}", f"{times['speed_of_linear'][name]:.2f}"))
    said: dict[str, list[str]] = {}
    for name in dict.fromkeys(f"{link}, {kind.split(', ')[0]}" for link, kind, _, _ in rows):
        at = exact[name]
        found = f"{at['same_ids']:,} of {at['queries']:,} the same ten ids, {at['proved']:,} proved, "
        said.setdefault(f"{found}{at['lse_within']:,} normalisers within their error", []).append(name)
    each = "; ".join(f"{'each' if len(said) == 1 else ' and '.join(names)}: {text}" for text, names in said.items())
    caption = f"{measured_where(times['environment'])}. Beside float64, {each}."
    return markdown(
        ReportTable("", ("link", "preview, question", "µs a query", "of the linear layer's speed"), tuple(rows), caption)
    )


def mixture_reading() -> str:
    """The ten likeliest of a mixture: time of one query, and ids and bytes of the same question beside float64."""
    if text := missing("mixture-reading", "mixture-exact"):
        return text
    times, exact = record("mixture-reading"), record("mixture-exact")
    rows = []
    for name, microseconds in sorted(times["microseconds"].items(), key=lambda one: one[1]):
        mean, faster = times["mean_microseconds"][name] / 1000, times["over_best_dense"][name]
        held = exact.get(name)
        found = ("", "") if held is None else (
            f"{held['same_ids']:,} of {held['queries']:,}, {held['proved']:,} proved",
            f"{held['bytes']['median'] / 1e6:.1f} MB (mean {held['bytes']['mean'] / 1e6:.1f})",
        )  # fmt: skip
        rows.append((name.replace("dense", "PyTorch,"), f"{microseconds / 1000:.2f} ({mean:.2f})", f"{faster:.2f}", *found))
    titles = ("", "ms, median (mean)", "speed of the best dense", "same top 10", "reads")
    return markdown(ReportTable("", titles, tuple(rows), f"{measured_where(times['environment'])}."))


def frozen_experts() -> str:
    """One query's top 10 from frozen experts, beside torch's full softmax."""
    timed = [line for line in lines("liao2019.frozen") if line["setting"]["question"] == "time"]
    if not timed:
        return "No committed run yet: results/liao2019.frozen.jsonl holds no times."
    rows = [
        (line["setting"]["task"], name.replace("_", " "), f"{taken:,.0f}", f"{line['got']['torch'] / taken:.1f}×")
        for line in timed
        for name, taken in line["got"].items()
        if name != "threads"
    ]
    where = measured_where(timed[-1]["environment"])
    return markdown(ReportTable("", ("layer", "contestant", "µs a query", "over torch fp32"), tuple(rows), f"{where}."))


def expert_contents() -> str:
    """The smallest experts of each trained head: their most frequent words and those that few others hold."""
    if text := missing("liao2019.contents"):
        return text
    found = record("liao2019.contents")
    trained = sorted((run for run in found["runs"] if "held" in run), key=lambda run: run["classes"])
    rows = [
        (run["task"], f"{one['size']:,}", _words(one["words"][:7]), _words(one["own"][:10]))
        for run in trained
        for one in run["smallest"][:4]
    ]
    return left(ReportTable("", ("task", "classes", "most frequent", "those that the fewest other experts hold"), tuple(rows)))


def _words(words: list[str]) -> str:
    return " ".join(html.escape(word, quote=False).replace("|", "&#124;") for word in words)


def softmax_share() -> str:
    """The full softmax's part of each model, and how a class's frequency goes with the number of its experts."""
    if text := missing("liao2019.contents"):
        return text
    found = record("liao2019.contents")
    rows = []
    for run in sorted((run for run in found["runs"] if "held" in run), key=lambda run: run["classes"]):
        share, said = run["compute"], "–" if run["rank_correlation"] is None else f"{run['rank_correlation']:.2f}"
        published = "" if share["verdict"] == "no figure" else f"above 98%: {share['verdict']}"
        counts = (f"{run['classes']:,}", f"{share['softmax']:,}", f"{share['backbone']:,}")
        rows.append((run["task"], *counts, f"{share['share']:.1%}", published, f"{share['time_share']:.0%}", said))
    titles = (
        "task", "classes", "softmax", "backbone", "softmax's share", "published", "of the time", "rank correlation"
    )  # fmt: skip
    where = measured_where(found["environment"])
    return markdown(ReportTable("", titles, tuple(rows), f"Multiplications with weights, for one answer. {where}."))


def spectra() -> str:
    """Energy of the leading directions of several models' layers."""
    if text := missing("vlasova-softmax.spectra"):
        return text
    found = record("vlasova-softmax.spectra")
    kinds = {"plain": "", "centred": "less the mean row, ", "weighted": "that and weighted, "}
    columns = {f"{said}{part}": (kind, part) for kind, said in kinds.items() for part in ("D/16", "D/8", "D/4")}
    rows = [
        (
            f"{run['layer']}, {run['vocab']:,} x {run['dim']}", f"{run['mean_row_energy']:.1%}",
            *(f"{run[f'{kind}_energy'][part]:.1%}" for kind, part in columns.values()),
        )
        for run in found["runs"]
    ]  # fmt: skip
    titles = ("layer", "its mean row", *columns)
    return markdown(ReportTable("", titles, tuple(rows), f"{measured_where(found['environment'])}."))


def capacity() -> str:
    """Ranks of made and of trained heads."""
    if text := missing("ganea2019-trained"):
        return text
    found = record("ganea2019-trained")
    keys = ("softmax_rank", "press", "effective_0.001", "effective_0.0001", "effective_1e-05")
    rows = [(row["what"], row["head"], *(f"{row[key]:,}" for key in keys)) for row in found["rows"]]
    titles = ("layer", "head", "a softmax's most", "press", "effective, 1e-3", "1e-4", "1e-5")
    return markdown(ReportTable("", titles, tuple(rows), f"{measured_where(found['environment'])}."))


def capacity_of() -> str:
    """The winners of a trained layer."""
    if text := missing("capacity-wikitext2"):
        return text
    found = record("capacity-wikitext2")
    said = {"press rank": found["press_rank"], "a softmax's most": found["softmax_rank"]}
    said |= {f"effective rank, {eps}": rank for eps, rank in found["effective_rank"].items()}
    said |= {"can be first": found["can_be_first"], "never first": len(found["never_first"]), "open": len(found["open"])}
    return markdown(ReportTable("", tuple(said), (tuple(f"{value:,}" for value in said.values()),)))


BLOCKS: dict[str, Callable[[], str]] = {
    "heads-ptb": partial(order, "ptb"), "heads-ptb-curves": curves, "heads-ptb-early": partial(order, "ptb-early"),
    "heads-wikitext2-early": partial(order, "wikitext2-early"),
    "hierarchical": hierarchical,
    "hierarchical-wikitext2": partial(hierarchical, "-wikitext2"), "head-costs": costs,
    "link-reading": reading, "mixture-reading": mixture_reading, "capacity": capacity, "frozen-experts": frozen_experts,
    "capacity-wikitext2": capacity_of, "expert-contents": expert_contents, "softmax-share": softmax_share, "spectra": spectra,
}  # fmt: skip
