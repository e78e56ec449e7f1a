"""Draws the figures of doubly sparse softmax (Liao et al. 2019) from stored runs, as SVG files.

    headlong reproduce liao2019:figures RESULTS OUT

membership       the classes that each expert of the made-up hierarchy keeps      RESULTS/liao2019.contents.json
frequency-TASK   a class's frequency over the number of experts that hold it      the same
compute          the softmax's share of each model's multiplications and time     the same
accuracy-TASK    accuracy (BLEU) over the FLOPs ratio, each of its own full       RESULTS/liao2019.tasks.jsonl
                 softmax's, the paper's points beside ours
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headlong.bench.measure import read_run
from headlong.report.plots import Range, Row, dot_plot, ranges
from headlong.report.squares import cells
from headlong.studies.papers import read
from headlong.studies.papers.doubly_sparse.contents import SOFTMAX_SHARE
from headlong.studies.papers.drawing import draw

METHODS = {"ds": "experts", "svd": "SVD-softmax", "d": "D-softmax"}
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


def accuracy(lines: Sequence[dict[str, Any]]) -> str:
    """A line for each method, ours and the paper's, from little to much saved."""
    task = lines[0]["setting"]["task"]
    key = "bleu" if any("bleu" in line["got"] for line in lines) else "top1"
    (full,) = (line for line in lines if line["setting"]["method"] == "full")
    series: dict[str, list[Range]] = {"full softmax": [Range(1.0, 1.0, 1.0, 1.0)]}
    for line in lines:
        name = METHODS.get(line["setting"]["method"].partition("-")[0])
        if name is None:
            continue
        sources = {"ours": (line["got"], full["got"]), "published": (_published(line), _published(full))}
        for whose, (got, base) in sources.items():
            if key in got and key in base:
                value = got[key] / base[key]
                series.setdefault(f"{name}, {whose}", []).append(Range(got["flops"], value, value, value))
    drawn = {name: sorted(points) for name, points in series.items()}
    names = "times fewer multiplications", f"{'BLEU' if key == 'bleu' else 'top-1 accuracy'}, of the full softmax's"
    return ranges(f"Accuracy and saved work, {task}", drawn, (_number, lambda share: f"{share:.1%}"), names)


def _published(line: dict[str, Any]) -> dict[str, float]:
    """The middle of every published range."""
    return {key: (low + high) / 2 for key, (low, high, _) in line["expected"].items()}


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
    for task in dict.fromkeys(line["setting"]["task"] for line in lines):
        yield f"accuracy-{task}", accuracy([line for line in lines if line["setting"]["task"] == task])


def main(results: str, out: str) -> None:
    draw("liao2019", figures(Path(results)), Path(out))
