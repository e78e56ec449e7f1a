"""What a terminal shows: progress bars on stderr, tables and JSON on stdout."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from headlong.answers import TopK
from headlong.report.tables import ReportTable, percent
from headlong.store.writing import replacing

Stage = Callable[[str], Callable[[int, int], None]]

REDRAW = 0.1
"""Seconds between redrawn bars: no thread redraws them, since it would disturb what is being timed."""
SILENCE = 5.0
"""Seconds between two lines of progress where stderr is no terminal."""
WIDTH = 110
"""Columns where the output is not a terminal."""
NUMBER = 20
"""Cells up to this long are set to the right, as numbers are."""


@contextmanager
def bars() -> Iterator[Stage]:
    """``stage(label)`` adds a bar; its callback ``(done, total)`` moves it; lines where stderr is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        with plain_lines() as lines:
            yield lines
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=console, auto_refresh=False)

    def stage(label: str) -> Callable[[int, int], None]:
        progress.start()  # not before: what fails without a bar leaves no empty line
        task = progress.add_task(label, total=None)
        progress.refresh()
        drawn = time.monotonic()

        def move(done: int, total: int) -> None:
            nonlocal drawn
            progress.update(task, completed=done, total=total)
            if done >= total or time.monotonic() - drawn > REDRAW:
                progress.refresh()
                drawn = time.monotonic()

        return move

    try:
        yield stage
    finally:
        if progress.tasks:
            progress.stop()


@contextmanager
def plain_lines(every: float = SILENCE, out: TextIO | None = None) -> Iterator[Stage]:
    """A line each ``every`` seconds that says where the work is; a command that ends before has none. One thread writes them:
    it wakes that often and no more, and stages without steps are heard of, too."""
    at: list[Any] = ["", 0, 0]
    ended, started = threading.Event(), time.monotonic()

    def stage(label: str) -> Callable[[int, int], None]:
        at[:] = [label, 0, 0]

        def move(done: int, total: int) -> None:
            at[:] = [label, done, total]

        return move

    def tell() -> None:
        while not ended.wait(every):
            label, done, total = at
            steps = f", {done:,} of {total:,}" if total else ""
            target = out or sys.stderr
            target.write(f"headlong: {label or 'reading'}{steps}, {time.monotonic() - started:.0f} s\n")
            target.flush()

    teller = threading.Thread(target=tell, name="headlong progress", daemon=True)
    teller.start()
    try:
        yield stage
    finally:
        ended.set()
        teller.join()


def show(table: ReportTable) -> None:
    """A text table. Columns of numbers are as wide as these and the longest word of their title: what is left is for words."""
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    drawn = RichTable(box=box.SIMPLE, title=table.title or None, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    for place, column in enumerate(table.columns):
        longest = max((len(row[place]) for row in table.rows), default=0)
        if place and longest <= NUMBER:
            drawn.add_column(column, justify="right", width=max(longest, *map(len, column.split()), 1))
        else:
            drawn.add_column(column, overflow="fold")
    for row in table.rows:
        drawn.add_row(*(cell.replace("[", "\\[") for cell in row))
    console.print(drawn)
    if table.caption:
        console.print(table.caption, style="dim", highlight=False, markup=False)


def json_lines(top: TopK, start: int) -> Iterator[dict[str, Any]]:
    """One JSON-ready answer per row, numbered from ``start``; None for a number that is infinite or was not asked for."""
    for row in range(len(top.ids)):
        named = {name: getattr(top, name)[row].tolist() for name in ("ids", "log_probs", "logits", "lse", "error", "proved")}
        yield {"row": start + row, **{name: _finite(value) for name, value in named.items()}}


def answered_lines(top: Any, start: int, labels: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    """As :func:`json_lines`, or of ids and scores alone; with the labels of the ids, None where there is none."""
    if isinstance(top, TopK):
        lines = json_lines(top, start)
    else:
        names = {name: _finite(values.tolist()) for name, values in top.items()}
        lines = ({"row": start + row, **{name: each[row] for name, each in names.items()}} for row in range(len(top["ids"])))
    for line in lines:
        yield line if labels is None else {**line, "labels": [labels[i] if i >= 0 else None for i in line["ids"]]}


def topk_table(lines: Sequence[Mapping[str, Any]], rows: int, score: str = "logit") -> ReportTable:
    """A row for each answered query: its best classes with their probabilities, its error and its proof; or scores alone."""
    found = []
    said = any(line.get("lse") is not None for line in lines)  # else log-probabilities were not asked for
    for line in lines:
        values = line["log_probs" if said else "logits" if score == "logit" else "scores"]
        pairs = zip(line.get("labels") or line["ids"], values, strict=True)
        named = ((i, "–" if at is None else percent(math.exp(at)) if said else f"{at:.4g}") for i, at in pairs)
        best = ", ".join(f"{i}: {value}" for i, value in named)
        proved = "proved" if line.get("proved", True) else "not proved"
        error = () if not said else ("open",) if line["error"] is None else (f"{line['error']:.1e}",)
        found.append((str(line["row"]), best, *error, proved))
    more = f"{rows - len(lines):,} more rows; --json prints all of them." if rows > len(lines) else ""
    titles = ("row", "class: probability", "error, nats", "ids") if said else ("row", f"class: {score}", "ids")
    return ReportTable("", titles, tuple(found), more)


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def say_json(value: object) -> None:
    """One line of JSON."""
    sys.stdout.write(_json_line(value))


def told(record: dict[str, Any], show_it: Callable[[], None], out: Path | None, as_json: bool) -> None:
    """A run on stdout, as JSON or as ``show_it`` does, and in the file that was asked for."""
    from headlong.bench.measure import as_run, write_run

    if as_json:
        say_json(as_run(record))
    else:
        show_it()
    if out is not None:
        write_run(out, record)
        sys.stderr.write(f"wrote {out}\n")


def _json_line(value: object) -> str:
    return json.dumps(value, allow_nan=False) + "\n"


def write_json(path: Path | None, values: Iterable[Any]) -> None:
    """What :func:`say_json` prints of each value, in a file; None: nowhere."""
    if path is not None:
        write_text(path, "".join(map(_json_line, values)))


def write_text(path: Path, text: str) -> None:
    """The file, all of it or the one that was there, and a word on stderr that it is there."""
    with replacing(path) as file:
        file.write(text.encode())
    sys.stderr.write(f"wrote {path}\n")
