"""What searches in blocks read (docs/blocks.md): shares of a layer, growth with the classes, and what bounds leave closed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tables_records import missing, record

from headlong.report.tables import ReportTable, markdown

LAYERS = {
    "WikiText-2, a trained GPT's": ", float16 rows", "a recommender's, made": "", "an LSTM's, made": "",
}  # fmt: skip
"""Layers by their names in the run, and what else is to be said of one."""
SIDES = (4, 8, 16)
WIDTH = 65
"""Numbers of a class in the layers of phrases and characters: a row and its bias."""


def shares() -> str:
    """Bytes of a query for proved ids, as a share of the float32 layer."""
    if text := missing("blocks"):
        return text
    rows = []
    for run in record("blocks")["runs"]:
        name = f"{run['layer']}, {run['vocab']:,} x {run['dim']}{LAYERS[run['layer']]}"
        rows.append((name, *(f"{run[way]['share_of_float32']:.1%}" for way in ("classes", "blocks", "learned"))))
    return markdown(ReportTable("", ("layer", "every class", "blocks", "blocks, ids but for 0.01"), tuple(rows)))


def counted(name: str) -> str:
    """For each number of classes what a query reads, what is kept, and what building and changing cost."""
    if text := missing(name):
        return text
    found = {(run["classes"], run["way"]): run for run in record(name)["counted"]}
    rows = []
    for classes in dict.fromkeys(classes for classes, _ in found):
        blocks, plain = found[classes, "blocks"], found[classes, "plain"]
        kept = f"{blocks['kept'] / 1e6:,.0f} ({blocks['build peak'] / blocks['kept']:.2f} times)"
        of_floats = blocks["bytes"] / (4 * WIDTH * classes)
        alone = found.get((classes, "without vectors"))
        without = "–" if alone is None else f"{alone['bytes'] / 1e3:,.0f}"
        read = (f"{blocks['bytes'] / 1e3:,.0f}", without, f"{plain['bytes'] / 1e3:,.0f}", f"{of_floats:.2%}")
        rows.append((f"{classes:,}", *read, kept, f"{blocks['build CPU s']:.1f}", f"{blocks['changed']['bytes'] / 1e3:,.0f}"))
    columns = (
        "classes", "blocks, kB", "blocks without vectors, kB", "every class, kB", "of float32", "kept, MB (peak of building)",
        "build, CPU s", "1 % changed, kB",
    )  # fmt: skip
    return markdown(ReportTable("", columns, tuple(rows)))


def timed(name: str) -> str:
    """Microseconds of a query, in turns: in a loop, cold, and of 64 at once."""
    if text := missing(name):
        return text
    ways = {"without vectors": "blocks without vectors", "blocks": "blocks", "plain": "every class"}
    kinds = ("ms, batch 1, in a loop", "ms, batch 1, cold", "ms, batch 64, in a loop")
    rows = [
        (f"{run['classes']:,}", *(" / ".join(f"{1e3 * run[kind][way]:,.0f}" for kind in kinds) for way in ways))
        for run in record(name)["timed"]
    ]
    note = "Microseconds in a loop / cold, one query at a time / and of each query where 64 are asked at once; in turns."
    return markdown(ReportTable("", ("classes", *ways.values()), tuple(rows), note))


def bounds() -> str:
    """The share of the classes that lie in blocks which have to be opened, however their bounds are made."""
    if text := missing("block_bounds"):
        return text
    runs: list[dict[str, Any]] = record("block_bounds")["runs"]
    rows = [
        (f"boxes in {look} coordinates, {side} a block", *(f"{_opened(run, look, side):.0%}" for run in runs))
        for look in (16, 64)
        for side in SIDES
    ]
    rows += [(name, *(f"{run['other'][name]:.1%}" for run in runs)) for name in runs[0]["other"]]
    return markdown(ReportTable("", ("bound", *(run["layer"].removesuffix(", made") for run in runs)), tuple(rows)))


def other_queries() -> str:
    """Times of queries unlike those that chose the plan, as multiples of a pass's: always searched for, and on trial."""
    if text := missing("other-queries"):
        return text
    runs = record("other-queries")["rows"]
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        cells.setdefault((run["layer"], run["queries"]), []).append(run)
    ways = [(way, who) for way in ("loop", "batch") for who in ("always", "on trial")]
    rows = [
        (*named, *(" / ".join(f"{run[way][who]:.2f}" for run in asked) for way, who in ways)) for named, asked in cells.items()
    ]
    columns = ("layer", "queries", "a loop, always", "a loop, on trial", "64 at once, always", "64 at once, on trial")
    note = "For one, ten and 64 classes. Medians in turns, as multiples of a pass by the plan of the same vectors."
    return markdown(ReportTable("", columns, tuple(rows), note))


def _opened(run: dict[str, Any], look: int, side: int) -> float:
    found: float = next(box["opened"] for box in run["boxes"] if (box["look"], box["side"]) == (look, side))
    return found


BLOCKS: dict[str, Callable[[], str]] = {
    "blocks-shares": shares, "phrases-counted": partial(counted, "phrases"), "phrases-timed": partial(timed, "phrases-avx2"),
    "characters-counted": partial(counted, "characters"), "block-bounds": bounds,
    "other-queries": other_queries,
}  # fmt: skip
