"""The cells that the four studies print, and what stands beside each here.

::

    matched    our figure is the printed one, within the tolerance that is stated: low - tolerance <= ours <= high + tolerance
    differs    it is not
    stand-in   a figure of something smaller, or of another kind: ``note`` says of what
    not run    nothing was measured; ``note`` says what it takes
    by arithmetic    follows from the set-up alone, so it says that the set-up is the same, and is no outcome

What is expected, and with which tolerance, stands with each table: ``printed.py`` of a paper, or the file that runs it.
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headlong.errors import StoreError

RESULTS = Path(__file__).parents[2] / "results/studies"
STATUSES = ("matched", "differs", "stand-in", "not run", "by arithmetic")


class Cell(NamedTuple):
    """``printed`` as it stands there, ``ours`` beside it, and how the two compare."""

    what: str
    printed: str
    ours: str
    status: str
    note: str = ""


class Expected(NamedTuple):
    """The published range of one number, and by how much a run may leave it and still match."""

    low: float
    high: float
    tolerance: float = 0.0

    def verdict(self, got: float) -> str:
        return verdict_on(self.low - self.tolerance <= got <= self.high + self.tolerance)


def verdict_on(holds: bool) -> str:
    """Of a statement about our run, such as "more than 29 times"."""
    return "matched" if holds else "differs"


class Study(NamedTuple):
    """What it is about, where its cells are (``studies.papers.MODULE.printed.cells``), and its page."""

    about: str
    module: str
    page: str


STUDIES = {
    "baharav2024": Study("AdaptiveSoftmax", "adaptive_softmax", "adaptive-softmax"),
    "ganea2019": Study("learnable monotonic functions", "monotonic_softmax", "monotonic-functions"),
    "liao2019": Study("doubly sparse softmax", "doubly_sparse", "doubly-sparse"),
    "vlasova-softmax": Study("SVD-softmax and hierarchical softmax", "svd_hierarchical", "svd-and-hierarchical"),
}


def account(paper: str, results: Path) -> list[Cell]:
    """Every printed cell of a study, from the runs that ``results`` holds."""
    return list(importlib.import_module(f"studies.papers.{STUDIES[paper].module}.printed").cells(results))


def counts(found: Sequence[Cell]) -> dict[str, int]:
    """Of each status, in the order of ``STATUSES``."""
    number = Counter(cell.status for cell in found)
    return {status: number[status] for status in STATUSES}


def summary(found: Sequence[Cell]) -> str:
    """``14 cells: 5 matched, 9 not run``, statuses that no cell has left out."""
    return f"{len(found)} cells: " + ", ".join(f"{number} {status}" for status, number in counts(found).items() if number)


def built(line: Mapping[str, Any]) -> bool:
    """Whether a row names the version and the commit that it was run on."""
    return all(line.get("environment", {}).get(name) for name in ("headlong", "commit"))


def unbuilt(lines: Iterable[Mapping[str, Any]]) -> str:
    """What a cell's note ends with where a row behind it does not."""
    return "" if all(map(built, lines)) else "; build not recorded"


def lines_of(path: Path) -> list[Mapping[str, Any]]:
    """The rows of a results file; none where it is not there. A setting that stands there twice would count twice: refused."""
    found = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
    settings = [json.dumps(line["setting"]) for line in found]
    if twice := next((setting for setting in settings if settings.count(setting) > 1), ""):
        raise StoreError(f"{path} has two rows of {twice}; expected one of each setting: remove one")
    return found
