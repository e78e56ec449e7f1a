"""Published tables as data: what was claimed, how it is run here, what was expected, and how near we came.

::

    verdict = "matched" if low - tolerance <= got <= high + tolerance else "differs"

One file for each paper registers its tables. A table yields rows; each row is a setting and the numbers measured for it.
A row for which nothing was published gets the verdict "no figure"; a table whose data are not here is "not run", with
the reason. Nothing is dropped silently.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from headlong.errors import DataError, OptionError, StoreError
from headlong.measure import Progress

FILES = ("vlasova_softmax", "vlasova_hierarchical",)

Setting = tuple[tuple[str, str], ...]
"""What a row was run with, such as ``(("width", "D/8"), ("rows", "V/10"), ("rotation", "plain"))``."""


class Context(NamedTuple):
    """What a run is given: the data folder, progress by stage, and the most queries to evaluate (None: all)."""

    data: Path
    stage: Callable[[str], Progress]
    queries: int | None = None


class Row(NamedTuple):
    """One line of a table as measured."""

    setting: Setting
    got: Mapping[str, float]


class Expected(NamedTuple):
    """The published range of one number, and by how much a run may leave it and still match."""

    low: float
    high: float
    tolerance: float = 0.0

    def verdict(self, got: float) -> str:
        return "matched" if self.low - self.tolerance <= got <= self.high + self.tolerance else "differs"


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
        importlib.import_module(f"headlong.papers.{file}")
    found = [table for table in TABLES.values() if target in (None, table.paper, table.name)]
    if not found:
        raise OptionError(f"there is no table {target!r}; expected one of {', '.join(TABLES)}, or a paper's name")
    return found


def missing(table: PaperTable) -> str:
    """Why the table cannot be run here; empty where it can."""
    root = os.environ.get("HEADLONG_DATA", "")
    if not root:
        return f"HEADLONG_DATA is not set: it names the folder with {' and '.join(table.needs)}"
    absent = [need for need in table.needs if not Path(root, need).is_file()]
    return f"{' and '.join(absent)} not found in the folder that HEADLONG_DATA names" if absent else ""


def results(table: PaperTable, stage: Callable[[str], Progress], queries: int | None = None) -> Iterator[dict[str, Any]]:
    """One JSON-ready result per row: setting, numbers, what was published, and the verdict on each."""
    if reason := missing(table):
        raise DataError(f"{table.name} is not run: {reason}")
    for row in table.run(Context(Path(os.environ["HEADLONG_DATA"]), stage, queries)):
        published = table.expected.get(row.setting, {})
        yield {
            "paper": table.paper,
            "table": table.table,
            "setting": dict(row.setting),
            "got": dict(row.got),
            "expected": {name: list(value) for name, value in published.items()},
            "verdict": {
                name: published[name].verdict(got) if name in published else "no figure" for name, got in row.got.items()
            },
        }


def write(path: Path, lines: list[dict[str, Any]], environment: Mapping[str, Any]) -> None:
    """JSON lines, each with the environment of the run."""
    text = "".join(json.dumps({**line, "environment": environment}, allow_nan=False) + "\n" for line in lines)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error}") from error
