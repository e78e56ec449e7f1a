"""The command of this folder, run from the root of the repository::

    python -m studies list [STUDY]               every table and script; what became of each printed figure
    python -m studies reproduce STUDY:TABLE      run a table, or a script of a study
    python -m studies train RECIPE               train a small model
    python -m studies harvest RUN                its output layer, and hidden vectors with their targets

A fault is one line and exit status 2, as everywhere in headlong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headlong.bench.measure import claim_threads, environment, processors
from headlong.errors import HeadlongError, OptionError
from studies import papers
from studies.papers import scripts, shown
from studies.papers.cells import RESULTS, STUDIES, account, counts


def parser() -> argparse.ArgumentParser:
    """Every command with its options."""
    found = argparse.ArgumentParser(prog="python -m studies", description="Four published studies, run again.")
    found.add_argument("--threads", type=int, default=0, help="threads of every library; default: all processors")
    commands = found.add_subparsers(dest="command", required=True)
    listed = commands.add_parser("list", help="tables, whether they can run here, and every printed figure")
    listed.add_argument("study", nargs="?", help="one study, to list its figures too")
    listed.add_argument("--results", type=Path, default=RESULTS)
    run = commands.add_parser("reproduce", help="run a table or a script; a table's rows are judged")
    run.add_argument("target", help="STUDY, STUDY:TABLE or STUDY:SCRIPT, as list shows them")
    run.add_argument("arguments", nargs="*", help="of a script")
    run.add_argument("--model", type=Path, help="a folder: a table's pretrained model, or its corpus")
    run.add_argument("--out", type=Path, default=RESULTS, help="the folder for the rows, a JSON-lines file a table")
    run.add_argument("--queries", type=int, help="at most this many; default: all")
    run.add_argument("--rows", default="", help="only rows that hold this text, such as seed=1")
    train = commands.add_parser("train", help="train a small model")
    train.add_argument("recipe", nargs="?", help="its name; without one: the recipes that there are")
    train.add_argument("--data", help="a data set's name or folder, or a text file")
    train.add_argument("--head", help="the output layer: dense, ...")
    train.add_argument("--option", action="append", default=[], help="table.key=value of the recipe; may be repeated")
    train.add_argument("--out", type=Path, help="the run's folder")
    train.add_argument("--seed", type=int)
    train.add_argument("--json", action="store_true", help="print the whole record")
    harvest = commands.add_parser("harvest", help="a run's output layer, and hidden vectors with their targets")
    harvest.add_argument("run", help="a run's folder, or its file")
    harvest.add_argument("--out", type=Path, default=Path("harvest"))
    harvest.add_argument("--splits", default="train,valid")
    harvest.add_argument("--rows", type=int, default=8192, help="hidden vectors of each split; 0: all")
    harvest.add_argument("--dtype", default="float16", help="of the hidden vectors: float16 or float32")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """The exit status."""
    asked = parser().parse_args(words)
    if asked.threads < 0:
        return _refused(f"--threads is {asked.threads}; expected 1 or more")
    count = asked.threads or processors()
    claim_threads(count)
    try:
        COMMANDS[asked.command](asked, count)
    except (HeadlongError, OSError) as fault:
        return _refused(str(fault))
    return 0


def _refused(fault: str) -> int:
    sys.stderr.write(f"studies: {' '.join(fault.split())}\n")
    return 2


def list_(asked: argparse.Namespace, threads: int) -> None:
    """Every table and script, then what became of every printed figure."""
    target = asked.study
    here = [
        (table.name, table.claim, papers.so_far(table, asked.results), papers.missing(table) or "can run")
        for table in papers.tables(target)
    ]
    here += [(name, script.claim, "", f"takes {script.takes}") for name, script in scripts.of(target)]
    found = {paper: account(paper, asked.results) for paper in STUDIES if target in (None, paper)}
    shown.show(("table", "claim", "rows so far", "here"), here)
    shown.show(*shown.counted({paper: counts(mine) for paper, mine in found.items()}))
    if target is not None:
        for mine in found.values():
            shown.show(shown.CELLS, mine)


def reproduce(asked: argparse.Namespace, threads: int) -> None:
    """One table's rows, each kept as soon as it is there; or a script."""
    if asked.target in scripts.SCRIPTS:
        scripts.run(asked.target, asked.arguments)
        return
    if asked.arguments:
        raise OptionError(f"{asked.target} takes no arguments; got {' '.join(asked.arguments)}: 'list' shows which tables do")
    found = papers.tables(asked.target)
    if asked.queries is not None and (asked.queries < 1 or all(table.planned is not None for table in found)):
        raise OptionError(f"--queries is {asked.queries}; expected 1 or more, and a table without rows of a fixed size")
    chosen = [table for table in found if papers.planned(table, asked.rows)]
    if not chosen:
        raise OptionError(f"no row of {asked.target} holds {asked.rows!r}; --rows takes a part of a setting, such as 'seed=1'")
    given = _given(asked.model, found, asked.out)
    for table in chosen:
        if asked.target != table.name and (reason := papers.missing(table, given)):
            sys.stderr.write(f"{table.name} is not run: {reason}\n")
            continue
        path = asked.out / f"{table.paper}.{table.table}.jsonl"
        if table.planned is not None:
            lines = papers.study(table, path, environment(threads), shown.progress, asked.rows, given)
        else:
            lines = list(papers.results(table, shown.progress, asked.queries))
            papers.write(path, lines, environment(threads))
        shown.show(*shown.paper_table(lines))
        sys.stderr.write(f"wrote {path}\n")


def _given(model: Path | None, found: Sequence[papers.PaperTable], out: Path) -> Path | None:
    """Where what ``--model`` names was put for the table; None without it."""
    if model is None:
        return None
    if len(found) != 1 or found[0].prepare is None:
        takes = "one table that takes a model or a corpus, such as baharav2024:gpt2-wikitext2 or vlasova-softmax:gbw"
        raise OptionError(f"--model is {model} for {len(found)} tables; expected {takes}")
    root = out / "models" / found[0].name.replace(":", ".")
    found[0].prepare(model, root, shown.progress)
    return root


def train(asked: argparse.Namespace, threads: int) -> None:
    """A recipe in, a run's folder out."""
    from studies.models import recipe

    if asked.recipe is None:
        sys.stdout.write("\n".join(sorted(recipe.RECIPES)) + "\n")
        return
    given = {"data": asked.data, "head.kind": asked.head, "training.seed": asked.seed}
    settings = {name: value for name, value in given.items() if value is not None} | dict(map(_choice, asked.option))
    chosen = recipe.read_recipe(asked.recipe, settings)
    from studies.models import run  # torch: only what can be trained waits for it

    record = run.train(chosen, asked.out, shown.progress(chosen.name))
    _say(record) if asked.json else sys.stdout.write(run.summary(record) + "\n")


def harvest(asked: argparse.Namespace, threads: int) -> None:
    """A trained model's layer, and the vectors that it was asked about."""
    from studies.models.harvest import Wish, harvest

    wish = Wish(tuple(split.strip() for split in asked.splits.split(",")), asked.rows, asked.dtype)
    sys.stderr.write(f"wrote {harvest(asked.run, asked.out, wish, shown.progress)}\n")


COMMANDS: dict[str, Callable[[argparse.Namespace, int], None]] = {
    "list": list_, "reproduce": reproduce, "train": train, "harvest": harvest,
}  # fmt: skip


def _choice(pair: str) -> tuple[str, Any]:
    """``"model.dim=64" -> ("model.dim", 64)``: JSON where it is JSON, text elsewhere."""
    name, equals, text = pair.partition("=")
    if not equals or not name:
        raise OptionError(f"--option {pair!r}; expected name=value, such as model.dim=64")
    try:
        return name, json.loads(text)
    except ValueError:
        return name, text


def _say(value: Any) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
