"""Committed runs of ``results/``, and the tables that are chosen fields of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headlong.report.records import field
from headlong.report.tables import ReportTable, markdown

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
STUDIES = ROOT / "studies" / "results"


def path_of(name: str) -> Path:
    """The file in ``results/``, or in ``studies/results/``."""
    return next((folder / name for folder in (RESULTS, STUDIES) if (folder / name).is_file()), RESULTS / name)


def record(name: str) -> dict[str, Any]:
    """``results/NAME.json``"""
    found: dict[str, Any] = json.loads(path_of(f"{name}.json").read_text(encoding="utf-8"))
    return found


def lines(name: str) -> list[dict[str, Any]]:
    """``results/NAME.jsonl``, an object a line; none where there is no such file."""
    file = path_of(f"{name}.jsonl")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def missing(*names: str) -> str:
    """What stands in the page until a run is committed; empty where all are there."""
    gone = [name for name in names if not path_of(f"{name}.json").is_file()]
    return f"No committed run yet: {', '.join(f'results/{name}.json' for name in gone)}." if gone else ""


def left(table: ReportTable) -> str:
    """A table of words: set to the left."""
    return markdown(table).replace("--:|", "---|")


def plain(name: str, columns: dict[str, str]) -> Callable[[], str]:
    """Chosen fields of ``results/NAME.json``, a line for each of its rows or runs; below, its facts and where it ran."""

    def made() -> str:
        if text := missing(name):
            return text
        found = record(name)
        rows = tuple(
            tuple(field(row.get(key, row.get("layer", {}).get(key) if "runs" in found else None)) for key in columns)
            for row in found.get("rows", found.get("runs"))
        )
        facts = {key: value for key, value in found.get("facts", {}).items() if not isinstance(value, dict | list)}
        where, said = found["environment"], ", ".join(f"{key} {field(value)}" for key, value in facts.items())
        caption = f"{where['cpu']}, {where['threads']} threads, NumPy {where['versions']['numpy']}, {where['date']}."
        return markdown(ReportTable("", tuple(columns.values()), rows, f"{said}. {caption}" if said else caption))

    return made
