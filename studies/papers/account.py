"""All four studies, printed cell by printed cell: what became of each here.

python -m studies list             a count for every study
python -m studies list liao2019    its cells
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import NamedTuple

from studies.papers.cells import Cell


class Study(NamedTuple):
    """What it is about, where its cells are (``studies.papers.MODULE.cells``), and its page."""

    about: str
    module: str
    page: str


STUDIES = {
    "baharav2024": Study("AdaptiveSoftmax", "adaptive_softmax.printed", "adaptive-softmax"),
    "ganea2019": Study("learnable monotonic functions", "monotonic_softmax.printed", "monotonic-functions"),
    "liao2019": Study("doubly sparse softmax", "doubly_sparse.printed", "doubly-sparse"),
    "vlasova-softmax": Study("SVD-softmax and hierarchical softmax", "svd_hierarchical.printed", "svd-and-hierarchical"),
}


def account(paper: str, results: Path) -> list[Cell]:
    """Every printed cell of a study, from the runs that ``results`` holds."""
    module = importlib.import_module(f"studies.papers.{STUDIES[paper].module}")
    return list(module.cells(results))
