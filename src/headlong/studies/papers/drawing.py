"""Writes the figures of a paper as SVG files, in the colours of the pages."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from headlong.report.page import STYLE
from headlong.report.plots import standalone

Figures = Iterable[tuple[str, str]]
"""``(name, svg)``, as the figures are made."""


def draw(paper: str, figures: Figures, out: Path) -> None:
    """``OUT/PAPER-NAME.svg`` for each; their names go to stderr."""
    out.mkdir(parents=True, exist_ok=True)
    for name, svg in figures:
        path = out / f"{paper}-{name}.svg"
        path.write_text(standalone(svg, STYLE) + "\n", encoding="utf-8")
        sys.stderr.write(f"wrote {path}\n")
