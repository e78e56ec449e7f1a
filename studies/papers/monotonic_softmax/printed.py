"""Every cell that the talk of Ganea et al. (2019) prints, and what stands beside it here.

Parameters are counted from our own model of the published shape: that is arithmetic, no outcome. Perplexities and times are
those of a smaller model, so they are stand-ins, whatever they come to. What the talk says and draws is in
``printed_in_text.py``; the figures themselves are in ``talk.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from studies.papers.cells import Cell, Expected, lines_of, unbuilt
from studies.papers.monotonic_softmax.beside_printed import beside
from studies.papers.monotonic_softmax.language_models import STEPS, TRAINED_HEADS, VOCABS, WORDS, classes_and_mixture
from studies.papers.monotonic_softmax.printed_in_text import said
from studies.papers.monotonic_softmax.talk import COLUMNS, ILLEGIBLE, TABLE, UNCLEAR, WHERE, printed

Lines = Mapping[str, list[Mapping[str, Any]]]
SIZES = (400, 1150, 1150, 400)
"""Widths of the published AWD-LSTM, whose embedding is tied to the output rows."""
CORPORA = {"ptb": "penn-treebank", "wikitext2": "wikitext-2"}
BRIEFLY = f"{STEPS} steps of 200 tokens"
RUNS = {
    "ptb": {"ptb": "LSTM 2 x 200, six epochs", "ptb-short": f"LSTM 2 x 64, {BRIEFLY}"},
    "wikitext2": {"wikitext2-short": f"LSTM 2 x 64, {BRIEFLY}, {WORDS:,} words"},
}
"""The trainings of each corpus, the longest first."""


def cells(results: Path) -> Iterator[Cell]:
    """Every printed cell, from the runs that ``results`` holds."""
    for corpus, rows in TABLE.items():
        lines = {about: lines_of(results / f"ganea2019.{table}.jsonl") for table, about in RUNS[corpus].items()}
        for head, figures in rows.items():
            for column, value in zip(COLUMNS, figures, strict=True):
                if column == COLUMNS[0]:
                    yield _counted(corpus, head, value)
                else:
                    yield _trained(corpus, head, column, value, lines)
    corpus, head = ILLEGIBLE
    note = "cannot be read in our copy of the talk, so there is nothing to compare a row with"
    yield Cell(_what(corpus, head, "the whole row"), "illegible", "–", "not run", note)
    yield from said(results)


def _what(corpus: str, head: str, column: str) -> str:
    return f"{corpus}, {head}, {column} ({WHERE['results']})"


def _counted(corpus: str, head: str, value: float) -> Cell:
    """By arithmetic where it is the printed count, to its last digit."""
    vocab = VOCABS[CORPORA[corpus]]
    ours = awd_parameters(vocab, head) / 1e6
    half = 0.5 if value == round(value) else 0.05
    what = _what(corpus, head, COLUMNS[0])
    if Expected(value, value, half).verdict(ours) == "matched":
        return Cell(what, f"{value:g}", f"{ours:.2f}", "by arithmetic", "counted in our model of the published shape")
    if "PLIF" in head:
        note = "printed as if it had two vectors as long as the knots; ours is one"
    elif "MoS" in head:
        more = ours - awd_parameters(vocab, "softmax") / 1e6
        note = f"printed as the softmax's; fifteen components add {more:.1f}"
    else:
        note = "printed without a digit behind the point, and cut rather than rounded"
    return Cell(what, f"{value:g}", f"{ours:.2f}", "differs", note)


def awd_parameters(vocab: int, head: str) -> int:
    """Of the published AWD-LSTM (400, 1150, 1150, 400, tied) with one of ``language_models.TRAINED_HEADS``."""
    knots: int = TRAINED_HEADS[head].get("knots", 0)
    layers = sum(4 * after * (size + after + 2) for size, after in pairwise(SIZES))
    return layers + classes_and_mixture(head, SIZES[0], vocab) + knots


def _takes(corpus: str, head: str) -> str:
    """What a row of the table takes, and the command that runs what we have in its place."""
    return f'takes 500 epochs of an AWD-LSTM; in minutes: `reproduce ganea2019:{corpus}-short --rows "head={head} seed"`'


def _trained(corpus: str, head: str, column: str, value: float, lines: Lines) -> Cell:
    """From the longest training that has the head, with the ratio to its softmax beside the printed one."""
    what, shown = _what(corpus, head, column), f"{value:g}"
    unclear = UNCLEAR.get((corpus, head, column))
    for about, rows in lines.items():
        found = beside(rows, head, column)
        if found is None:
            continue
        ratio = printed(corpus, head, column) or math.nan
        seeds = f"{found.seeds} seeds" if found.seeds > 1 else "one seed"
        ours, note = found.shown(), f"{about}, {seeds}" + unbuilt(row for row in rows if row["setting"]["head"] == head)
        if column == COLUMNS[3]:
            ours, note = f"{found.shown(0)} s of a processor", f"{note}; this machine ran other programs"
        if math.isnan(found.share):
            note += "; no softmax to compare it with"
        elif head != "softmax":
            note += f"; {found.share:.3f} of the softmax's (seeds in common: {found.pairs}), printed {ratio:.3f}"
        return Cell(what, shown, ours, "stand-in", f"{note}; {unclear}" if unclear else note)
    takes = _takes(corpus, head)
    return Cell(what, shown, "–", "not run", f"{takes}; {unclear}" if unclear else takes)
