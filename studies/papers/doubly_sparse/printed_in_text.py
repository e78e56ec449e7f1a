"""What the doubly sparse poster prints outside its table, and what stands beside it (Liao et al. 2019).

Sizes of the four layers, the softmax's share of a model, what a rival saves, "without loss of performance", "even boosts
language modelling performance", "higher frequency words appear in more experts", and the smallest expert, its size and words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from studies.papers.cells import Cell
from studies.papers.verdicts import verdict_on

Line = Mapping[str, Any]
CLASSES = {
    "ptb": ("PTB", 10_000), "wikitext2": ("Wiki-2", 33_278), "multi30k": ("En-Ve", 7_709), "characters": ("CASIA", 3_740),
}  # fmt: skip
BOOSTS = {"ptb": (0.006, "PTB"), "wikitext2": (0.002, "Wiki-2")}
"""Top-1 of 64 experts less the full softmax's, from the poster's table."""
LOSSES = {"ptb": (1, 4, "PTB"), "wikitext2": (1, 4, "Wiki-2"), "multi30k": (1, 2, "En-Ve"), "characters": (100, 2, "CASIA")}
"""Of 64 experts' value less the full softmax's: what it is multiplied by to be in the poster's unit, digits, name."""
WORDS = {
    "money": "money million billion trillion earnings share rate stake bond cents bid cash fine payable",
    "time": "years while since before early late yesterday annual currently monthly annually monday tuesday wednesday "
    "thursday friday",
    "comparison": "up down under above below next though against during within including range higher lower drop rise growth "
    "increase less compared unchanged",
}
"""Of the smallest expert on Penn Treebank, by the poster's headings."""
STANDS = {"multi30k": "Multi30k, English to German"}
RIVAL = "takes that program; other graph indexes are timed beside us in docs/beside.md"
TAKES = "takes trained layers: `python -m studies reproduce liao2019:contents`"


def said(results: Path, learned: Sequence[Line], seeded: Sequence[Line]) -> Iterator[tuple[str, Cell]]:
    """Each cell, and the part of the poster that prints it."""
    file = results / "liao2019.contents.json"
    runs = json.loads(file.read_text(encoding="utf-8"))["runs"] if file.is_file() else []
    found = {run["task"]: run for run in runs}
    for task in CLASSES:
        yield "Result - Real Dataset", _classes(task, found.get(task))
    problem = "Softmax Inference Problem"
    yield problem, _share(found.get("wikitext2"))
    yield problem, Cell("Fast Graph Decoder at high accuracy, times faster", "about 2", "", "not run", RIVAL)
    yield "Result - Real Dataset", _loss(learned, seeded)
    for task in BOOSTS:
        yield "Result - Real Dataset", _boost(task, learned, seeded)
    for cell in _contents(found.get("ptb")):
        yield "Result - Interpretation", cell


def _loss(learned: Sequence[Line], seeded: Sequence[Line]) -> Cell:
    """ "Without loss of performance" in three tasks and four data sets, beside the poster's own table."""
    what, printed = "ds-64 less full in all four tasks", "no loss"
    shown, less = [], []
    for task, (unit, digits, name) in LOSSES.items():
        metric = "bleu" if task == "multi30k" else "top1"
        values, found = (_by_method(lines, task, metric) for lines in (seeded, learned))
        if values.get("full") and values.get("seeded-64"):
            shown.append(f"{name} {(fmean(values['seeded-64']) - fmean(values['full'])) * unit:+.{digits}f}")
        most = max((int(method[3:]) for method in found if method.startswith("ds-")), default=0)
        if most and found.get("full"):
            less.append(f"{name} {(fmean(found[f'ds-{most}']) - fmean(found['full'])) * unit:+.{digits}f} ({most} experts)")
    if not shown:
        return Cell(what, printed, "", "not run", TAKES)
    note = "seeded, not learned, and other data for En-Ve and CASIA; the poster's own table has +0.006, +0.002, -0.2 and -0.5"
    note += f"; learned, as many as there are: {', '.join(less)}" if less else ""
    return Cell(what, printed, ", ".join(shown), "stand-in", note)


def _by_method(lines: Sequence[Line], task: str, metric: str) -> dict[str, list[float]]:
    """Of each method of a task, the values of all its rows."""
    found: dict[str, list[float]] = {}
    for line in lines:
        if line["setting"]["task"] == task and metric in line["got"]:
            found.setdefault(line["setting"]["method"], []).append(line["got"][metric])
    return found


def _classes(task: str, run: Line | None) -> Cell:
    name, printed = CLASSES[task]
    what = f"{name}, classes"
    if run is None:
        return Cell(what, f"{printed:,}", "", "not run", TAKES)
    note = STANDS.get(task, "")
    status = "by arithmetic" if run["classes"] == printed and not note else "stand-in"
    return Cell(what, f"{printed:,}", f"{run['classes']:,}", status, note)


def _share(run: Line | None) -> Cell:
    """Multiplications of the softmax over those of the whole model, for one word."""
    what = "Wiki-2, two recurrent layers of 200: the softmax's share of the computation"
    if run is None:
        return Cell(what, "above 98%", "", "not run", TAKES)
    compute = run["compute"]
    plain = compute["softmax"] / (compute["softmax"] + 4 * 200**2)
    note = f"of an LSTM's multiplications; with two plain recurrent layers it would be {plain:.1%}"
    return Cell(what, "above 98%", f"{compute['share']:.1%}", verdict_on(compute["share"] > 0.98), note)


def _boost(task: str, learned: Sequence[Line], seeded: Sequence[Line]) -> Cell:
    """"Even boost language modelling performance": a claim that takes seeds."""
    printed, name = BOOSTS[task]
    what = f"{name}, ds-64 less full, accuracy"
    mine = [line for line in learned if line["setting"]["task"] == task and line["setting"]["method"] == "ds-64"]
    if mine:
        gains = [line["got"]["gain"] for line in mine]
        spread = f" ± {stdev(gains):.4f}" if len(gains) > 1 else ""
        status = verdict_on(all(line["verdict"].get("gain") == "matched" for line in mine))
        return Cell(what, f"{printed:+g}", f"{fmean(gains):+.4f}{spread}", status, f"learned, seeds: {len(gains)}")
    top = {line["setting"]["method"]: line["got"]["top1"] for line in seeded if line["setting"]["task"] == task}
    if not {"full", "seeded-64"} <= set(top):
        return Cell(what, f"{printed:+g}", "", "not run", "takes a trained layer: `reproduce liao2019:learned`")
    return Cell(what, f"{printed:+g}", f"{top['seeded-64'] - top['full']:+.4f}", "stand-in", "seeded, not learned")


def _contents(run: Line | None) -> Iterator[Cell]:
    frequent, smallest = "PTB, higher frequency words appear in more experts", "PTB, words of the smallest expert"
    if run is None:
        yield Cell(frequent, "drawn", "", "not run", TAKES)
        yield Cell(smallest, "64", "", "not run", TAKES)
        for about in WORDS:
            yield Cell(_words_of(about), f"{len(WORDS[about].split())} words", "", "not run", TAKES)
        return
    yield Cell(frequent, "drawn", f"rank correlation {run['rank_correlation']:.2f}", "stand-in", "drawn, of seeded experts")
    words = ", ".join(run["smallest"][0]["words"]).replace("<", "&lt;")
    yield Cell(smallest, "64", str(run["smallest"][0]["size"]), "stand-in", f"of seeded experts: {words}")
    held = {word.lower() for word in run["smallest"][0]["words"]}
    for about, listed in WORDS.items():
        there = [word in held for word in listed.split()]
        note = "in our smallest expert, which is seeded"
        yield Cell(_words_of(about), f"{len(there)} words", f"{sum(there)} of them", "stand-in", note)


def _words_of(about: str) -> str:
    return f"PTB, smallest expert, words of {about}"
