"""Everything that is measured on a GPU, row by row: goes on where a run before was stopped.

    python benchmarks/device.py results/device.json
    python benchmarks/device.py results/device.json --only 33278x512      layers whose name holds this text

Layers: the trained WikiText-2 layer (in the folder that HEADLONG_DATA names), and four shapes whose logit energy falls as j^-1
and as j^-2; batches of 1, 8, 32 and 128. The run of each layer is one file beside the ledger, ``bench-cuda-LAYER.json``, as
``headlong bench --device cuda -o`` writes it; then the tables ``vlasova-softmax:cuda`` and ``:cuda-synthetic`` of
``reproduce`` of the studies. The ledger says of every row where it is, or that it was not run, and why. Without a GPU nothing
is run, and the ledger says so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from headlong.bench import device as bench_device
from headlong.bench import measure
from headlong.bench.device_contestants import names
from headlong.bench.gpu_clock import no_gpu, place
from headlong.bench.run import Stage
from headlong.bench.settings import Settings
from headlong.bench.synthetic import synthetic
from headlong.cli import inputs
from headlong.cli.terminal import bars
from headlong.errors import HeadlongError
from headlong.layers.matrix import Layer
from studies import papers

COMMAND = "python benchmarks/device.py results/device.json"
SETTINGS = Settings(batches=(1, 8, 32, 128), threads=measure.processors())
TRAINED, STUDIES = "wikitext2-gpt512", ("vlasova-softmax:cuda", "vlasova-softmax:cuda-synthetic")


class Subject(NamedTuple):
    """A layer to be timed: a power of None is the trained one."""

    name: str
    vocab: int
    dim: int
    power: float | None = None

    def load(self, stage: Stage) -> tuple[Layer, Any, Any]:
        """The layer, queries and calibration vectors."""
        if self.power is not None:
            move = stage(f"make {self.name}")
            return tuple(synthetic(self.vocab, self.dim, self.power, SETTINGS.queries, SETTINGS.seed, move))
        stem = f"{os.environ['HEADLONG_DATA']}/heads/{TRAINED}"
        hidden = (inputs.hidden(f"{stem}.hidden.safetensors:{split}_hidden") for split in ("valid", "train"))
        return inputs.layer(f"{stem}.safetensors"), *hidden

    def absent(self) -> str:
        """Why it cannot be loaded here; empty where it can."""
        file = Path(os.environ.get("HEADLONG_DATA", ""), "heads", f"{TRAINED}.safetensors")
        return "" if self.power is not None or file.is_file() else f"HEADLONG_DATA names no folder with heads/{file.name}"


SHAPES = ((128_256, 2048), (262_144, 640), (262_144, 3072), (33_278, 512))
SUBJECTS = [
    Subject(TRAINED, 33_278, 512),
    *(Subject(f"synthetic-{v}x{d}-a{power}", v, d, power) for v, d in SHAPES for power in (1, 2)),
]


def file_of(ledger: Path, subject: Subject) -> Path:
    return ledger.with_name(f"bench-cuda-{subject.name}.json")


def study_file(ledger: Path, table: papers.PaperTable) -> Path:
    return ledger.with_name(f"{table.paper}.{table.table}.jsonl")


def rows(ledger: Path, reason: str) -> Iterator[dict[str, Any]]:
    """Every planned row and its state, from the files beside the ledger."""
    for subject in SUBJECTS:
        file = file_of(ledger, subject)
        done = {run["batch"] for run in measure.read_run(file)["runs"]} if file.is_file() else set()
        for batch in SETTINGS.batches:
            row = {"layer": subject.name, "vocab": subject.vocab, "dim": subject.dim, "batch": batch}
            yield row | _state(batch in done, file.name, reason or subject.absent())
    for name in STUDIES:
        (table,) = papers.tables(name)
        file = study_file(ledger, table)
        there = {tuple(line["setting"].items()) for line in papers.read(file)}
        for setting in table.planned() if table.planned else []:
            row = {"study": name, **dict(setting)}
            yield row | _state(setting in there, file.name, reason or papers.missing(table))


def _state(done: bool, file: str, reason: str) -> dict[str, Any]:
    if done:
        return {"state": "measured", "file": file}
    return {"state": "not run", "why": reason or "its turn did not come yet", "command": COMMAND}


def write(ledger: Path, reason: str) -> None:
    found = list(rows(ledger, reason))
    lines = ",\n".join(json.dumps(row) for row in found)
    ledger.parent.mkdir(parents=True, exist_ok=True)
    beside = ledger.with_name(f".{ledger.name}.tmp")
    beside.write_text(f'{{"command": {json.dumps(COMMAND)}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")
    os.replace(beside, ledger)
    count = sum(row["state"] == "measured" for row in found)
    sys.stderr.write(f"{ledger}: {count} of {len(found)} rows measured{f'; {reason}' if reason else ''}\n")


def contest(ledger: Path, device: str, only: str) -> None:
    """Whatever is not there yet, a file for each layer, the ledger after each."""
    spot = place(device)
    for subject in SUBJECTS:
        file = file_of(ledger, subject)
        done = {run["batch"] for run in measure.read_run(file)["runs"]} if file.is_file() else set()
        if only not in subject.name or subject.absent() or done >= set(SETTINGS.batches):
            continue
        with bars() as stage:
            layer, hidden, calibration = subject.load(stage)
            bench_device.run(layer, hidden, names(), SETTINGS, spot, stage, calibration, file)
        write(ledger, "")


def studies(ledger: Path) -> None:
    for name in STUDIES:
        (table,) = papers.tables(name)
        if not papers.missing(table):
            with bars() as stage:
                papers.study(table, study_file(ledger, table), measure.environment(SETTINGS.threads), stage)


def record(ledger: Path, device: str, only: str) -> None:
    """All of it, or nothing where there is no GPU; the ledger says which."""
    reason = no_gpu() if device == "cuda" else ""
    try:
        if not reason:
            contest(ledger, device, only)
        if not reason and not only:
            studies(ledger)
    finally:
        write(ledger, reason)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--only", default="", help="layers whose name holds this text; without it the studies follow")
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args(arguments)
    if not any(asked.only in subject.name for subject in SUBJECTS):
        parser.error(f"--only {asked.only!r} names no layer; they are {', '.join(subject.name for subject in SUBJECTS)}")
    try:
        record(asked.ledger, asked.device, asked.only)
    except HeadlongError as error:
        parser.exit(2, f"device.py: {error}\n")


if __name__ == "__main__":
    main()
