"""Writes the figures of a paper as SVG files, in the colours of the pages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from headlong.report.page import STYLE
from headlong.report.plots import standalone

Figures = Iterable[tuple[str, str]]
"""``(name, svg)``, as the figures are made."""


def draw(paper: str, figures: Figures, out: Path) -> None:
    """``OUT/PAPER-NAME.svg`` for each, told on stderr."""
    out.mkdir(parents=True, exist_ok=True)
    for name, svg in figures:
        path = out / f"{paper}-{name}.svg"
        path.write_text(standalone(svg, STYLE) + "\n", encoding="utf-8")
        sys.stderr.write(f"wrote {path}\n")


def command(paper: str, figures: Callable[[Path], Figures], usage: str | None) -> None:
    """``python -m MODULE RESULTS OUT``."""
    if len(sys.argv) != 3:
        raise SystemExit(usage)
    draw(paper, figures(Path(sys.argv[1])), Path(sys.argv[2]))
