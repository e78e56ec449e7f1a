"""The tables of the pages on the four studies: every printed figure, counts of them, and every row that was run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from tables_records import STUDIES as RESULTS
from tables_records import left, lines

from headlong.report import measured_on
from headlong.report.tables import ReportTable, markdown
from studies import papers
from studies.data import DATA_SETS
from studies.papers.account import STUDIES, account
from studies.papers.cells import counts, summary
from studies.papers.shown import CELLS, counted, paper_table

BOUNDS = ("at most delta, shown", "at most delta, not shown", "above delta, not shown", "above delta, shown")


def studies(folder: str) -> str:
    """A line for each study: how many figures it prints, and what became of them. ``folder``: of the pages that it leads to."""
    columns, found = counted({paper: counts(account(paper, RESULTS)) for paper in STUDIES})
    rows = tuple((f"[{STUDIES[paper].about}]({folder}{STUDIES[paper].page}.md)", *rest) for paper, *rest in found)
    return markdown(ReportTable("", tuple(columns), rows)).replace("|---|", "|:--|", 1)


def tables() -> str:
    """Every registered table: what it claims, and how many of its rows were run."""
    found = []
    for table in papers.tables():
        ran = lines_of(table)
        found.append((f"`{table.name}`", table.claim, f"{len(ran):,}" if ran else "not run"))
    return left(ReportTable("", ("table", "claim", "rows run"), tuple(found)))


def printed(paper: str) -> str:
    """Every figure that a study prints."""
    found = account(paper, RESULTS)
    return left(ReportTable("", CELLS, tuple(tuple(cell) for cell in found), f"{summary(found)}."))


def rows(paper: str) -> str:
    """Every row of every table of a study that was run, with and without a published figure."""
    parts = []
    for table in papers.tables(paper):
        found = lines_of(table)
        if found:
            source = f"{table.source}. Rows are of {measured_on.ran(line['environment'] for line in found)}"
            shown = markdown(_shown(found, source))
            parts.append(f"### {table.name}\n\n{table.claim}.\n\n{shown}")
    return "\n\n".join(parts) or "No committed run yet."


def _shown(found: list[dict[str, Any]], source: str) -> ReportTable:
    columns, rows = paper_table(found)
    return ReportTable("", tuple(columns), tuple(map(tuple, rows)), f"Published: {source}.")


def lines_of(table: papers.PaperTable) -> list[dict[str, Any]]:
    return lines(f"{table.paper}.{table.table}")


def one_table(name: str) -> str:
    """The rows of one table, on a page of its own."""
    (table,) = papers.tables(name)
    found = lines_of(table)
    return markdown(_shown(found, table.source)) if found else "No committed run yet."


def data_sets() -> str:
    """Every row of the registry."""
    rows = [
        (f"`{row.name}`", row.kind, row.source, row.licence, "`data.fetch`" if row.downloads else row.obtain)
        for row in DATA_SETS.values()
    ]
    return left(ReportTable("", ("name", "kind", "what and from where", "licence", "how to get it"), tuple(rows)))


def adaptive_rates() -> str:
    """Gain and failures of every variant on our own layers, and what the failures say of a rate of delta."""
    found = []
    for name in ("mnist", "eurosat", "eurosat-sparse", "ptb-lstm", "wikitext2-lstm", "wikitext2-gpt"):
        (table,) = papers.tables(f"baharav2024:{name}")
        ran = lines_of(table)
        if not ran:
            found.append((name, "not run", *[""] * 6))
        for line in ran:
            got, asked = line["got"], line["setting"]
            rate, delta = got["failures"] / got["queries"], float(asked["delta"])
            bounds = f"{got['rate_above']:.2%} to {got['rate_below']:.2%}"
            shown = f"{got['failures']:.0f} of {got['queries']:.0f}", f"{rate:.2%}", bounds, held(rate, got, delta)
            found.append((name, f"{delta:.0%}", asked["variant"], f"{got['gain']:.3g}", *shown))
    columns = ("layer", "delta", "variant", "gain", "failures", "rate", "at 95 % above, below", "beside delta")
    return markdown(ReportTable("", columns, tuple(found)))


def entries() -> str:
    """How the entries of our layer lie, drawn by importance and evenly."""
    found = {line["setting"]["drawn"]: line["got"] for line in lines("baharav2024.entries")}
    if not {"importance", "uniform"} <= set(found):
        return "- Entries of our layer are not looked at yet: `python -m studies reproduce baharav2024:entries`."
    drawn, even = found["importance"], found["uniform"]
    return (
        "- **Are entries symmetrical and uncorrelated?** The review describes the entries (A, x) of Mistral-7B so. In ours "
        f"A x is above 0 in {drawn['product_positive']:.1%} of {drawn['entries']:,.0f} entries that are drawn first, and the "
        f"correlation is {drawn['correlation']:.2f}; of entries drawn evenly {even['product_positive']:.1%} and "
        f"{even['correlation']:.2f}. It is another layer, so the cell stays a stand-in."
    )


def provenance() -> str:
    """How many rows of the studies do not name the build that they were run on, by file."""
    every, bare = 0, Counter[str]()
    for file in sorted(RESULTS.glob("*.jsonl")):
        made = [line["environment"] for line in lines(file.stem)]
        every += len(made)
        bare[file.name] = sum(not (one.get("headlong") and one.get("commit")) for one in made)
    each = ", ".join(f"{count} of `{name}`" for name, count in bare.most_common() if count)
    return f"{bare.total()} of the {every} rows of the studies do not name both version and commit: {each}."


def held(rate: float, got: dict[str, float], delta: float) -> str:
    """A rate is shown to be on a side of delta where Clopper and Pearson's bound of 95 % is."""
    if rate <= delta:
        return BOUNDS[0] if got["rate_below"] <= delta else BOUNDS[1]
    return BOUNDS[3] if got["rate_above"] > delta else BOUNDS[2]


BLOCKS: dict[str, Callable[[], str]] = {
    "studies": partial(studies, "studies/pages/"), "study-counts": partial(studies, ""), "papers": tables,
    "adaptive-entries": entries, "adaptive-rates": adaptive_rates, "data-sets": data_sets,
    "finished": partial(one_table, "ganea2019:finished"), "provenance": provenance,
}  # fmt: skip
BLOCKS |= {name: partial(one_table, f"vlasova-softmax:{name}") for name in ("svd", "svd-lstm", "svd-ptb")}
BLOCKS |= {f"printed-{STUDIES[paper].page}": partial(printed, paper) for paper in STUDIES}
BLOCKS |= {f"rows-{STUDIES[paper].page}": partial(rows, paper) for paper in STUDIES}
