"""Draws the figures of doubly sparse softmax (Liao et al. 2019) from stored runs, as SVG files.

    headlong reproduce liao2019:figures RESULTS OUT

membership       the classes that each expert of the made-up hierarchy keeps      RESULTS/liao2019.contents.json
frequency-TASK   a class's frequency over the number of experts that hold it      the same
compute          the softmax's share of each model's multiplications and time     the same
accuracy-TASK    accuracy (BLEU) over the FLOPs ratio, each of its own full       RESULTS/liao2019.tasks.jsonl,
                 softmax's, the paper's points beside ours; seeds as bars         RESULTS/liao2019.learned.jsonl
ramps-TASK       the same on the way: each rung of the lasso, stage by stage      RESULTS/liao2019.ramps.json
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from headlong.bench.measure import read_run
from headlong.report.papers import joined
from headlong.report.plots import Range, Row, dot_plot, ranges
from headlong.report.squares import cells
from headlong.studies.papers import read
from headlong.studies.papers.doubly_sparse.contents import SOFTMAX_SHARE
from headlong.studies.papers.doubly_sparse.printed import QUOTED, REAL
from headlong.studies.papers.drawing import draw

METHODS = {
    "ds": "experts, learned", "adam": "experts, learned by Adam", "seeded": "experts, seeded", "svd": "SVD-softmax",
    "d": "D-softmax",
}  # fmt: skip
METHODS |= {"frequent": "frequent classes only"}
"""How the rows of a method begin, and its name in a figure."""


def membership(run: dict[str, Any]) -> str:
    """Experts by their first class, so that what was found as blocks lies on the diagonal."""
    title = f"Classes that each of {run['experts']} experts keeps, hierarchy {run['task']}"
    return cells(title, sorted(run["kept"]), run["classes"], ("class, by hidden super-class", "expert"))


def frequency(run: dict[str, Any]) -> str:
    """Geometric means, bars from the lower to the upper quartile."""
    line = [Range(float(one["experts"]), one["frequency"], one["low"], one["high"]) for one in run["held"]]
    names = "experts that hold the class", "times in training"
    return ranges(f"How often classes come, {run['task']}", {run["task"]: line}, (_number, _number), names)


def compute(runs: Sequence[dict[str, Any]]) -> str:
    """Share of multiplications as dots; the line's other end is the share of time."""
    rows = []
    for run in runs:
        share, timed = run["compute"]["share"], run["compute"]["time_share"]
        note = f"{share:.1%} of the multiplications, {timed:.1%} of the time"
        rows.append(Row(f"{run['task']}, {run['classes']:,} classes", share, min(share, timed), max(share, timed), note))
    stated = SOFTMAX_SHARE.low
    rows.append(Row("WikiText-2, published", stated, stated, stated, f"above {stated:.0%}, unverified"))
    caption = "dot: share of the multiplications; the line's other end: share of the time at batch 1"
    return dot_plot("The full softmax's share of a model", rows, lambda share: f"{share:.0%}", caption)


def accuracy(lines: Sequence[dict[str, Any]], learned: Sequence[dict[str, Any]] = ()) -> str:
    """A line for each method, ours and the paper's, from little to much saved; each of the full softmax of its own backbone."""
    task = lines[0]["setting"]["task"]
    key = "bleu" if any("bleu" in line["got"] for line in lines) else "top1"
    series: dict[str, list[Range]] = {"full softmax": [Range(1.0, 1.0, 1.0, 1.0)]}
    for some in (lines, learned):
        base = next((line["got"][key] for line in some if line["setting"]["method"] == "full"), 0.0)
        for group in joined(some):
            name = METHODS.get(group[0]["setting"]["method"].partition("-")[0])
            values = [line["got"][key] / base for line in group if key in line["got"]]
            if name is not None and values:
                at = fmean(line["got"]["flops"] for line in group)
                series.setdefault(name, []).append(Range(at, fmean(values), min(values), max(values)))
    full = REAL[task]["full"][0] if task in REAL else 0.0
    quoted = [(flops, value / full) for value, flops in QUOTED.get(task, {}).values()]
    series |= {"experts, published": [Range(at, value, value, value) for at, value in quoted]} if quoted else {}
    drawn = {name: sorted(points) for name, points in series.items()}
    names = "times fewer multiplications", f"{'BLEU' if key == 'bleu' else 'top-1 accuracy'}, of the full softmax's"
    return ranges(f"Accuracy and saved work, {task}", drawn, (_number, lambda share: f"{share:.1%}"), names)


def ramps(runs: Sequence[dict[str, Any]]) -> str:
    """Validation accuracy on the way, a line for each number of experts and seed: every rung, and the settled end."""
    series: dict[str, list[Range]] = {}
    for run in runs:
        for stage in run["stages"]:
            line = series.setdefault(f"{stage['experts']} experts, {run.get('kind', 'adam')}, seed {run['seed']}", [])
            for rung in stage["rungs"]:
                value = rung["top1"] / rung["full_top1"]
                line.append(Range(rung["flops"], value, value, value))
    names = "times fewer multiplications", "validation top-1 accuracy, of the full softmax's"
    return ranges(f"The lasso's ramps, {runs[0]['task']}", series, (_number, lambda share: f"{share:.1%}"), names)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def figures(results: Path) -> Iterator[tuple[str, str]]:
    """Every figure whose run is stored."""
    if (file := results / "liao2019.contents.json").is_file():
        runs = read_run(file)["runs"]
        trained = [run for run in runs if "held" in run]
        yield from (("membership", membership(run)) for run in runs if "kept" in run)
        yield from ((f"frequency-{run['task']}", frequency(run)) for run in trained if run["rank_correlation"] is not None)
        if trained:
            yield "compute", compute(trained)
    lines = read(results / "liao2019.tasks.jsonl")
    learned = read(results / "liao2019.learned.jsonl")
    for task in dict.fromkeys(line["setting"]["task"] for line in lines):
        mine = ([one for one in some if one["setting"]["task"] == task] for some in (lines, learned))
        yield f"accuracy-{task}", accuracy(*mine)
    if (file := results / "liao2019.ramps.json").is_file():
        found = read_run(file)["runs"]
        for task in dict.fromkeys(run["task"] for run in found):
            yield f"ramps-{task}", ramps([run for run in found if run["task"] == task])


def main(results: str, out: str) -> None:
    draw("liao2019", figures(Path(results)), Path(out))
