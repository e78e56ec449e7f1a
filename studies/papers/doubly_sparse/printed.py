"""Every number that the doubly sparse poster prints, and what became of it here (Liao et al. 2019).

::

    matched     every seed of ours of the same method on the same data is within the tolerance of it; more is a miss as well
    differs     one does not; by how much stands beside it
    stand-in    something else was run in its place, and what
    not run     nothing was; what it takes

The table "Result - Real Dataset" has 41 numbers; "23x theoretical" and "20x real device reduction" are two of them, rounded.
What else is printed in figures, words and lists has a cell as well. What follows from the set-up alone (how many
multiplications SVD-softmax and D-softmax save) is "by arithmetic", which says that the set-up is the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from studies.papers import judged
from studies.papers.cells import Cell, unbuilt, verdict_on

Line = Mapping[str, Any]
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
WORDS = {"ptb": 82_430, "wikitext2": 245_569}
"""Of the test splits, for the sampling error of an accuracy: two standard errors at one in four right."""
NAMES = {"ptb": "PTB", "wikitext2": "Wiki-2", "multi30k": "En-Ve", "characters": "CASIA"}
CLASSES = {"ptb": 10_000, "wikitext2": 33_278, "multi30k": 7_709, "characters": 3_740}
LONGER = {
    "ptb": "ptb, six epochs",
    "wikitext2": "wikitext2, four epochs",
    "multi30k": "multi30k, first run",
    "characters": "characters",
}
"""The backbone of each task whose full softmax is the better one."""
BRIEF = "LSTM 2 x 64, 400 steps"
"""The backbones at which every row ends within minutes: a stand-in, whatever its rows come to."""
STANDS = {"multi30k": "Multi30k, English to German", "characters": "a text recogniser's 6,625 characters"}
HIERARCHIES = {
    "10x10": ("random", "learned from random experts; those that no vector picks are revived by k-means, a rule of ours"),
    "100x100": ("mitosis", "learned from ten random experts, each of which becomes ten; revived as above"),
}
"""Of made-up classes: how their rows start, and what that means."""
JUDGED = {"matched", "differs"}
SEEDS = {"10x10": 20, "100x100": 3}
"""As many have to be there, and every one of them right, before a hierarchy counts as captured."""
SMALLEST = {
    "money": "money million billion trillion earnings share rate stake bond cents bid cash fine payable",
    "time": "years while since before early late yesterday annual currently monthly annually monday tuesday wednesday "
    "thursday friday",
    "comparison": "up down under above below next though against during within including range higher lower drop rise growth "
    "increase less compared unchanged",
}
"""Words of the smallest expert on Penn Treebank, by the poster's headings."""
TAKES_TIME = "takes a minute of an idle machine: `python -m studies reproduce liao2019:times FILE`"
TRAINED_ON = {
    "ptb": "Penn Treebank", "wikitext2": "WikiText-2", "multi30k": "IWSLT 2015, or Multi30k in its place",
    "characters": "CASIA-HWDB, or a recogniser in its place",
}  # fmt: skip
TAKES_LAYERS = "takes trained layers: `python -m studies reproduce liao2019:contents`"
RIVAL = "takes that program; other graph indexes are timed beside us in docs/beside.md"


def cells(results: Path) -> Iterator[Cell]:
    """Every printed number, from the runs that ``results`` holds."""
    learned, synthetic = (judged(f"liao2019:{name}", results) for name in ("learned", "synthetic"))
    times, contents = ({run["task"]: run for run in _runs(results / f"liao2019.{name}.json")} for name in ("times", "contents"))
    places = {
        "Result - Real Dataset": [*account(learned, times), *_classes(learned), _loss(learned), *_boosts(learned)],
        "Result - Synthetic Dataset": [captured(name, synthetic) for name in HIERARCHIES],
        "Softmax Inference Problem": [
            _share(),
            Cell("Fast Graph Decoder at high accuracy, times faster", "about 2", "", "not run", RIVAL),
        ],
        "Result - Interpretation": list(_contents(contents.get("ptb"))),
    }
    for place, found in places.items():
        yield from (cell._replace(what=f"{cell.what} (poster, {place})") for cell in found)


def _runs(file: Path) -> list[Line]:
    return list(json.loads(file.read_text(encoding="utf-8"))["runs"]) if file.is_file() else []


def captured(hierarchy: str, rows: Sequence[Line]) -> Cell:
    """ "DS-Softmax can fully capture the synthetic hierarchy": every planned seed has to, and every class."""
    start, how = HIERARCHIES[hierarchy]
    setting, what = {"hierarchy": hierarchy, "start": start}, f"synthetic {hierarchy}, hierarchy fully captured"
    planned = [line for line in rows if setting.items() <= line["setting"].items() and line["verdict"]["purity"] in JUDGED]
    mine = [line["got"] for line in planned]
    if not mine:
        return Cell(what, "yes", "", "not run", f"takes minutes: `python -m studies reproduce liao2019:synthetic`; {how}")
    held = sum(line["verdict"]["purity"] == "matched" for line in planned)
    revived = [got["revived"] > 0 for got in mine if "revived" in got]
    status = verdict_on(held == len(mine)) if held < len(mine) or held >= SEEDS[hierarchy] else "stand-in"
    note = f"{how}" + (f" in {sum(revived)} of {len(revived)} seeds" if revived else "")
    note += f"; from {min(got['exact'] for got in mine):.0f} experts on are one super-class, all of it"
    lowest = min(got["purity"] for got in mine)
    return Cell(what, "yes", f"{held} of {len(mine)} seeds, purity {lowest:.3f} or more", status, note)


def account(learned: Sequence[Line], times: Mapping[str, Line]) -> Iterator[Cell]:
    """All 41 of the table, from the rows of ``liao2019:learned`` and the quartiles of ``:times``."""
    for task, methods in REAL.items():
        metric, unit = ("bleu", "BLEU") if task == "multi30k" else ("top1", "accuracy")
        for method, (value, flops, milliseconds) in methods.items():
            of = LONGER[task] if method in ("full", "svd-10") else task
            rows = _rows(learned, of, method) or (_rows(learned, f"{task}, short", method) if method != "ds-64" else [])
            seeded = rows or method != "ds-64"
            if not seeded:
                rows = _rows(learned, of, "seeded-64") or _rows(learned, LONGER[task], "seeded-64")
            yield _number(f"{NAMES[task]}, {method}, {unit}", task, metric, value, rows, learned, bool(seeded))
            if method == "ds-64":
                yield _number(f"{NAMES[task]}, {method}, times fewer FLOPs", task, "flops", flops, rows, learned, bool(seeded))
            elif method != "full":
                yield _arithmetic(f"{NAMES[task]}, {method}, times fewer FLOPs", task, flops, rows)
            yield _time(task, method, milliseconds, times)


def _rows(lines: Sequence[Line], task: str, method: str) -> list[Line]:
    return [line for line in lines if line["setting"]["task"] == task and line["setting"]["method"] == method]


def _takes(task: str) -> str:
    return f'takes a backbone trained on {TRAINED_ON[task]}: `reproduce liao2019:learned --rows "task={task}"`'


def _number(
    name: str, task: str, metric: str, printed: float, rows: Sequence[Line], learned: Sequence[Line], same: bool
) -> Cell:
    """Judged where the data and the method are the printed ones; ``same``: the method is."""
    unit = 100 if (task, metric) == ("characters", "top1") else 1
    values = [unit * line["got"][metric] for line in rows if metric in line["got"]]
    if not values:
        return Cell(name, f"{printed:g}", "", "not run", _takes(task))
    ours = f"{fmean(values):.4g}" + (f" ({min(values):.4g} to {max(values):.4g})" if len(values) > 1 else "")
    of = rows[0]["setting"]["task"]
    note = f"{rows[0]['model']['name']}; {len(values)} seeds" if len(values) > 1 else f"{rows[0]['model']['name']}; one run"
    full = [unit * line["got"][metric] for line in _rows(learned, of, "full") if metric in line["got"]]
    if full and metric != "flops" and "full" not in name:
        note += f"; the full softmax has {full[0]:.4g} at this backbone, {REAL[task]['full'][0]:g} is printed"
    note += unbuilt(rows)
    if task in STANDS or not same:
        about = "; ".join([*([STANDS[task]] if task in STANDS else []), *([] if same else ["64 experts seeded, not learned"])])
        return Cell(name, f"{printed:g}", ours, "stand-in", f"{about}; {note}")
    return Cell(name, f"{printed:g}", ours, _status(rows, metric), f"{fmean(values) - printed:+.2g}; {note}")


def _status(rows: Sequence[Line], metric: str) -> str:
    """Rows of another model, or that no table plans, are no run of what is printed."""
    found = [line["verdict"].get(metric) for line in rows]
    return verdict_on(all(one == "matched" for one in found)) if set(found) <= JUDGED else "stand-in"


def _arithmetic(name: str, task: str, printed: float, rows: Sequence[Line]) -> Cell:
    if not rows:
        return Cell(name, f"{printed:g}", "", "not run", _takes(task))
    ours = rows[0]["got"]["flops"]
    if abs(ours - printed) <= 0.005:
        return Cell(name, f"{printed:g}", f"{ours:g}", "by arithmetic")
    return Cell(name, f"{printed:g}", f"{ours:g}", "stand-in", "our layer has another shape")


def _time(task: str, method: str, printed: float, times: Mapping[str, Line]) -> Cell:
    name = f"{NAMES[task]}, {method}, ms"
    if task not in times:
        return Cell(name, f"{printed:g}", "", "not run", TAKES_TIME)
    ours = {of: quartiles[1] for of, quartiles in times[task]["milliseconds"].items()}
    theirs = REAL[task]["full"][2] / printed
    faster, own = (ours[full] / ours[method] for full in ("full", "full, here"))
    made = "random rows of the printed shape"
    why = f"{faster:.1f} times as fast as PyTorch's full softmax, {own:.1f} as our own; printed {theirs:.1f}; {made}"
    if method == "full":
        why = f"PyTorch's, on another processor; ours takes {ours['full, here']:.3f}; {made}"
    return Cell(name, f"{printed:g}", f"{ours[method]:.3f}", "stand-in", why)


def _classes(learned: Sequence[Line]) -> Iterator[Cell]:
    for task, printed in CLASSES.items():
        what, rows = f"{NAMES[task]}, classes", _rows(learned, LONGER[task], "full")
        if not rows:
            yield Cell(what, f"{printed:,}", "", "not run", _takes(task))
        else:
            found = rows[0]["model"]["vocab"]
            status = "by arithmetic" if found == printed and task not in STANDS else "stand-in"
            yield Cell(what, f"{printed:,}", f"{found:,}", status, STANDS.get(task, ""))


def _loss(learned: Sequence[Line]) -> Cell:
    """ "Without loss of performance" in three tasks and four data sets, beside the poster's own table."""
    what, shown = "ds-64 less full in all four tasks", []
    for task, name in NAMES.items():
        metric, unit = ("bleu", 1) if task == "multi30k" else ("top1", 100 if task == "characters" else 1)
        for count in (64, 32, 16):
            mine = [line["got"][metric] for line in _rows(learned, task, f"ds-{count}") if metric in line["got"]]
            full = [line["got"][metric] for line in _rows(learned, task, "full") if metric in line["got"]]
            if mine and full:
                shown.append(f"{name} {unit * (fmean(mine) - full[0]):+.3g} ({count} experts)")
                break
    if not shown:
        return Cell(what, "no loss", "", "not run", "takes backbones trained on all four: `reproduce liao2019:learned`")
    note = "learned, as many experts as there are; other data for En-Ve, CASIA; the poster's table: +0.006, +0.002, -0.2, -0.5"
    return Cell(what, "no loss", ", ".join(shown), "stand-in", note)


def _boosts(learned: Sequence[Line]) -> Iterator[Cell]:
    """ "Even boost language modelling performance": a claim that takes 64 learned experts, and seeds."""
    for task in WORDS:
        printed = REAL[task]["ds-64"][0] - REAL[task]["full"][0]
        what, mine = f"{NAMES[task]}, ds-64 less full, accuracy", _rows(learned, f"{task}, short", "ds-64")
        if not mine:
            takes = f'takes 64 learned experts: `reproduce liao2019:learned --rows "task={task}, short"`'
            yield Cell(what, f"{printed:+.3f}", "", "not run", takes)
        else:
            gain = fmean(line["got"]["gain"] for line in mine)
            tuned = fmean(line["got"]["gain"] for line in _rows(learned, f"{task}, short", "full-tuned"))
            note = f"learned, {BRIEF}; of the full layer trained on {tuned:+.4f}"
            yield Cell(what, f"{printed:+.3f}", f"{gain:+.4f}", _status(mine, "gain"), note)


def _share() -> Cell:
    """Multiplications of the softmax over those of the whole model, for one word: V D of V D + 8 D^2 a layer of an LSTM."""
    vocab, dim, layers = CLASSES["wikitext2"], 200, 2
    share, plain = (vocab / (vocab + gates * dim * layers) for gates in (8, 2))
    what = "Wiki-2, two recurrent layers of 200: the softmax's share of the computation"
    note = f"counted, of an LSTM's multiplications; with two plain recurrent layers it would be {plain:.1%}"
    return Cell(what, "above 98%", f"{share:.1%}", verdict_on(share > 0.98), note)


def _contents(run: Line | None) -> Iterator[Cell]:
    drawn = {"PTB, higher frequency words appear in more experts": "drawn", "PTB, words of the smallest expert": "64"}
    drawn |= {f"PTB, smallest expert, words of {about}": f"{len(words.split())} words" for about, words in SMALLEST.items()}
    if run is None:
        yield from (Cell(what, printed, "", "not run", TAKES_LAYERS) for what, printed in drawn.items())
        return
    least = run["smallest"]
    held = {word.lower() for word in least["words"]}
    ours = {about: sum(word in held for word in words.split()) for about, words in SMALLEST.items()}
    shown = [
        f"rank correlation {run['rank_correlation']:.2f}",
        str(least["size"]),
        *(f"{count} of them" for count in ours.values()),
    ]
    listed = f"of seeded experts; the 24 most frequent: {', '.join(least['words'][:24])}".replace("<", "&lt;")
    for number, ((what, printed), mine) in enumerate(zip(drawn.items(), shown, strict=True)):
        yield Cell(what, printed, mine, "stand-in", listed if number == 1 else "of seeded experts")
