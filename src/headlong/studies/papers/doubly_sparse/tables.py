"""Doubly sparse softmax (Liao, Chen, Lin, Zhou, Wang 2019): the hidden hierarchy, and four tasks at a frozen backbone.

::

    headlong reproduce liao2019:synthetic        headlong reproduce liao2019:tasks
    headlong reproduce liao2019:layers results work liao2019:tasks ptb    adds a task's missing rows

``work`` keeps trained heads (``TASK-64.safetensors`` are their layers). The published figures are the poster's and, for
fewer than 64 experts and the top-5 and top-10 columns, the paper's as quoted in notes that were not checked against it. Our
backbones are other ones (a 2 x 200 LSTM on Penn Treebank, Multi30k in place of IWSLT, rendered characters in place of
CASIA-HWDB), so values differ where backbones do; the ratios of FLOPs are comparable.
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
from headlong.studies.papers import Context, Expected, PaperTable, Row, Setting, register
from headlong.studies.papers.doubly_sparse import synthetic
from headlong.studies.papers.doubly_sparse import tasks as study

METHODS = ("full", "svd-5", "svd-10", "d-softmax", "ds-64", "ds-32", "ds-16", "ds-8")
RUNS = "runs"
"""The folder of finished trainings, for BLEU."""


def setting(task: str, method: str) -> Setting:
    return (("task", task), ("method", method))


def planned_synthetic() -> list[Setting]:
    return [(("hierarchy", name),) for name in synthetic.CASES]


def run_synthetic(context: Context) -> Iterator[Row]:
    """The sizes that are not there yet, one seed each; the larger takes a quarter of an hour of one processor."""
    for row in planned_synthetic():
        name = row[0][1]
        if row not in context.done and context.wants(row):
            yield Row(row, synthetic.run(synthetic.CASES[name], 0, context.stage(f"train {name}")))


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
        if method in done or (kind == "ds" and int(number) not in task.aims):
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
            head.freeze().save(work / f"{name}-{number}.safetensors")
        run = context.data / RUNS / task.folder.split("/")[-1]
        if task.translates and run.is_dir() and (head is not None or kind == "full"):
            got["bleu"] = study.bleu(run, None if head is None else head.predict)
        progress(1, 1)
        yield Row(setting(name, method), got)


def published(top1: float, top5: float, top10: float, flops: float) -> dict[str, Expected]:
    """Accuracies within a point of ours would be chance: backbones differ. FLOPs ratios are to be reached."""
    near = {f"top{top}": Expected(value, value, 0.01) for top, value in zip((1, 5, 10), (top1, top5, top10), strict=True)}
    return {**near, "flops": Expected(flops, flops, 0.1 * flops)}


LANGUAGE = {
    "ptb": {
        "full": (0.252, 0.436, 0.515, 1.0),
        "ds-8": (0.257, 0.448, 0.530, 2.84),
        "ds-16": (0.258, 0.450, 0.529, 5.13),
        "ds-32": (0.259, 0.449, 0.529, 9.43),
        "ds-64": (0.258, 0.450, 0.529, 15.99),
    },
    "wikitext2": {
        "full": (0.257, 0.456, 0.533, 1.0),
        "ds-8": (0.259, 0.459, 0.536, 3.52),
        "ds-16": (0.264, 0.469, 0.547, 6.58),
        "ds-32": (0.260, 0.460, 0.535, 11.59),
        "ds-64": (0.259, 0.458, 0.533, 23.86),
    },
}
SVD_10 = {"ptb": (0.251, 5.00), "wikitext2": (0.255, 5.38)}
D_SOFTMAX = {"ptb": (0.245, 2.00), "wikitext2": (0.256, 2.00)}
BLEU = {"full": (25.2, 1.0), "ds-8": (25.3, 4.38), "ds-16": (25.1, 6.08), "ds-32": (25.4, 10.69), "ds-64": (25.0, 15.08)}
CHARACTERS = {"full": (0.906, 1.0), "ds-8": (0.908, 1.77), "ds-16": (0.902, 2.82), "ds-32": (0.899, 4.72)}
CHARACTERS["ds-64"] = (0.901, 6.91)


def expected() -> dict[Setting, dict[str, Expected]]:
    found = {setting(task, method): published(*row) for task, rows in LANGUAGE.items() for method, row in rows.items()}
    for method, table in (("svd-10", SVD_10), ("d-softmax", D_SOFTMAX)):
        for task, (value, flops) in table.items():
            found[setting(task, method)] = {
                "top1": Expected(value, value, 0.01), "flops": Expected(flops, flops, 0.1 * flops)
            }  # fmt: skip
    for method, (value, flops) in BLEU.items():
        wanted = {"bleu": Expected(value, value, 0.3), "flops": Expected(flops, flops, 0.1 * flops)}
        found[setting("multi30k", method)] = wanted
    for method, (value, flops) in CHARACTERS.items():
        wanted = {"top1": Expected(value, value, 0.01), "flops": Expected(flops, flops, 0.1 * flops)}
        found[setting("characters", method)] = wanted
    return found


SYNTHETIC = register(
    PaperTable(
        paper="liao2019",
        table="synthetic",
        claim="experts recover a hidden two-level hierarchy of 10 x 10 and 100 x 100 classes",
        source="the poster's pictures, unverified: every block found; accuracy not below the full softmax",
        needs=(),
        run=run_synthetic,
        expected={row: {"purity": Expected(0.99, 1.0)} for row in planned_synthetic()},
        planned=planned_synthetic,
    )
)
TABLE = register(
    PaperTable(
        paper="liao2019",
        table="tasks",
        claim="64 experts answer as well as the full softmax at 7 to 24 times fewer multiplications",
        source="the poster's table; top-5, top-10 and fewer experts as quoted in notes, unverified",
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
    told = [-1]

    def progress(done: int, total: int) -> None:
        if 10 * done // total > told[0]:
            told[0] = 10 * done // total
            sys.stderr.write(f"{label} {done}/{total}\n")

    return progress


def _wanted(
    context: Context, table: PaperTable, work: Path, tasks: tuple[str, ...], done: list[dict[str, str]]
) -> Iterator[Row]:
    for name in tasks:
        if table is TABLE:
            yield from rows(context, name, work, frozenset(one["method"] for one in done if one["task"] == name))
        elif {"hierarchy": name} not in done:
            yield Row((("hierarchy", name),), synthetic.run(synthetic.CASES[name], 0, context.stage(f"train {name}")))
