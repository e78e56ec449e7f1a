"""``headlong reproduce``: run published tables on the available data, and say for each number whether it matched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headlong.cli.shared_options import JsonLines, Threads, settled
from headlong.errors import OptionError

if TYPE_CHECKING:
    from headlong.studies.papers import PaperTable


def reproduce(
    target: Annotated[str | None, typer.Argument(metavar="[PAPER[:TABLE]]", help="Default: everything.")] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="Of a script of the study: --list says which it takes.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Tables, whether they can run here, and every printed figure: matched, not run, ...")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="A local folder: a table's pretrained model, or its corpus; --list says which take one.")
    ] = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The folder for the results, one JSON-lines file per table.")
    ] = Path("results"),
    queries: Annotated[int | None, typer.Option(help="At most this many queries; default: all.")] = None,
    rows: Annotated[str, typer.Option(help="Of a study, only rows that hold this text, such as 'seed=1'.")] = "",
    threads: Threads = None,
    as_json: JsonLines = False,
) -> None:
    """Run published tables on the available data, and say for each number whether it matched."""
    count = settled(threads)
    from headlong.bench.measure import environment
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, say_json, show
    from headlong.number_checks import whole
    from headlong.report.papers import paper_table
    from headlong.studies import papers
    from headlong.studies.papers import scripts

    if target in scripts.SCRIPTS:
        scripts.run(target, arguments or [])
        return
    if arguments:
        raise OptionError(f"{target} takes no arguments; got {' '.join(arguments)}: 'reproduce --list' shows which tables do")
    if queries is not None:
        whole(queries, "--queries", 1, 2**31)
    found = papers.tables(target)
    if queries is not None and all(table.planned is not None for table in found):
        raise OptionError(f"--queries is {queries}; the rows of {target} have a fixed size: leave it out; --rows chooses rows")
    if not any(papers.planned(table, rows) for table in found):
        where = target or "any study"
        raise OptionError(f"no row of {where} holds {rows!r}; --rows takes a part of a study's setting, such as 'seed=1'")
    if listed:
        _accounted(target, out, as_json)
        return
    given = _given(model, found, out)
    for table in found:
        if target is None and (reason := papers.missing(table, given)):
            typer.echo(f"{table.name} is not run: {reason}", err=True)
            continue
        if not papers.planned(table, rows):
            continue
        path = inputs.target(out / f"{table.paper}.{table.table}.jsonl")
        with bars() as stage:
            if table.planned is not None:
                lines = papers.study(table, path, environment(count), stage, rows, given)
            else:
                lines = list(papers.results(table, stage, queries))
                papers.write(path, lines, environment(count))
        if as_json:
            for line in lines:
                say_json(line)
        else:
            show(paper_table(lines, f"{table.name}: {table.claim}", table.source))
        typer.echo(f"wrote {path}", err=True)


def _accounted(target: str | None, results: Path, as_json: bool) -> None:
    """The tables and scripts, and what became of every printed figure: counts, and of one study the cells themselves."""
    from headlong.cli.terminal import say_json, show
    from headlong.report.tables import cell_counts, cell_list, paper_list
    from headlong.studies import papers
    from headlong.studies.papers import account, cells, scripts

    here = [(table.name, table.claim, papers.missing(table) or "can run") for table in papers.tables(target)]
    here += [(name, script.claim, f"takes {script.takes}") for name, script in scripts.of(target)]
    asked = [paper for paper in account.STUDIES if target is None or target.partition(":")[0] == paper]
    found = {paper: account.account(paper, results) for paper in asked}
    if as_json:
        for name, claim, state in here:
            say_json({"table": name, "claim": claim, "here": state})
        for paper, mine in found.items():
            for cell in mine:
                say_json({"study": paper, **cell._asdict()})
        return
    show(paper_list(here))
    show(cell_counts({paper: cells.counts(mine) for paper, mine in found.items()}))
    if target is not None:
        for paper, mine in found.items():
            show(cell_list(paper, mine))


def _given(model: str | None, found: Sequence[PaperTable], out: Path) -> Path | None:
    """Where what ``--model`` names was put for the tables; None without it."""
    if model is None:
        return None
    from headlong.cli.terminal import bars

    if len(found) != 1 or found[0].prepare is None:
        takes = "one table that takes a model or a corpus, such as baharav2024:gpt2-wikitext2 or vlasova-softmax:gbw"
        raise OptionError(f"--model is {model!r} for {len(found)} tables; expected {takes}")
    root = out / "models" / found[0].name.replace(":", ".")
    with bars() as stage:
        found[0].prepare(Path(model), root, stage)
    return root
