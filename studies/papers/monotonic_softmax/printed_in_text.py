"""What the talk of Ganea et al. (2019) says and draws outside its table, and what stands beside it here.

A statement that follows from the shape of a softmax alone (its rank) is "by arithmetic". The synthetic study prints curves
without values: a cell for each figure, drawn here as well.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path

from studies.papers.cells import Cell, lines_of, verdict_on
from studies.papers.monotonic_softmax.beside_printed import SOFTMAX, beside
from studies.papers.monotonic_softmax.talk import WHERE

CLAIMS = {
    f"MoS, time of the softmax's ({WHERE['mixture']})": "2 to 6.4",
    f"MoS, memory ({WHERE['mixture']})": "N x M x K",
    f"PLIF, memory ({WHERE['curve']})": "N x M, comparable",
    f"PLIF, time of the softmax's ({WHERE['curve']})": "comparable",
    f"monotone network, K = 1,000 or more, memory ({WHERE['curve']})": "N x M x K",
}
"""What is said of a step, and as what."""
LIMIT = f"softmax: rank of the log-probabilities ({WHERE['bottleneck']})"
FREE = f"softmax of an increasing function: rank not so limited ({WHERE['theorem']})"
SIGMOID = f"SigSoftmax over the softmax ({WHERE['sigmoid']})"
DRAWN = (
    ("0.01", "mode_match", " %", "modes matched over d, alpha = 0.01"),
    ("0.1", "mode_match", " %", "similar results for other alphas"),
    ("0.01", "cross_entropy", "", "similar results for cross-entropy"),
)
"""Alpha, metric, unit, and what the figure or the sentence is of."""


def said(results: Path) -> Iterator[Cell]:
    yield from _claims(results)
    yield from _ranks(results)
    yield from _drawn(results)
    yield _sigmoid(results)


def _claims(results: Path) -> Iterator[Cell]:
    """Statements about a step's time and memory, beside a step of the heads alone."""
    files = [results / f"head-{kind}.json" for kind in ("steps", "memory")]
    if not all(file.is_file() for file in files):
        for what, printed in CLAIMS.items():
            yield Cell(what, printed, "–", "not run", "takes minutes: `reproduce training:heads steps|memory FILE`")
        return
    times, memory = (json.loads(file.read_text("utf-8")) for file in files)
    seconds, rise = times["time_ratio"], memory["memory_rise"]
    bytes_ = {head: one / rise["dense"] for head, one in rise.items()}
    piece = "of the dense head's: the loss is taken one component at a time, nothing is N x M x K"
    mixture, network, units = "MoS, K = 15", "monotone network, K = 1,000", seconds["monotone network, K = 1,000"]
    ours = (
        (seconds["MoS, K = 5"], "stand-in", "K = 5, a step of the head alone, on a CPU; the talk's dash is lost in our copy"),
        (bytes_[mixture], verdict_on(bytes_[mixture] > 15 / 2), piece),  # nearer to K times the dense head's than to once
        (bytes_["PLIF, 1e5 knots"], "stand-in", "of the dense head's, on a CPU: logits are taken a piece at a time"),
        (seconds["PLIF, 1e5 knots"], "stand-in", "a step of the head alone, on a CPU; a whole model's step lies nearer to 1"),
        (
            bytes_[network], verdict_on(bytes_[network] > 1000 / 2),
            f"of the dense head's, at K = 1,000: logits read a table of the network's chords; takes {units:.2f} of its time",
        ),
    )  # fmt: skip
    for (what, printed), (value, status, note) in zip(CLAIMS.items(), ours, strict=True):
        yield Cell(what, printed, f"{value:.2f}", status, note)


def _ranks(results: Path) -> Iterator[Cell]:
    """The argument's two statements, on random heads over 300 outcomes from 300 contexts at d = 8."""
    file = results / "ganea2019.ranks.json"
    made = {row["head"]: row["press"] for row in json.loads(file.read_text("utf-8"))["runs"]} if file.is_file() else {}
    if not made:
        takes = "takes seconds: `python -m studies reproduce ganea2019:ranks FILE`"
        yield Cell(LIMIT, "at most d + 1", "–", "not run", takes)
        yield Cell(FREE, "a theorem", "–", "not run", takes)
        return
    where = "random rows and contexts, d = 8, 300 contexts, 300 outcomes"
    yield Cell(LIMIT, "at most d + 1", str(made["softmax"]), "by arithmetic" if made["softmax"] <= 9 else "differs", where)
    yield Cell(FREE, "a theorem", str(made["PLIF"]), verdict_on(made["PLIF"] > 9), f"a random PLIF, above d + 1; {where}")


def _drawn(results: Path) -> Iterator[Cell]:
    """Figures without numbers: modes matched by each head over d, and the same of other alphas and of cross-entropy."""
    rows = lines_of(results / "ganea2019.synthetic.jsonl")
    takes = "takes minutes: `python -m studies reproduce ganea2019:synthetic`"
    for alpha, metric, unit, of in DRAWN:
        what = f"{of} ({WHERE['synthetic']})"
        mine = [row for row in rows if row["setting"]["alpha"] == alpha and row["setting"]["d"] == "4"]
        if not mine:
            yield Cell(what, "drawn", "–", "not run", takes)
            continue
        shown = {
            head: statistics.fmean(row["got"][metric] for row in mine if row["setting"]["head"] == head)
            for head in ("linear", "PLIF, 256 knots")
        }
        ours = ", ".join(f"{head} {value:.{0 if unit else 2}f}{unit}" for head, value in shown.items())
        seeds = len({row["setting"]["seed"] for row in mine})
        yield Cell(what, "drawn", ours, "stand-in", f"at d = 4, {seeds} seeds; sizes of the printed study are not given")


def _sigmoid(results: Path) -> Cell:
    found = beside(lines_of(results / "ganea2019.ptb.jsonl"), "SigSoftmax", "test")
    if found is None or found.pairs < 2:
        takes = f"takes two rows of {SOFTMAX} and of SigSoftmax: `python -m studies reproduce ganea2019:ptb`"
        return Cell(SIGMOID, "a small improvement", "–", "not run", takes)
    note = f"perplexity, LSTM 2 x 200 on Penn Treebank, six epochs, {found.pairs} seeds"
    return Cell(SIGMOID, "a small improvement", f"{found.share - 1:+.1%}", "stand-in", note)
