"""Doubly sparse softmax (Liao, Chen, Lin, Zhou, Wang 2019): the hidden hierarchy, and four tasks at a frozen backbone.

::

    python -m studies reproduce liao2019:synthetic        python -m studies reproduce liao2019:tasks
    python -m studies reproduce liao2019:layers results work liao2019:tasks ptb    adds a task's missing rows

``work`` keeps trained heads (``TASK-64.safetensors`` are their layers). Experts are *seeded* here: gates at spherical means of
the hidden vectors, the classes each expects most, as many as a FLOPs ratio that was set in advance allows; ``learned.py`` has
the method itself. Our backbones are other ones (a 2 x 200 LSTM on Penn Treebank, Multi30k in place of IWSLT), so values
differ where backbones do.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headlong.bench.measure import Progress, environment
from studies.papers import Context, PaperTable, Row, Setting, register
from studies.papers.doubly_sparse import synthetic
from studies.papers.doubly_sparse import tasks as study
from studies.papers.doubly_sparse.printed import REAL, SEEDS, WORDS
from studies.papers.verdicts import Expected

METHODS = ("full", "svd-5", "svd-10", "d-softmax-cut", "seeded-64", "seeded-32", "seeded-16", "seeded-8")


def setting(task: str, method: str) -> Setting:
    return (("task", task), ("method", method))


def planned_synthetic() -> list[Setting]:
    """Learned from random experts, and 100 x 100 seeded as well; of 10 x 10 twenty seeds."""
    starts = {"10x10": "random", "100x100": "mitosis"}
    learned: list[Setting] = [
        (("hierarchy", name), ("start", start), ("seed", str(seed)))
        for name, start in starts.items()
        for seed in range(SEEDS[name])
    ]
    return [*learned, (("hierarchy", "100x100"), ("start", "seeded"), ("seed", "0"))]


def run_synthetic(context: Context) -> Iterator[Row]:
    """The rows that are not there yet; the larger size takes a quarter of an hour of one processor."""
    for row in planned_synthetic():
        chosen = dict(row)
        name, seed = chosen["hierarchy"], int(chosen["seed"])
        cases = synthetic.SEEDED if chosen["start"] == "seeded" else synthetic.CASES
        if row not in context.done and context.wants(row):
            yield Row(row, synthetic.run(cases[name], seed, context.stage(f"train {name} seed {seed}")))


def run_tasks(context: Context) -> Iterator[Row]:
    """Every task whose vectors are there, in a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as work:
        for task in study.TASKS:
            if (context.data / study.TASKS[task].folder).is_dir() or "heads/" in study.TASKS[task].folder:
                yield from rows(context, task, Path(work), frozenset())


def rows(context: Context, name: str, work: Path, done: frozenset[str]) -> Iterator[Row]:
    """The rows of one task that are not ``done``, as they finish."""
    task = study.TASKS[name]
    data = study.read(context.data, task)
    for method in METHODS:
        kind, _, number = method.partition("-")
        if method in done or (kind == "seeded" and int(number) not in task.aims):
            continue
        progress = context.stage(f"{name} {method}")
        head: Any = None
        if kind == "full":
            got, _ = study.full(data)
        elif kind == "svd":
            got, _ = study.svd(data, int(number) / 100)
        elif kind == "d":
            got, _ = study.d_softmax(data)
        else:
            got, head = study.experts(data, task, int(number), work / f"{name}-{number}", progress)
            work.mkdir(parents=True, exist_ok=True)
            head.to_layer().save(work / f"{name}-{number}.safetensors")
        if head is not None or kind == "full":
            got |= study.bleu(context.data, task, None if head is None else head.predict)
        progress(1, 1)
        yield Row(setting(name, method), got)


def expected() -> dict[Setting, dict[str, Expected]]:
    """Of what the poster prints, what was run as it was run there; seeded experts and cut blocks are other methods."""
    found = {}
    for task, words in WORDS.items():
        error = round(2 * (0.25 * 0.75 / words) ** 0.5, 4)
        for method in ("full", "svd-10"):
            found[setting(task, method)] = {"top1": Expected(REAL[task][method][0], 1.0, error)}
    return found


SYNTHETIC = register(
    PaperTable(
        paper="liao2019",
        table="synthetic",
        claim="experts find a hidden two-level hierarchy of 10 x 10 and 100 x 100 classes",
        source="the poster's panels (b) and (c), checked: 'can fully capture the synthetic hierarchy', purity 1",
        needs=(),
        run=run_synthetic,
        expected={row: {"purity": Expected(1.0, 1.0)} for row in planned_synthetic() if ("start", "seeded") not in row},
        planned=planned_synthetic,
    )
)
TABLE = register(
    PaperTable(
        paper="liao2019",
        table="tasks",
        claim="experts seeded by k-means from a trained layer, with sizes set in advance, and SVD-softmax and cut blocks",
        source="the poster's table 'Result - Real Dataset', checked, for the full softmax and SVD-10, from the better side",
        needs=("harvest/ptb-lstm/hidden.safetensors",),
        run=run_tasks,
        expected=expected(),
    )
)


def main(folder: str, work: str, name: str, *tasks: str) -> None:
    """Adds the rows that the table's file in ``folder`` does not have yet, each as soon as it is there."""
    table = {"liao2019:synthetic": SYNTHETIC, "liao2019:tasks": TABLE}[name]
    path = Path(folder) / f"liao2019.{table.table}.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    done = [line["setting"] for line in lines]
    context = Context(Path(os.environ["HEADLONG_DATA"]), _lines)
    for row in _wanted(context, table, Path(work), tasks, done):
        figures = table.expected.get(row.setting, {})
        verdicts = {key: figures[key].verdict(got) if key in figures else "no figure" for key, got in row.got.items()}
        line = {"paper": table.paper, "table": table.table, "setting": dict(row.setting), "got": dict(row.got)}
        line |= {"expected": {key: list(value) for key, value in figures.items()}, "verdict": verdicts}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "environment": environment(1)}, allow_nan=False) + "\n")


def _lines(label: str) -> Progress:
    """A line on stderr for every tenth of a stage."""
    printed = [-1]

    def progress(done: int, total: int) -> None:
        if 10 * done // total > printed[0]:
            printed[0] = 10 * done // total
            sys.stderr.write(f"{label} {done}/{total}\n")

    return progress


def _wanted(
    context: Context, table: PaperTable, work: Path, tasks: tuple[str, ...], done: list[dict[str, str]]
) -> Iterator[Row]:
    for name in tasks:
        if table is TABLE:
            yield from rows(context, name, work, frozenset(one["method"] for one in done if one["task"] == name))
        else:
            there = frozenset(tuple(one.items()) for one in done)
            yield from run_synthetic(context._replace(done=there, only=f"hierarchy={name}"))
