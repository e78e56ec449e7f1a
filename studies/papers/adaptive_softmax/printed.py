"""What is printed of AdaptiveSoftmax (Baharav et al. 2024), and what stands beside each figure here.

Two sources, named in every cell: a public review of the paper (``review``), which has one gain of its tables and describes its
figures, and interim logs of the authors (``logs``), which have the tables of language models; their final figures were not to
be had. The sizes of the made-up layers, and how the estimators of the variance figure differ, are from notes on the paper
(``notes``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.papers.adaptive_softmax.synthetic import DIMS
from studies.papers.adaptive_softmax.tables import LOGS
from studies.papers.adaptive_softmax.variance import OTHERS
from studies.papers.cells import Cell, lines_of
from studies.papers.verdicts import verdict_on

Lines = Sequence[Mapping[str, Any]]
CLASSIFIERS: tuple[tuple[str, str, str, str, str, str], ...] = (
    ("EuroSAT, gain at one of the deltas (review)", "5.18", "eurosat", "0.1", "gain", "delta 10 %; "),
    ("EuroSAT, gain at delta 1 % (logs)", "4.55", "eurosat", "0.01", "gain", ""),
    ("EuroSAT, successes at delta 1 % (logs)", "98.4", "eurosat", "0.01", "success", ""),
    ("MNIST, gain at delta 1 % (logs)", "8.2", "mnist", "0.01", "gain", ""),
    ("MNIST, successes at delta 1 % (logs)", "99.4 to 99.6", "mnist", "0.01", "success", ""),
)
"""What is printed, its value, the table of ours, its delta and metric, and what else is to be said of ours."""
MADE = {
    "mnist": "the paper's network, trained on 6,000 images of 60,000",
}
MODELS = "language models, entries read: more than 10 times fewer on most (notes)"
STAGES = {"the normaliser's stage alone, gain": "160", "the stage of the best class alone, gain": "32.7"}
"""Of Mistral-7B on WikiText-2 at a delta of 10 %."""
LIKELIEST = {
    "wikitext2": {"gpt2": 0.29, "llama3-8b": 0.53, "mistral-7b": 0.60, "gemma-7b": 0.84},
    "ptb": {"gpt2": 0.27, "llama3-8b": 0.38, "mistral-7b": 0.36, "gemma-7b": 0.69},
}
"""Median probability of the likeliest class."""
NO_COUNT = "our rows do not count it yet"
SAID = {
    "a": ("(a): sublinear", "drawn"),
    "a, again": ("(a): 'scales with d, as expected'", "drawn"),
    "b": ("(b): independent of D", "drawn"),
}
"""What the review says of the two curves."""
OURS = "a transformer's layer of ours (33,278 x 512) in place of Mistral-7B's"


def cells(results: Path) -> Iterator[Cell]:
    """Every printed figure, from the runs that ``results`` holds."""

    def held(table: str) -> Lines:
        return lines_of(results / f"baharav2024.{table}.jsonl")

    yield from _synthetic(held("synthetic"))
    for what, printed, table, delta, metric, note in CLASSIFIERS:
        got = _found(held(table), {"variant": "published", "delta": delta})
        if got is None:
            takes = "takes the classifier: `reproduce baharav2024:nets OUT`, then `...:mnist`"
            takes = takes if table == "mnist" else "takes VGG19 with ImageNet's weights, trained on EuroSAT"
            yield Cell(what, printed, "–", "not run", takes)
        else:
            reached = "at least what is printed" if got[metric] >= float(printed.split()[0]) else "less than printed"
            yield Cell(what, printed, f"{got[metric]:.3g}", "stand-in", f"{reached}; {note}{MADE[table]}")
    for (model, text), (_, rows) in LOGS.items():
        lines = held(f"{model}-{text}")
        for chance, *values in rows:
            for name, value in zip(("gain", "success"), values, strict=True):
                yield _language(f"{model}, {text}, delta {chance:.0%}, {name} (logs)", value, name, chance, lines)
    yield Cell("Mistral-7B, WikiText, 'up to 30x' (review)", "30", "–", "not run", "takes its weights, as above")
    yield from _in_notes()
    yield from _drawn(held("entries"), held("variance"))


def _in_notes() -> Iterator[Cell]:
    """What notes have of language models beside the tables."""
    yield Cell(MODELS, "above 10 on most", "–", "not run", "takes the weights of all four models, as above")
    for what, printed in STAGES.items():
        takes = f"takes its weights; {NO_COUNT}"
        yield Cell(f"Mistral-7B, WikiText, delta 10%, {what} (notes)", printed, "–", "not run", takes)
    for text, models in LIKELIEST.items():
        for model, median in models.items():
            takes = f"takes the weights (`python -m studies reproduce baharav2024:{model}-{text} --model FOLDER`); {NO_COUNT}"
            what = f"median probability of the likeliest class, {model}, {text} (notes)"
            yield Cell(what, f"{median:g}", "–", "not run", takes)


def _found(lines: Lines, setting: Mapping[str, str]) -> Mapping[str, float] | None:
    return next((line["got"] for line in lines if setting.items() <= line["setting"].items()), None)


def _synthetic(lines: Lines) -> Iterator[Cell]:
    """The classes, trials and range of D are those of notes: the review describes the curves without them, and of (a) in two
    ways that do not agree. No number is printed for either curve, so neither gets "matched"."""
    a, b = (_found(lines, {"panel": panel, "dim": "scaling"}) for panel in "ab")
    gains = {dim: got["gain"] for dim in DIMS if (got := _found(lines, {"panel": "b", "dim": str(dim)})) is not None}
    named = "made-up layers, D = 1e3 to 1e6 (notes)"
    if a is None or b is None or DIMS[-1] not in gains:
        takes = "takes a minute: `python -m studies reproduce baharav2024:synthetic`"
        for what, printed in (*SAID.values(), ("(b): gain", "above 29")):
            yield Cell(f"{named}, {what} (review)", printed, "–", "not run", takes)
        return
    for claim, got in (("a", a), ("a, again", a), ("b", b)):
        slopes = [got[f"slope_1e{power}"] for power in (3, 4, 5)]
        ours = "powers of D, decade by decade: " + ", ".join(f"{slope:.2f}" for slope in slopes)
        note = f"{got['least']:.0f} to {got['most']:.0f} samples a class while D grows a thousandfold"
        status = "stand-in" if claim != "a, again" else verdict_on(all(round(slope, 2) > 0 for slope in slopes))
        note += "; the review says of (a) both this and that it is sublinear" if claim == "a, again" else "; sizes from notes"
        what, printed = SAID[claim]
        yield Cell(f"{named}, {what} (review)", printed, ours, status, note)
    top, above = gains[DIMS[-1]], [dim for dim, gain in gains.items() if gain > 29]
    note = f"at the largest D, {DIMS[-1]:,}, 100 trials; at which D it is printed is not known"
    note += f", ours is above 29 from D = {above[0]:,} on" if above else ""
    yield Cell(f"{named}, (b): gain (review)", "above 29", f"{top:.0f}", "stand-in", note)


def _language(what: str, printed: float, metric: str, delta: float, lines: Lines) -> Cell:
    got = _found(lines, {"variant": "published", "delta": f"{delta:g}"})
    if got is None:
        table = what.split(", delta")[0].replace(", ", "-")
        takes = f"takes the weights: `python -m studies reproduce baharav2024:{table} --model FOLDER`"
        return Cell(what, f"{printed:g}", "–", "not run", takes)
    line = next(line for line in lines if line["setting"] == {"variant": "published", "delta": f"{delta:g}"})
    return Cell(what, f"{printed:g}", f"{got[metric]:.3g}", line["verdict"][metric], "the text's tokens as our corpus has them")


def _drawn(entries: Lines, variance: Lines) -> Iterator[Cell]:
    """The figures that are described and print no number."""
    signs, terms = (_found(entries, {"drawn": name}) for name in ("importance", "importance, cross terms"))
    what = "figure of entries (a): signs symmetrical, A and x uncorrelated (review)"
    if signs is None or terms is None:
        takes = "takes our layer: `python -m studies reproduce baharav2024:entries`"
        yield Cell(what, "drawn", "–", "not run", takes)
        yield Cell("figure of entries (b): cross terms near 0 (review)", "drawn", "–", "not run", takes)
    else:
        said = f"A x above 0: {signs['product_positive']:.1%}; correlation {signs['correlation']:.3f}"
        note = f"{OURS}, {signs['entries']:,.0f} entries of classes at random: {_skewed(signs)}"
        yield Cell(what, "drawn", said, "stand-in", note)
        said = f"{terms['within_thousandth']:.1%} within 1/1000 of the single terms' sum"
        yield Cell("figure of entries (b): cross terms near 0 (review)", "drawn", said, "stand-in", OURS)
    yield from _variances({(row["setting"]["estimator"], row["setting"]["m"]): row["got"] for row in variance})


def _skewed(signs: Mapping[str, float]) -> str:
    """Whether the entries could lie this far from half and from 0 by chance: four standard errors. Each x stands beside the A
    of ``OTHERS`` classes, so there are no more independent pairs than there are x."""
    error = 1 / math.sqrt(signs["entries"] / OTHERS)
    far = abs(signs["product_positive"] - 0.5) > 4 * error / 2 or abs(signs["correlation"]) > 4 * error
    return "not as described, these are neither symmetrical nor uncorrelated" if far else "as described, within chance"


def _variances(got: Mapping[tuple[str, str], Mapping[str, float]]) -> Iterator[Cell]:
    lower = "figure of variances: the new method lowers the MSE, most with many samples (review)"
    stated = "figure of variances: what the new estimate states follows the error, others' does not (notes)"
    if not got:
        for what in (lower, stated):
            yield Cell(what, "drawn", "–", "not run", "takes our layer: `python -m studies reproduce baharav2024:variance`")
        return
    ratios = {m: got["importance, kept", m]["mse"] / got["importance, replaced", m]["mse"] for m in ("16", "504")}
    said = "; ".join(f"m = {m} of 512: {ratio:.2g}" for m, ratio in ratios.items())
    note = f"of the error of importance sampling with replacement; what is stated has no part in it; {OURS}"
    yield Cell(lower, "drawn", said, "stand-in", note)
    shown = [f"{name} {found['ratio']:.2g}" for (name, m), found in got.items() if m == "504" and "importance" in name]
    yield Cell(stated, "drawn", "; ".join(shown), "stand-in", f"stated over true variance at m = 504 of 512; {OURS}")
