"""Draws the figures of Ganea et al. (2019) from stored runs, as SVG files.

    headlong reproduce ganea2019:figures RESULTS OUT

match-0.01, match-0.1   contexts whose likeliest outcome is right, over d, each head        RESULTS/ganea2019.synthetic.jsonl
loss-0.01, loss-0.1     cross-entropy less the targets' entropy, over d                     the same
links                   f(z) - f(0) of every link learned on Penn Treebank                  RESULTS/ganea2019-trained.json
ranks                   rank of the log-probabilities beside what a softmax cannot exceed   the same
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headlong.report.plots import Range, Row, dot_plot, functions, ranges
from headlong.studies.papers import read
from headlong.studies.papers.drawing import draw
from headlong.studies.papers.monotonic_softmax.synthetic import ALPHAS


def over_dims(lines: list[dict[str, Any]], alpha: str, metric: str, title: str, name: str) -> str:
    """Means over the seeds, bars from the least to the largest."""
    series: dict[str, list[Range]] = {}
    mine = [line for line in lines if line["setting"]["alpha"] == alpha]
    for head in dict.fromkeys(line["setting"]["head"] for line in mine):
        for dim in sorted({int(line["setting"]["d"]) for line in mine}):
            found = [
                line["got"][metric] for line in mine if line["setting"]["head"] == head and int(line["setting"]["d"]) == dim
            ]
            if found and statistics.fmean(found) > 0:
                mean = statistics.fmean(found)
                series.setdefault(head, []).append(Range(float(dim), mean, max(min(found), 0.0), max(found)))
    return ranges(f"{title}, alpha {alpha}", series, (lambda d: f"{d:g}", lambda y: f"{y:.3g}"), ("d", name))


def links(record: dict[str, Any]) -> str:
    """Every learned link beside the identity."""
    found = {row["head"]: row["link"] for row in record["rows"] if "link" in row}
    z = np.linspace(-record["reach"], record["reach"], len(next(iter(found.values())))).tolist()
    drawn = {name: list(zip(z, values, strict=True)) for name, values in {"identity": z, **found}.items()}
    return functions("Links learned on Penn Treebank", drawn, ("z", "f(z) - f(0)"))


def rank_rows(record: dict[str, Any]) -> str:
    """From the effective rank at 1e-3 to that at 1e-5, and the press rank as the dot."""
    rows = []
    for row in record["rows"]:
        low, high, press = row["effective_0.001"], row["effective_1e-05"], row["press"]
        note = f"press rank {press:,}, effective {low:,} to {high:,}, softmax at most {row['softmax_rank']:,}"
        where = "made" if row["what"].startswith("made") else "trained"
        rows.append(Row(f"{row['head']}, {where}", press, min(low, press), max(high, press), note))
    return dot_plot("Ranks of log-probabilities", rows, lambda value: f"{value:,.0f}")


def figures(results: Path) -> Iterator[tuple[str, str]]:
    """Those whose run is stored."""
    if lines := read(results / "ganea2019.synthetic.jsonl"):
        for alpha in (f"{alpha:g}" for alpha in ALPHAS):
            yield f"match-{alpha}", over_dims(lines, alpha, "mode_match", "Modes that match", "% of 300 contexts")
            yield f"loss-{alpha}", over_dims(lines, alpha, "kl", "Cross-entropy above the targets' own", "nats")
    if (file := results / "ganea2019-trained.json").is_file():
        record = json.loads(file.read_text(encoding="utf-8"))
        yield "ranks", rank_rows(record)
        if any("link" in row for row in record["rows"]):
            yield "links", links(record)


def main(results: str, out: str) -> None:
    draw("ganea2019", figures(Path(results)), Path(out))
