"""Published tables as data: what was claimed, how it is run here, what was expected, and how near we came.

One file for each paper registers its tables. A table yields rows; each row is a setting and the numbers measured for it.
A row for which nothing was published gets the verdict "no figure"; a table whose data are not here is "not run", with
the reason. Nothing is dropped silently.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from headlong.bench.measure import Progress
from headlong.errors import DataError, OptionError, StoreError, cause
from studies.papers.cells import Expected, lines_of

FILES = (
    "svd_hierarchical.softmax", "svd_hierarchical.hierarchical",
    "monotonic_softmax.synthetic", "monotonic_softmax.language_models", "doubly_sparse.tables",
    "adaptive_softmax.tables", "adaptive_softmax.synthetic", "adaptive_softmax.variance",
)  # fmt: skip

Setting = tuple[tuple[str, str], ...]
"""What a row was run with, such as ``(("width", "D/8"), ("rows", "V/10"), ("rotation", "plain"))``."""


class Context(NamedTuple):
    """What a run is given: the data folder, progress by stage, and the most queries to evaluate (None: all).

    A study (a table with ``planned`` rows) is also told which rows are ``done``, and ``only`` which text a row must hold.
    """

    data: Path
    stage: Callable[[str], Progress]
    queries: int | None = None
    done: frozenset[Setting] = frozenset()
    only: str = ""

    def left(self, rows: Iterable[Setting]) -> list[Setting]:
        """Those of the rows that are wanted and not there yet."""
        return [row for row in rows if row not in self.done and self.only in words(row)]


def words(setting: Setting) -> str:
    """``head=softmax seed=1``: what ``--rows`` looks in."""
    return " ".join(f"{name}={value}" for name, value in setting)


class Model(NamedTuple):
    """What a row was measured on: a model's name (a Hugging Face model's type) and the shape of its output layer."""

    name: str
    vocab: int
    dim: int


class Row(NamedTuple):
    """One line of a table as measured."""

    setting: Setting
    got: Mapping[str, float]
    model: Model | None = None


@dataclass(frozen=True)
class PaperTable:
    """``source`` says where the expected numbers come from, and whether anyone checked them against the paper."""

    paper: str
    table: str
    claim: str
    source: str
    needs: tuple[str, ...]
    run: Callable[[Context], Iterator[Row]]
    expected: Mapping[Setting, Mapping[str, Expected]] = field(default_factory=dict)
    models: tuple[Model, ...] = ()
    """Those that ``expected`` is printed of, where rows name one: a row of another is a stand-in, whatever it has come to."""
    planned: Callable[[], list[Setting]] | None = None
    """The rows of a study, which is run row by row: those that the results hold are not run again."""
    here: Callable[[], str] = str
    """Why this machine cannot run it; empty where it can."""
    trains: bool = False
    """With PyTorch: the type of its products belongs to the environment of its rows."""
    prepare: Callable[[Path, Path, Callable[[str], Progress]], None] | None = None
    """Makes ``needs`` under its second argument from a folder that a user has: a model's weights, a corpus."""

    @property
    def name(self) -> str:
        return f"{self.paper}:{self.table}"


TABLES: dict[str, PaperTable] = {}


def register(table: PaperTable) -> PaperTable:
    TABLES[table.name] = table
    return table


def tables(target: str | None = None) -> list[PaperTable]:
    """All tables, those of ``PAPER``, or the one ``PAPER:TABLE``."""
    for file in FILES:
        importlib.import_module(f"studies.papers.{file}")
    found = [TABLES[name] for name in sorted(TABLES) if target in (None, TABLES[name].paper, name)]
    if not found:
        raise OptionError(f"there is no table {target!r}; expected one of {', '.join(TABLES)}, or a paper's name")
    return found


def planned(table: PaperTable, only: str) -> bool:
    """Whether rows of the table hold the text: all do without one, and only a study's rows are told apart with one."""
    return not only or (table.planned is not None and any(only in words(setting) for setting in table.planned()))


def missing(table: PaperTable, given: Path | None = None) -> str:
    """Why the table cannot be run here; empty where it can. ``given``: the folder with its needs, instead of HEADLONG_DATA."""
    root = os.environ.get("HEADLONG_DATA", "") if given is None else str(given)
    if reason := table.here():
        return reason
    if not table.needs:
        return ""
    more = f"; or python -m studies reproduce {table.name} --model FOLDER" if table.prepare is not None else ""
    if not root:
        return f"HEADLONG_DATA is not set: it names the folder with {' and '.join(table.needs)}{more}"
    absent = [need for need in table.needs if not Path(root, need).is_file()]
    return f"{' and '.join(absent)} not found in the folder that HEADLONG_DATA names{more}" if absent else ""


def results(
    table: PaperTable,
    stage: Callable[[str], Progress],
    queries: int | None = None,
    done: frozenset[Setting] = frozenset(),
    only: str = "",
    given: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """One JSON-ready result per row: setting, numbers, what was published, and the verdict on each."""
    if reason := missing(table, given):
        raise DataError(f"{table.name} is not run: {reason}")
    data = Path(os.environ.get("HEADLONG_DATA", "")) if given is None else given
    for row in table.run(Context(data, stage, queries, done, only)):
        line = {"paper": table.paper, "table": table.table, "setting": dict(row.setting), "got": dict(row.got)}
        line |= {} if row.model is None else {"model": row.model._asdict()}
        published = {name: list(value) for name, value in table.expected.get(row.setting, {}).items()}
        yield {**line, "expected": published, "verdict": verdicts(table, line)}


def verdicts(table: PaperTable, line: Mapping[str, Any]) -> dict[str, str]:
    """The verdict on each number of a row, from the row's setting, numbers and model, and what the table expects."""
    published = table.expected.get(tuple(line["setting"].items()), {})
    found = {name: published[name].verdict(got) if name in published else "no figure" for name, got in line["got"].items()}
    if (table.models or "model" in line) and Model(**line.get("model", Model("", 0, 0)._asdict())) not in table.models:
        found = {name: verdict if verdict == "no figure" else "stand-in" for name, verdict in found.items()}
    return found


def judged(name: str, results: Path) -> list[Mapping[str, Any]]:
    """The rows of ``PAPER:TABLE`` that ``results`` holds, verdicts drawn anew: what a file says of itself does not count."""
    (table,) = tables(name)
    return [{**line, "verdict": verdicts(table, line)} for line in lines_of(results / f"{table.paper}.{table.table}.jsonl")]


def so_far(table: PaperTable, results: Path) -> str:
    """``27 of 45 rows, 12.5 processor hours``: how far ``results`` goes; hours where rows have them, nothing without a plan."""
    if table.planned is None:
        return ""
    wanted = set(table.planned())
    lines = lines_of(results / f"{table.paper}.{table.table}.jsonl")
    there = [line["got"] for line in lines if tuple(line["setting"].items()) in wanted]
    hours = sum(got.get("cpu_seconds_per_epoch", 0.0) * got.get("epochs", 0.0) for got in there) / 3600
    return f"{len(there)} of {len(wanted)} rows" + (f", {hours:.1f} processor hours" if hours else "")


def study(
    table: PaperTable,
    path: Path,
    environment: Mapping[str, Any],
    stage: Callable[[str], Progress],
    only: str = "",
    given: Path | None = None,
) -> list[dict[str, Any]]:
    """Run the rows of a study that ``path`` does not hold, each written as soon as it is there; returns all rows."""
    lines = read(path)
    done = frozenset(tuple(line["setting"].items()) for line in lines)
    if table.trains:
        from studies.models.optimisers import product_facts  # torch: only what trains waits for it

        environment = {**environment, **product_facts()}
    for line in results(table, stage, None, done, only, given):
        lines.append({**line, "environment": environment})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(_line(lines[-1]))
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {cause(error)}") from error
    return lines


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a results file; none where there is no file. A last line that was cut short is dropped from the file."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    try:
        return [json.loads(line) for line in whole.splitlines()]
    except ValueError as error:
        raise StoreError(f"{path} is not a file of results: {error}; move it away") from error


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, allow_nan=False, separators=(",", ":")) + "\n"


def write(path: Path, lines: list[dict[str, Any]], environment: Mapping[str, Any]) -> None:
    """JSON lines, each with the environment of the run."""
    text = "".join(_line({**line, "environment": environment}) for line in lines)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {cause(error)}") from error
