"""The tables of the page on doubly sparse experts: what was learned, and what became of every printed number."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any

from tables_records import lines

from headlong.report import measured_on
from headlong.report.tables import ReportTable, markdown
from studies.papers.shown import joined

METRICS = {
    "top1": "top-1", "gain": "less the full layer's", "bleu": "BLEU", "top5": "top-5", "top10": "top-10",
    "flops": "times fewer", "hit": "targets held", "rows_per_class": "rows a class", "removed": "rows pruned",
    "sparse": "gone of K whole copies",
}  # fmt: skip
SHOWN: dict[str, Callable[[float], str]] = {
    "bleu": lambda value: f"{value:.2f}",
    "gain": lambda value: f"{value:+.4f}",
    "flops": lambda value: f"{value:.2f}",
    "rows_per_class": lambda value: f"{value:.2f}",
    "hit": lambda value: f"{value:.1%}",
    "removed": lambda value: f"{value:.1%}",
    "sparse": lambda value: f"{value:.1%}",
}
NAMES = {"ptb": "Penn Treebank", "wikitext2": "WikiText-2", "multi30k": "Multi30k", "characters": "rendered characters"}


def learned() -> str:
    """Means over seeds with their standard deviation, a row for each method."""
    found = lines("liao2019.learned")
    if not found:
        return "Not run yet: `python -m studies reproduce liao2019:learned`."
    rows = [
        (group[0]["setting"]["task"], group[0]["setting"]["method"], str(len(group)), *(_cell(group, name) for name in METRICS))
        for group in sorted(joined(found), key=_place)
    ]
    said = f"Test split. Rows are of {measured_on.ran(line['environment'] for line in found)}."
    return markdown(ReportTable("", ("task", "method", "seeds", *METRICS.values()), tuple(rows), said))


def _place(group: Any) -> tuple[str, bool, str, int, str]:
    """Experts last, few before many."""
    setting = group[0]["setting"]
    kind, _, count = setting["method"].partition("-")
    number = int(count) if kind in ("ds", "adam") else 0
    return setting["task"], number > 0, kind, number, setting["method"]


def _cell(group: Any, metric: str) -> str:
    values = [line["got"][metric] for line in group if metric in line["got"]]
    if not values:
        return ""
    show: Callable[[float], str] = SHOWN.get(metric, "{:.4f}".format)
    spread = f" ± {show(stdev(values)).lstrip('+')}" if len(values) > 1 else ""
    return show(fmean(values)) + spread


def pruned() -> str:
    """Which measure of pruning says what of the experts that were to lose 80 % of their rows."""
    found = lines("liao2019.learned")
    said = []
    for task, name in NAMES.items():
        mine = [line["got"] for line in found if (line["setting"]["task"], line["setting"]["method"]) == (task, "ds-16")]
        if mine:
            gone, removed = (fmean(got[key] for got in mine) for key in ("sparse", "removed"))
            lost = f"{gone:.1%} of 16 whole copies are gone and {removed:.1%} of all rows that ever existed were pruned"
            said.append(f"on {name} {lost}")
    return f"With 16 learned experts, {'; '.join(said)} (means of the seeds)." if said else "No committed run yet."


BLOCKS: dict[str, Callable[[], str]] = {"learned-experts": learned, "learned-pruned": pruned}
