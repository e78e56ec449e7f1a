"""The cells that a study prints, and what stands beside each here.

::

    matched    our figure is the printed one, within the tolerance that is stated          differs    it is not
    stand-in   a figure of something smaller, or of another kind: ``note`` says of what
    not run    nothing was measured; ``note`` says what it takes
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

STATUSES = ("matched", "differs", "stand-in", "not run")


class Cell(NamedTuple):
    """``printed`` as it stands there, ``ours`` beside it, and how the two compare."""

    what: str
    printed: str
    ours: str
    status: str
    note: str = ""


def counts(found: Sequence[Cell]) -> dict[str, int]:
    """Of each status, in the order of ``STATUSES``."""
    told = Counter(cell.status for cell in found)
    return {status: told[status] for status in STATUSES}


def lines_of(path: Path) -> list[Mapping[str, Any]]:
    """The rows of a results file; none where it is not there."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
