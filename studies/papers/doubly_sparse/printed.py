"""Every number that the doubly sparse poster prints, and what became of it here (Liao et al. 2019).

::

    matched     our run of the same method on the same data reaches it, within the tolerance of its table, from the better side
    differs     it does not; by how much stands beside it
    stand-in    something else was run in its place, and what
    not run     nothing was; what it takes

The table "Result - Real Dataset" has 41 numbers; "23x theoretical" and "20x real device reduction" are two of them, rounded.
What else is printed in figures, words and lists (``printed_in_text.py``) has a cell as well. What follows from the set-up
alone (how many multiplications SVD-softmax and D-softmax save) is "by arithmetic", which says that the set-up is the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from studies.papers import read
from studies.papers.cells import Cell
from studies.papers.doubly_sparse.printed_in_text import said
from studies.papers.verdicts import verdict_on

Line = Mapping[str, Any]
Times = Mapping[str, Sequence[float]]
METHODS = ("full", "svd-10", "d-softmax", "ds-64")
REAL: dict[str, dict[str, tuple[float, float, float]]] = {
    "ptb": {
        "full": (0.252, 1.0, 0.73), "svd-10": (0.251, 5.00, 0.18), "d-softmax": (0.245, 2.00, 0.36),
        "ds-64": (0.258, 15.99, 0.05),
    },
    "wikitext2": {
        "full": (0.257, 1.0, 3.07), "svd-10": (0.255, 5.38, 0.60), "d-softmax": (0.256, 2.00, 1.59),
        "ds-64": (0.259, 23.86, 0.15),
    },
    "multi30k": {
        "full": (25.2, 1.0, 1.91), "svd-10": (25.1, 5.06, 0.42), "d-softmax": (24.8, 2.00, 0.98),
        "ds-64": (25.0, 15.08, 0.13),
    },
    "characters": {"full": (90.6, 1.0, 1.61), "svd-10": (90.2, 2.61, 0.68), "ds-64": (90.1, 6.91, 0.25)},
}  # fmt: skip
"""Task, method: value, times fewer FLOPs (not printed for the full softmax), milliseconds."""
QUOTED: dict[str, dict[int, tuple[float, float]]] = {
    "ptb": {8: (0.257, 2.84), 16: (0.258, 5.13), 32: (0.259, 9.43), 64: (0.258, 15.99)},
    "wikitext2": {8: (0.259, 3.52), 16: (0.264, 6.58), 32: (0.260, 11.59), 64: (0.259, 23.86)},
    "multi30k": {8: (25.3, 4.38), 16: (25.1, 6.08), 32: (25.4, 10.69), 64: (25.0, 15.08)},
    "characters": {8: (90.8, 1.77), 16: (90.2, 2.82), 32: (89.9, 4.72), 64: (90.1, 6.91)},
}
"""By number of experts: value, times fewer FLOPs; fewer than 64 as quoted in notes, not checked: drawn and not judged."""
WORDS = {"ptb": 82_430, "wikitext2": 245_569}
"""Of the test splits, for the sampling error of an accuracy: two standard errors at one in four right."""
NAMES = {"ptb": "PTB", "wikitext2": "Wiki-2", "multi30k": "En-Ve", "characters": "CASIA"}
STANDS = {"multi30k": "Multi30k, English to German", "characters": "other characters"}
MADE = "random rows of the printed shape"
HIERARCHIES = {
    "10x10": ("random", "learned from random experts; those that no vector picks are revived by k-means, a rule of ours"),
    "100x100": ("mitosis", "learned from ten random experts, each of which becomes ten; revived as above"),
}
"""Of made-up classes: how their rows start, and what that means."""
SEEDS = {"10x10": 20, "100x100": 3}
"""As many have to be there, and every one of them right, before a hierarchy counts as captured."""
TAKES_TIME = "takes a minute of an idle machine: `python -m studies reproduce liao2019:times FILE`"
TAKES_TRAINING = "takes the training text (IWSLT 2015, CASIA-HWDB) and a backbone on it"


def cells(results: Path) -> Iterator[Cell]:
    """Every printed number, from the runs that ``results`` holds."""
    learned, seeded = (read(results / f"liao2019.{name}.jsonl") for name in ("learned", "tasks"))
    file = results / "liao2019.times.json"
    runs = json.loads(file.read_text(encoding="utf-8"))["runs"] if file.is_file() else []
    for cell in account(learned, seeded, {run["task"]: run["milliseconds"] for run in runs}):
        yield _at(cell, "Result - Real Dataset")
    synthetic = read(results / "liao2019.synthetic.jsonl")
    for hierarchy, (start, how) in HIERARCHIES.items():
        setting = {"hierarchy": hierarchy, "start": start}
        mine = [line for line in synthetic if setting.items() <= line["setting"].items()]
        yield _at(_captured(hierarchy, how, mine), "Result - Synthetic Dataset")
    for place, cell in said(results, learned, seeded):
        yield _at(cell, place)


def _at(cell: Cell, place: str) -> Cell:
    """With the part of the poster that it is printed in."""
    return cell._replace(what=f"{cell.what} (poster, {place})")


def _captured(hierarchy: str, how: str, rows: Sequence[Line]) -> Cell:
    """ "DS-Softmax can fully capture the synthetic hierarchy": every seed has to, and every class."""
    what = f"synthetic {hierarchy}, hierarchy fully captured"
    if not rows:
        return Cell(what, "yes", "", "not run", f"takes minutes: `python -m studies reproduce liao2019:synthetic`; {how}")
    pure = [line["got"]["purity"] for line in rows]
    found = sorted({int(line["got"]["exact"]) for line in rows})
    exact = " to ".join(map(str, dict.fromkeys((found[0], found[-1]))))
    whole = f"{exact} of {rows[0]['got']['experts']:.0f} experts are one super-class, all of it"
    held = sum(one == 1.0 for one in pure)
    status = verdict_on(held == len(pure)) if held < len(pure) or held >= SEEDS[hierarchy] else "stand-in"
    found_in = f"{held} of {len(pure)} seeds, purity {fmean(pure):.4g}"
    return Cell(what, "yes", found_in, status, f"{how}; {whole}; {SEEDS[hierarchy]} seeds are planned")


def account(learned: Sequence[Line], seeded: Sequence[Line], times: Mapping[str, Times]) -> Iterator[Cell]:
    """All 41 of the table, from the rows of ``liao2019:learned`` and ``:tasks`` and the quartiles of ``:times``."""
    for task, methods in REAL.items():
        for method, (value, flops, milliseconds) in methods.items():
            rows = _rows(learned, task, method)
            if task in STANDS:  # other data: nothing is judged
                rows = _most(learned, task) if method == "ds-64" else []
            elif method in ("full", "svd-10"):  # their rows in the other table are of a backbone that was trained for longer
                rows = [line for line in _rows(seeded, task, method) if line["expected"]] or rows
            metric = "bleu" if task == "multi30k" else "top1"
            cell = _value(task, method, value, rows, seeded)
            yield _beside(cell, task, metric, learned) if rows and method in ("d-softmax", "ds-64") else cell
            if method != "full":
                yield _flops(task, method, flops, rows, seeded)
            yield _time(task, method, milliseconds, times)


def _rows(lines: Sequence[Line], task: str, method: str) -> list[Line]:
    return [line for line in lines if line["setting"]["task"] == task and line["setting"]["method"] == method]


def _most(learned: Sequence[Line], task: str) -> list[Line]:
    """The rows of as many experts as were learned."""
    found = [rows for count in sorted(QUOTED[task]) if (rows := _rows(learned, task, f"ds-{count}"))]
    return found[-1] if found else []


def _said(values: Sequence[float]) -> str:
    return f"{fmean(values):.4g}" + (f" ({min(values):.4g} to {max(values):.4g})" if len(values) > 1 else "")


def _seeds(rows: Sequence[Line]) -> str:
    return f"{len(rows)} seeds" if len(rows) > 1 else "one run"


def _elsewhere(name: str, printed: float, task: str, metric: str, rows: Sequence[Line], seeded: Sequence[Line]) -> Cell:
    """Experts that were learned on other data than the printed ones, and those that were seeded there."""
    values, others = ([_unit(task, metric) * line["got"][metric] for line in some] for some in (rows, seeded))
    count = rows[0]["setting"]["method"].removeprefix("ds-")
    note = f"{STANDS[task]}; {count} experts, learned; {_seeds(rows)}"
    note += "".join(f"; 64, seeded, {value:.4g}" for value in others)
    return Cell(name, f"{printed:g}", _said(values), "stand-in", note)


def _unit(task: str, metric: str) -> int:
    """The poster's accuracies of characters are in per cent."""
    return 100 if (task, metric) == ("characters", "top1") else 1


def _judged(name: str, printed: float, metric: str, rows: Sequence[Line]) -> Cell:
    """Matched where every seed does."""
    values = [line["got"][metric] for line in rows]
    matched = sum(line["verdict"].get(metric) == "matched" for line in rows)
    status = verdict_on(matched == len(rows))
    return Cell(name, f"{printed:g}", _said(values), status, f"{fmean(values) - printed:+.2g}; {_seeds(rows)}")


def _beside(cell: Cell, task: str, metric: str, learned: Sequence[Line]) -> Cell:
    """With the full softmax's accuracy at the backbone of these rows, which its own cell is not of."""
    full = [_unit(task, metric) * line["got"][metric] for line in _rows(learned, task, "full")]
    if not full:
        return cell
    theirs = REAL[task]["full"][0]
    return cell._replace(note=f"{cell.note}; the full softmax has {full[0]:.4g} at this backbone, {theirs:g} is printed")


def _value(task: str, method: str, printed: float, rows: Sequence[Line], seeded: Sequence[Line]) -> Cell:
    metric = "bleu" if task == "multi30k" else "top1"
    name = f"{NAMES[task]}, {method}, {'BLEU' if metric == 'bleu' else 'accuracy'}"
    names = {"d-softmax": "d-softmax-cut"}.get(method, method.replace("ds-", "seeded-"))
    found = [line for line in _rows(seeded, task, names) if metric in line["got"]]
    if rows:
        return _elsewhere(name, printed, task, metric, rows, found) if task in STANDS else _judged(name, printed, metric, rows)
    if not found:
        return Cell(name, f"{printed:g}", "", "not run", TAKES_TRAINING)
    ours = found[0]["got"][metric] * _unit(task, metric)
    return Cell(name, f"{printed:g}", f"{ours:.4g}", "stand-in", _instead(task, method))


def _instead(task: str, method: str) -> str:
    if task in STANDS:
        return STANDS[task] + {"d-softmax": ", cut and not trained", "ds-64": ", seeded"}.get(method, "")
    return {"d-softmax": "cut from the layer and not trained", "ds-64": "seeded, not learned"}.get(method, "")


def _flops(task: str, method: str, printed: float, rows: Sequence[Line], seeded: Sequence[Line]) -> Cell:
    name = f"{NAMES[task]}, {method}, times fewer FLOPs"
    names = {"d-softmax": "d-softmax-cut"}.get(method, method.replace("ds-", "seeded-"))
    others = _rows(seeded, task, names)
    if method == "ds-64" and rows:
        elsewhere = task in STANDS
        return _elsewhere(name, printed, task, "flops", rows, others) if elsewhere else _judged(name, printed, "flops", rows)
    found = [*rows, *others]
    if not found:
        return Cell(name, f"{printed:g}", "", "not run", TAKES_TRAINING)
    ours = found[0]["got"]["flops"]
    if method == "ds-64":
        return Cell(name, f"{printed:g}", f"{ours:g}", "stand-in", f"{_instead(task, method)}; aimed at")
    if abs(ours - printed) <= 0.005:
        return Cell(name, f"{printed:g}", f"{ours:g}", "by arithmetic", "")
    return Cell(name, f"{printed:g}", f"{ours:g}", "stand-in", "our layer has another shape")


def _time(task: str, method: str, printed: float, times: Mapping[str, Times]) -> Cell:
    name = f"{NAMES[task]}, {method}, ms"
    if task not in times:
        return Cell(name, f"{printed:g}", "", "not run", TAKES_TIME)
    ours = {of: quartiles[1] for of, quartiles in times[task].items()}
    theirs = REAL[task]["full"][2] / printed
    faster, own = (ours[full] / ours[method] for full in ("full", "full, here"))
    why = f"{faster:.1f} times as fast as PyTorch's full softmax, {own:.1f} as our own; printed {theirs:.1f}; {MADE}"
    if method == "full":
        why = f"PyTorch's, on another processor; ours takes {ours['full, here']:.3f}; {MADE}"
    return Cell(name, f"{printed:g}", f"{ours[method]:.3f}", "stand-in", why)
