"""The tables of the pages on the four studies: every printed figure, counts of them, and every row that was run."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from tables_integrations import RESULTS

from headlong.report.papers import paper_table
from headlong.report.tables import Table, cell_counts, markdown
from headlong.studies import papers
from headlong.studies.papers.account import STUDIES, account
from headlong.studies.papers.cells import counts, told

BOUNDS = ("at most delta, shown", "at most delta, not shown", "above delta, not shown", "above delta, shown")


def studies(folder: str) -> str:
    """A line for each study: how many figures it prints, and what became of them. ``folder``: of the pages that it leads to."""
    table = cell_counts({paper: counts(account(paper, RESULTS)) for paper in STUDIES})
    rows = tuple((f"[{STUDIES[paper].about}]({folder}{STUDIES[paper].page}.md)", *rest) for paper, *rest in table.rows)
    return markdown(Table("", table.columns, rows)).replace("|---|", "|:--|", 1)


def tables() -> str:
    """Every registered table: what it claims, and how many of its rows were run."""
    found = []
    for table in papers.tables():
        lines = lines_of(table)
        void = sum("void" in line for line in lines)
        said = f"{len(lines):,}" + (f", {void} void" if void else "")
        found.append((f"`{table.name}`", table.claim, said if lines else "not run"))
    return markdown(Table("", ("table", "claim", "rows run"), tuple(found))).replace("--:|", "---|")


def printed(paper: str) -> str:
    """Every figure that a study prints."""
    found = account(paper, RESULTS)
    columns = ("printed of", "printed", "ours", "status", "what ours is, or takes")
    text = markdown(Table("", columns, tuple(tuple(cell) for cell in found), f"{told(found)}."))
    return text.replace("--:|", "---|")


def rows(paper: str) -> str:
    """Every row of every table of a study that was run, with and without a published figure."""
    parts = []
    for table in papers.tables(paper):
        lines = lines_of(table)
        if lines:
            made = lines[0]["environment"]
            source = f"{table.source}. Run {made['date']}, commit {made.get('commit', 'not kept')}"
            void = {line["void"] for line in lines if "void" in line}
            said = "".join(f" **Void:** {reason}." for reason in sorted(void))
            shown = markdown(paper_table(lines, "", source))
            parts.append(f"### {table.name}\n\n{table.claim}.{said}\n\n{shown}")
    return "\n\n".join(parts) or "No committed run yet."


def lines_of(table: papers.PaperTable) -> list[dict[str, Any]]:
    file = RESULTS / f"{table.paper}.{table.table}.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def adaptive_rates() -> str:
    """Gain and failures of every variant on our own layers, and what the failures say of a rate of delta."""
    found = []
    for name in ("mnist", "eurosat", "eurosat-sparse", "ptb-lstm", "wikitext2-lstm", "wikitext2-gpt"):
        (table,) = papers.tables(f"baharav2024:{name}")
        lines = [line for line in lines_of(table) if "void" not in line]
        if not lines:
            found.append((name, "not run", *[""] * 6))
        for line in lines:
            got, asked = line["got"], line["setting"]
            rate, delta = got["failures"] / got["queries"], float(asked["delta"])
            bounds = f"{got['rate_above']:.2%} to {got['rate_below']:.2%}"
            shown = f"{got['failures']:.0f} of {got['queries']:.0f}", f"{rate:.2%}", bounds, held(rate, got, delta)
            found.append((name, f"{delta:.0%}", asked["variant"], f"{got['gain']:.3g}", *shown))
    columns = ("layer", "delta", "variant", "gain", "failures", "rate", "at 95 % above, below", "beside delta")
    return markdown(Table("", columns, tuple(found)))


def held(rate: float, got: dict[str, float], delta: float) -> str:
    """A rate is shown to be on a side of delta where Clopper and Pearson's bound of 95 % is."""
    if rate <= delta:
        return BOUNDS[0] if got["rate_below"] <= delta else BOUNDS[1]
    return BOUNDS[3] if got["rate_above"] > delta else BOUNDS[2]


BLOCKS: dict[str, Callable[[], str]] = {
    "studies": partial(studies, "docs/studies/"), "study-counts": partial(studies, ""), "papers": tables,
    "adaptive-rates": adaptive_rates,
}  # fmt: skip
BLOCKS |= {f"printed-{STUDIES[paper].page}": partial(printed, paper) for paper in STUDIES}
BLOCKS |= {f"rows-{STUDIES[paper].page}": partial(rows, paper) for paper in STUDIES}
PAGES = tuple(f"studies/{study.page}" for study in STUDIES.values())
