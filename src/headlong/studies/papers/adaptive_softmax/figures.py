"""Draws the figures of Baharav et al. (2024) from stored runs, as SVG files.

    headlong reproduce baharav2024:figures RESULTS OUT

synthetic-a, synthetic-b   samples per class over D, error bars of 100 trials       RESULTS/baharav2024.synthetic.jsonl
variance                   error and stated variance of each estimator over m       RESULTS/baharav2024.variance.jsonl
entries, entries-drawn     2-D histograms of (A, x): all, and the drawn tenth       the WikiText-2 layer in HEADLONG_DATA
second-order               the cross terms of the estimate's variance               the same
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.report.axes import Axis
from headlong.report.plots import Range, heat, ranges
from headlong.studies.papers import Context, read
from headlong.studies.papers.adaptive_softmax.variance import ESTIMATORS, Subject, cross, pairs, subject, tenth
from headlong.studies.papers.drawing import draw

CELLS = 24
TWO_ERRORS = 2.0


def synthetic(lines: list[dict[str, Any]], panel: str) -> str:
    """Samples per class and a full read; bars are two standard errors."""
    rows = [line for line in lines if line["setting"]["panel"] == panel and line["setting"]["dim"] != "scaling"]
    ours, full = [], []
    for line in rows:
        dim, got = float(line["setting"]["dim"]), line["got"]
        bar = TWO_ERRORS * got["samples_se"]
        ours.append(Range(dim, got["samples"], got["samples"] - bar, got["samples"] + bar))
        full.append(Range(dim, dim, dim, dim))
    title = f"Samples per class, panel ({panel}), {rows[0]['got']['trials']:.0f} trials"
    return ranges(title, {"AdaptiveSoftmax": ours, "full read": full}, (_number, _number), ("D", "samples per class"))


def variance(lines: list[dict[str, Any]]) -> str:
    """Mean squared errors, and what each estimator states."""
    series: dict[str, list[Range]] = {}
    for name in ESTIMATORS:
        mine = [(float(line["setting"]["m"]), line["got"]) for line in lines if line["setting"]["estimator"] == name]
        series[f"{name}: stated"] = [Range(m, got["stated"], got["stated"], got["stated"]) for m, got in mine]
        if name != "uniform, naive":
            series[name] = [Range(m, g["mse"], g["mse"] - 2 * g["mse_se"], g["mse"] + 2 * g["mse_se"]) for m, g in mine]
    return ranges("Squared error over draws", series, (_number, _number), ("m of 512 coordinates", "of m = 16, importance"))


def entries(about: Subject, picked: NDArray[np.bool_], title: str) -> str:
    """How often A and x come together, both signs: symmetrical about 0 where the draw prefers none."""
    a, x = pairs(about, picked)
    wide, high = (float(np.quantile(np.abs(part), 0.995)) for part in (about.others, about.hidden))
    counts, _, _ = np.histogram2d(x, a, CELLS, [(-high, high), (-wide, wide)])
    axes = Axis(-wide, wide, 80.0, 520.0), Axis(-high, high, 340.0, 24.0)
    return heat(title, (counts / counts.sum()).tolist(), axes, ("A", "x"))


def second_order(about: Subject) -> str:
    """How the cross terms lie about 0: the share of pairs by size, of the sum of all single terms, for each sign."""
    rng = np.random.default_rng(3)
    found = [cross(terms, shares, rng) for terms, shares in zip(about.terms, about.shares, strict=True)]
    sizes = np.concatenate([part.cross / part.single for part in found])
    edges = np.arange(-9.0, 0.25, 0.5)
    series = {}
    for name, part in (("above 0", sizes[sizes > 0]), ("below 0", -sizes[sizes < 0])):
        held, _ = np.histogram(np.log10(part), edges)
        centres = 10 ** ((edges[1:] + edges[:-1]) / 2)
        shares = held / len(sizes)
        series[name] = [Range(c, s, s, s) for c, s in zip(centres.tolist(), shares.tolist(), strict=True) if s > 0]
    named = ("cross term, of the sum of all single terms", "share of pairs")
    return ranges("The second-order terms", series, (_number, lambda y: f"{y:.2g}"), named)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def figures(results: Path) -> Iterator[tuple[str, str]]:
    """Every figure whose run is stored, or whose layer is there."""
    made, varied = (read(results / f"baharav2024.{name}.jsonl") for name in ("synthetic", "variance"))
    if made:
        yield from ((f"synthetic-{panel}", synthetic(made, panel)) for panel in "ab")
    if varied:
        yield "variance", variance(varied)
    if root := os.environ.get("HEADLONG_DATA"):
        about = subject(Context(Path(root), lambda name: lambda done, total: None))
        picked = tenth(about, "importance")
        yield "entries", entries(about, np.ones_like(picked), "Entries of classes at random")
        yield "entries-drawn", entries(about, picked, "The tenth of them that is drawn first")
        yield "second-order", second_order(about)


def main(results: str, out: str) -> None:
    draw("baharav2024", figures(Path(results)), Path(out))
