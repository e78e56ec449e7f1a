"""Draws the figures of the SVD-softmax and hierarchical study (Vlasova et al.) from stored runs, as SVG files.

    headlong reproduce vlasova-softmax:figures RESULTS OUT

spectra, spectra-weighted   singular values of several models' layers        RESULTS/vlasova-softmax.spectra.json
kl                          divergence over the preview's width              RESULTS/vlasova-softmax.svd.jsonl
missed-10, missed-1000      of the top K, what is not scored exactly         the same
loss-LAYER                  loss over the preview's width, each layer        RESULTS/vlasova-softmax.svd*.jsonl
time-10000, time-793471     time per token on the CPU, by class count        RESULTS/hierarchical-times.json
time-cuda, ...-synthetic    the same on a GPU, where they were run           RESULTS/vlasova-softmax.cuda*.jsonl
perplexity, agreement       every head beside the full softmax               RESULTS/vlasova-softmax.hierarchical*.jsonl
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headlong.bench.measure import read_run
from headlong.report.plots import Point, Range, Row, Series, dot_plot, lines, ranges, scatter
from headlong.studies.papers import read
from headlong.studies.papers.drawing import draw

DRAWN = 24
"""Singular values drawn for each layer, evenly spread on a logarithmic axis."""
FOUND = {"top10": 10, "top1000": 1000}
LAYERS = {"": "wikitext2-gpt512", "-lstm": "wikitext2-lstm", "-ptb": "ptb-lstm"}
CORPORA = {"": "Penn Treebank", "-wikitext2": "WikiText-2"}


def spectra(runs: Sequence[dict[str, Any]], kind: str, title: str) -> str:
    """Singular values over the largest one."""
    series = {}
    for run in runs:
        values = run[kind]
        at = np.unique(np.round(np.geomspace(1, len(values), DRAWN)).astype(int)).tolist()
        name = f"{run['layer']}, D = {run['dim']}"
        series[name] = [Range(r, values[r - 1], values[r - 1], values[r - 1]) for r in at if values[r - 1] > 0]
    return ranges(title, series, (_plain, _plain), ("direction", "singular value, of the largest"))


def over_widths(rows: Sequence[dict[str, Any]], value: Callable[[dict[str, float]], float], title: str, name: str) -> str:
    """A line for each rotation and number of exact rows; what is zero has no place on a logarithmic axis."""
    series: dict[str, list[tuple[float, float, str]]] = {}
    for row in rows:
        asked, found = row["setting"], value(row["got"])
        if found > 0:
            point = (1 / float(asked["width"][2:]), found, f"{found:.3g} at {asked['width']}")
            series.setdefault(f"{asked['rotation']}, N = {asked['rows']}", []).append(point)
    drawn = [Series(label, tuple(sorted(points))) for label, points in series.items()]
    return lines(title, drawn, (lambda x: f"D/{1 / x:.0f}", _plain), ("preview width", name))


def times(entries: Sequence[dict[str, Any]], title: str, caption: str) -> str:
    """Median of each method, fastest first, from the tenth to the ninetieth percentile."""
    rows = []
    for entry in entries:
        low, high = np.percentile(entry["seconds"], (10, 90)).tolist()
        middle = statistics.median(entry["seconds"])
        rows.append(Row(entry["contestant"], middle, low, high, _microseconds(middle)))
    return dot_plot(title, sorted(rows, key=lambda row: row.value), _microseconds, caption)


def times_on_a_gpu(rows: Sequence[dict[str, Any]]) -> str:
    """The faster of both ways to call each, with the other at the end of its line."""
    found = []
    for row in rows:
        one, two = sorted(1e-6 * row["got"][way] for way in ("plain", "graph"))
        found.append(Row(row["setting"]["head"], one, one, two, _microseconds(one)))
    title = f"Time per token on a GPU, {rows[0]['setting']['layer']}"
    return dot_plot(title, sorted(found, key=lambda row: row.value), _microseconds, rows[0]["environment"].get("device", ""))


def heads(rows: Sequence[dict[str, Any]], across: str, up: str, names: tuple[str, str], title: str) -> str:
    """Every head as a point."""
    points = []
    for row in rows:
        x, y = row["got"][across], row["got"][up]
        points.append(Point(row["setting"]["head"], x, y, f"{names[0]} {_plain(x)}, {names[1]} {_plain(y)}"))
    return scatter(title, points, (_plain, _plain), names)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.0f} µs" if seconds < 1e-3 else f"{1e3 * seconds:,.3g} ms"


def figures(results: Path) -> Iterator[tuple[str, str]]:
    """Every figure whose run is stored."""
    if (file := results / "vlasova-softmax.spectra.json").is_file():
        runs = read_run(file)["runs"]
        yield "spectra", spectra(runs, "plain", "Singular values of output layers")
        yield "spectra-weighted", spectra(runs, "weighted", "Singular values as hidden vectors weight them, mean row left out")
    if rows := read(results / "vlasova-softmax.svd.jsonl"):
        yield "kl", over_widths(rows, lambda got: got["kl"], "Divergence from the full softmax", "KL, nats")
        for key, top in FOUND.items():
            title = f"Of the top {top:,}, classes that are not scored exactly"
            yield f"missed-{top}", over_widths(rows, lambda got, k=key, t=top: t - got[k], title, f"missed of {top:,}")  # type: ignore[misc]
    for part, layer in LAYERS.items():
        if rows := [row for row in read(results / f"vlasova-softmax.svd{part}.jsonl") if "loss" in row["got"]]:
            full = math.exp(rows[0]["got"]["full_loss"])
            title = f"Loss above the full softmax's (perplexity {full:.1f}), {layer}"
            yield f"loss-{layer}", over_widths(rows, lambda got: got["loss"] - got["full_loss"], title, "nats a word")
    if (file := results / "hierarchical-times.json").is_file():
        yield from _on_the_cpu(read_run(file), results)
    for part in ("cuda", "cuda-synthetic"):
        if rows := read(results / f"vlasova-softmax.{part}.jsonl"):
            yield f"time-{part}", times_on_a_gpu(rows)
    for part, corpus in CORPORA.items():
        if rows := read(results / f"vlasova-softmax.hierarchical{part}.jsonl"):
            title, names = f"Heads on one backbone, {corpus}", ("share of a float32 matrix read", "perplexity")
            yield f"perplexity{part}", heads(rows, "read", "perplexity", names, f"{title}: what is read, and perplexity")
            names = ("perplexity", "of the full softmax's best ten")
            yield f"agreement{part}", heads(rows, "perplexity", "top10", names, f"{title}: perplexity, and the same best ten")


def _on_the_cpu(record: dict[str, Any], results: Path) -> Iterator[tuple[str, str]]:
    """A figure for each number of classes, which says whether a GPU was measured as well."""
    where = record["environment"]
    for run, part in zip(record["runs"], ("cuda", "cuda-synthetic"), strict=True):
        there = (results / f"vlasova-softmax.{part}.jsonl").is_file()
        gpu = "GPU: a figure of its own" if there else "GPU: not run"
        caption = f"top-10, one query at a time; {where['cpu']}, {where['threads']} threads; {gpu}"
        classes = run["layer"].split(", ", 1)[1].split(" x ")[0].replace(",", "")
        yield f"time-{classes}", times(run["entries"], f"Time per token, {run['layer']}", caption)


def main(results: str, out: str) -> None:
    draw("vlasova-softmax", figures(Path(results)), Path(out))
