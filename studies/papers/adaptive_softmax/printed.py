"""What is printed of AdaptiveSoftmax (Baharav et al. 2024), and what stands beside each figure here.

Two sources, named in every cell: a public review of the paper (``review``), which has one gain of its tables and describes its
figures, and interim logs of the authors (``logs``), which have the tables of language models: every one of those cells follows
from their own rows (``logs.py``); their final figures were not to be had. The sizes of the made-up layers are from notes on
the paper (``notes``). SmolLM2-135M-Instruct stands for GPT-2; figures of it are stand-ins, whatever they come to.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies.papers import judged
from studies.papers.adaptive_softmax.synthetic import DIMS
from studies.papers.adaptive_softmax.tables import LARGE, LOGS, NETWORKS
from studies.papers.cells import Cell, lines_of, verdict_on

Lines = Sequence[Mapping[str, Any]]
CLASSIFIERS: tuple[tuple[str, str, str, str, str], ...] = (
    ("EuroSAT, gain at one of the deltas (review)", "5.18", "eurosat", "", "gain"),
    ("EuroSAT, gain at delta 1 % (logs)", "4.55", "eurosat", "0.01", "gain"),
    ("EuroSAT, successes at delta 1 % (logs)", "98.4", "eurosat", "0.01", "success"),
    ("MNIST, gain at delta 1 % (logs)", "8.2", "mnist", "0.01", "gain"),
    ("MNIST, successes at delta 1 % (logs)", "99.4 to 99.6", "mnist", "0.01", "success"),
)
"""What is printed, its value, the table of ours, its delta (empty: which one is not known) and metric."""
STAGES = {
    "normaliser_gain": ("the normaliser's stage alone, gain", "160"),
    "argmax_gain": ("the stage of the best class alone, gain", "32.7"),
}
"""Of Mistral-7B on WikiText-2 at a delta of 10 %."""
STANDS = {("gpt2", text): (f"smollm2-{text}", "GPT-2") for text in ("wikitext2", "ptb")} | {
    (model, "wikitext2"): (f"{name}-wikitext2", printed) for name, (_, _, printed, model) in LARGE.items()
}
"""The table that stands for a printed model's, and what the model is called."""
LIKELIEST = {
    "wikitext2": {"gpt2": 0.29, "llama3-8b": 0.53, "mistral-7b": 0.60, "gemma-7b": 0.84},
    "ptb": {"gpt2": 0.27, "llama3-8b": 0.38, "mistral-7b": 0.36, "gemma-7b": 0.69},
}
"""Median probability of the likeliest class."""


def cells(results: Path) -> Iterator[Cell]:
    """Every printed figure, from the runs that ``results`` holds."""

    def held(table: str) -> Lines:
        return lines_of(results / f"baharav2024.{table}.jsonl")

    yield from _synthetic(held("synthetic"))
    for what, printed, table, delta, metric in CLASSIFIERS:
        lines = [
            line for line in held(table)
            if line["setting"]["variant"] == "published" and delta in ("", line["setting"]["delta"])
        ]  # fmt: skip
        if not lines:
            takes = f"takes a network: `reproduce baharav2024:nets {table} OUT`, then `...:{table}`"
            yield Cell(what, printed, "–", "not run", takes)
        else:
            values = sorted(line["got"][metric] for line in lines)
            reached = "at least what is printed" if values[0] >= float(printed.split()[0]) else "less than printed"
            reached = f"at {len(values)} deltas" if delta == "" else reached
            ours = " to ".join(f"{value:.3g}" for value in dict.fromkeys((values[0], values[-1])))
            yield Cell(what, printed, ours, "stand-in", f"{reached}; {NETWORKS[table]}: {_named(lines[0])}")
    file = results / "baharav2024.logs.json"
    logs = json.loads(file.read_text(encoding="utf-8"))["runs"] if file.is_file() else []
    for (model, text), (_, rows) in LOGS.items():
        for chance, *values in rows:
            theirs: Mapping[str, float] = next(
                (run for run in logs if (run["model"], run["data"], run["delta"]) == (model, text, f"{chance:g}")), {}
            )
            for name, value in zip(("gain", "success"), values, strict=True):
                what = f"{model}, {text}, delta {chance:.0%}, {name} (logs)"
                yield _language(what, value, (model, text, name), chance, results, theirs.get(name))
    tenth = {key: _line(held(table), {"variant": "published", "delta": "0.1"}) for key, (table, _) in STANDS.items()}
    yield from _beside_tables(tenth)
    yield from _drawn(held("entries"), held("variance"))


def _language(what: str, printed: float, key: tuple[str, str, str], delta: float, results: Path, theirs: float | None) -> Cell:
    """The printed model's own rows are judged; those of a smaller one that is at hand stand for them."""
    model, text, name = key
    again = "" if theirs is None else f"; their rows give {theirs:.4g}"
    setting = {"variant": "published", "delta": f"{delta:g}"}
    for line in judged(f"baharav2024:{model}-{text}", results):
        if setting.items() <= line["setting"].items() and line["verdict"][name] in ("matched", "differs"):
            return Cell(
                what, f"{printed:g}", f"{line['got'][name]:.3g}", line["verdict"][name], f"the text as our corpus has it{again}"
            )
    table, called = STANDS.get((model, text), ("", ""))
    other = _line(lines_of(results / f"baharav2024.{table}.jsonl"), setting)
    if other is not None:
        note = f"{_named(other)} in place of {called}, {other['got']['queries']:.0f} queries{again}"
        return Cell(what, f"{printed:g}", f"{other['got'][name]:.3g}", "stand-in", note)
    takes = f"takes the weights: `python -m studies reproduce baharav2024:{model}-{text} --model FOLDER`"
    return Cell(what, f"{printed:g}", "–", "not run", takes + again)


def _beside_tables(tenth: Mapping[tuple[str, str], Mapping[str, Any] | None]) -> Iterator[Cell]:
    """Statements about language models beside the tables."""
    yield Cell("Mistral-7B, WikiText, 'up to 30x' (review)", "30", "–", "not run", "takes its weights, as above")
    yield Cell(
        "language models, entries read: more than 10 times fewer on most (notes)", "above 10 on most", "–", "not run",
        "takes the weights of all four models, as above",
    )  # fmt: skip
    line = tenth["gpt2", "wikitext2"]
    for name, (what, printed) in STAGES.items():
        what = f"Mistral-7B, WikiText, delta 10%, {what} (notes)"
        if line is None:
            yield Cell(what, printed, "–", "not run", "takes its weights; or `reproduce baharav2024:smollm2-wikitext2`")
        else:
            note = f"{_named(line)} in place of Mistral-7B; GPT-2's are 9.98 and 13.4 in the authors' rows"
            yield Cell(what, printed, f"{line['got'][name]:.3g}", "stand-in", note)
    for text, models in LIKELIEST.items():
        for model, median in models.items():
            what, mine = f"median probability of the likeliest class, {model}, {text} (notes)", tenth.get((model, text))
            if mine is not None:
                yield Cell(what, f"{median:g}", f"{mine['got']['median_probability']:.3f}", "stand-in", _named(mine))
            else:
                takes = f"takes the weights (`python -m studies reproduce baharav2024:{model}-{text} --model FOLDER`)"
                yield Cell(what, f"{median:g}", "–", "not run", takes)


def _line(lines: Lines, setting: Mapping[str, str]) -> Mapping[str, Any] | None:
    return next((line for line in lines if setting.items() <= line["setting"].items()), None)


def _found(lines: Lines, setting: Mapping[str, str]) -> Mapping[str, float] | None:
    return (_line(lines, setting) or {}).get("got")


def _named(line: Mapping[str, Any]) -> str:
    """The model that a row was measured on, and the shape of its layer, as the row has them."""
    model = line["model"]
    return f"{model['name']} ({model['vocab']:,} x {model['dim']})"


SAID = {
    "a": ("(a): sublinear", "drawn"),
    "a, again": ("(a): 'scales with d, as expected'", "drawn"),
    "b": ("(b): independent of D", "drawn"),
}
"""What the review says of the two curves."""
DECADES = (3.0, 4.0, 5.0, 6.0)
"""Powers of ten of D, between which the curves' slopes are taken; between two rows of the table on a straight line."""


def _synthetic(lines: Lines) -> Iterator[Cell]:
    """The classes, trials and range of D are those of notes: the review describes the curves without them, and of (a) in two
    ways that do not agree. No number is printed for either curve, so neither gets "matched"."""
    drawn = {panel: [_found(lines, {"panel": panel, "dim": str(dim)}) for dim in DIMS] for panel in "ab"}
    a, b = ([got for got in found if got is not None] for found in drawn.values())
    named = "made-up layers, D = 1e3 to 1e6 (notes)"
    if min(len(a), len(b)) < len(DIMS):
        takes = "takes a minute: `python -m studies reproduce baharav2024:synthetic`"
        for what, printed in (*SAID.values(), ("(b): gain", "above 29")):
            yield Cell(f"{named}, {what} (review)", printed, "–", "not run", takes)
        return
    for claim, got in (("a", a), ("a, again", a), ("b", b)):
        samples = [one["samples"] for one in got]
        slopes = [round(float(slope), 2) + 0.0 for slope in np.diff(np.interp(DECADES, np.log10(DIMS), np.log10(samples)))]
        ours = "powers of D, decade by decade: " + ", ".join(f"{slope:.2f}" for slope in slopes)
        note = f"{min(samples):.0f} to {max(samples):.0f} samples a class while D grows a thousandfold"
        status = "stand-in" if claim != "a, again" else verdict_on(min(slopes) > 0)
        note += "; the review says of (a) both this and that it is sublinear" if claim == "a, again" else "; sizes from notes"
        what, printed = SAID[claim]
        yield Cell(f"{named}, {what} (review)", printed, ours, status, note)
    top, above = b[-1]["gain"], [dim for dim, got in zip(DIMS, b, strict=True) if got["gain"] > 29]
    note = f"at the largest D, {DIMS[-1]:,}, 100 trials; at which D it is printed is not known"
    note += f", ours is above 29 from D = {above[0]:,} on" if above else ""
    yield Cell(f"{named}, (b): gain (review)", "above 29", f"{top:.0f}", "stand-in", note)


def _drawn(entries: Lines, variance: Lines) -> Iterator[Cell]:
    """The figures that are described and print no number."""
    signs = {kind: _found(entries, {"drawn": kind}) for kind in ("evenly", "by importance")}
    terms = _found(entries, {"drawn": "by importance, cross terms"})
    what = "figure of entries (a): signs symmetrical, A and x uncorrelated (review)"
    crossed = "figure of entries (b): cross terms near 0 (review)"
    if terms is None:
        takes = "takes SmolLM2's wheel: `python -m studies reproduce baharav2024:entries`"
        yield from (Cell(one, "drawn", "–", "not run", takes) for one in (what, crossed))
    else:
        shown = "{}: A x above 0 {product_positive:.1%}, correlation {correlation:.3f}"
        said = [shown.format(kind, **got) for kind, got in signs.items() if got]
        ours = f"{_named(entries[0])} in place of Mistral-7B"
        yield Cell(what, "drawn", "; ".join(said), "stand-in", f"{ours}; {_skewed(signs)}")
        yield Cell(crossed, "drawn", f"{terms['within_thousandth']:.1%} within 1/1000 of single terms' sum", "stand-in", ours)
    lower = "figure of variances: the new method lowers the MSE, most with many samples (review)"
    stated = "figure of variances: what the new estimate states follows the error, others' does not (notes)"
    if not variance:
        takes = "takes SmolLM2's wheel: `python -m studies reproduce baharav2024:variance`"
        yield from (Cell(one, "drawn", "–", "not run", takes) for one in (lower, stated))
        return
    without, replaced = "MSE [imp] [wor]", "MSE [imp] [wr]"
    first, last, ours = variance[0], variance[-2], f"{_named(variance[0])} in place of Mistral-7B"
    less = [f"m = {line['setting']['m']}: {line['got'][without] / line['got'][replaced]:.2g}" for line in (first, last)]
    yield Cell(lower, "drawn", "; ".join(less), "stand-in", f"of the error with replacement; {ours}")
    said = [
        f"{name} {last['got'][name] / last['got'][without]:.2g}" for name in ("New variance estimate", "Variance [imp] [fpc]")
    ]
    note = f"stated over the error at m = {last['setting']['m']}; {ours}"
    yield Cell(stated, "drawn", "; ".join(said), "stand-in", note)


def _skewed(signs: Mapping[str, Mapping[str, float] | None]) -> str:
    """Whether so many entries could lie this far from half by chance: four standard errors."""
    far = [kind for kind, got in signs.items() if got and abs(got["product_positive"] - 0.5) > 2 / math.sqrt(got["entries"])]
    return f"signs are not symmetrical {' and '.join(far)}" if far else "as described, within chance"
