"""``headlong report``: make one self-contained HTML page from stored results, with sortable tables and plots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    results: Annotated[list[Path], typer.Argument(metavar="RESULTS...", help="Files (.json, .jsonl) or folders of them.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the HTML page goes.")] = Path("headlong-report.html"),
) -> None:
    """Make one self-contained HTML page from stored results, with sortable tables and plots."""
    from headlong.cli import inputs
    from headlong.cli.terminal import write_text
    from headlong.report.files import ResultFile
    from headlong.report.files import report as written

    inputs.target(out, inputs.PAGE, *map(str, results))
    write_text(out, written([ResultFile(*pair) for pair in inputs.results(results)]))
