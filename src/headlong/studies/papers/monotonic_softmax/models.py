"""Ganea et al. (2019): the language-model table, every output layer inside one small recipe.

::

    backbone   LSTM 2 x 200, embedding tied to the output rows, dropout 0.2           (control: 2 x 207, plain softmax)
    training   SGD at 20, one cycle, batch 20, window 35; for every row 1,328 steps, once through Penn Treebank, and
               664 on WikiText-2, a fifth of it

A row is an output layer and a seed. The paper's own recipe (AWD-LSTM) gives 58.37 test perplexity to the softmax and 57.25
to PLIF; here only the order of the rows can be compared, and only what differs by more than the seeds do. A study goes
on where ``results/`` ends, and inside a row where its checkpoint is (``runs/ganea2019``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from headlong.studies.papers import Context, Expected, PaperTable, Row, Setting, register

SEEDS = (1, 2)
STEPS = {"penn-treebank": 1328, "wikitext-2": 664}
DIM, WIDER, COMPONENTS = 200, 207, 3
"""With the control's 207, an LSTM and its softmax have as many parameters as one of 200 with a mixture of 3."""
PUBLISHED_RATE = 0.02
SGD_RATE = 20.0
PUBLISHED = {"knots": 100_000, "start": "random", "gain": math.sqrt(PUBLISHED_RATE / SGD_RATE)}

HEADS: dict[str, dict[str, Any]] = {
    "softmax": {"kind": "dense"},
    "PLIF, ours": {"kind": "plif"},
    "SigSoftmax": {"kind": "sigsoftmax"},
    f"MoS, K = {COMPONENTS}": {"kind": "mos", "components": COMPONENTS},
    "PLIF, frozen random": {"kind": "plif", **PUBLISHED, "frozen": True},
    "temperature": {"kind": "temperature"},
    f"softmax, {WIDER} wide": {"kind": "dense"},
    f"MoC, K = {COMPONENTS}": {"kind": "moc", "components": COMPONENTS},
    f"MoS, K = {COMPONENTS}, PLIF": {"kind": "mos", "components": COMPONENTS, "curve": "plif"},
    "PLIF, published": {"kind": "plif", **PUBLISHED},
    "GSS(-1.5, 2.5)": {"kind": "gss", "centre": -1.5, "power": 2.5},
    "monotone network": {"kind": "monotone"},
}
ON_WIKITEXT = ("softmax", "PLIF, ours", f"MoS, K = {COMPONENTS}", f"MoS, K = {COMPONENTS}, PLIF", f"softmax, {WIDER} wide")


def setting(head: str, seed: int) -> Setting:
    return (("head", head), ("seed", str(seed)))


def planned(heads: tuple[str, ...]) -> list[Setting]:
    return [setting(head, seed) for seed in SEEDS for head in heads]


def run(heads: tuple[str, ...], corpus: str, context: Context) -> Iterator[Row]:
    """The rows that are not there yet."""
    todo = [row for row in planned(heads) if row not in context.done and context.wants(row)]
    for number, row in enumerate(todo):
        facts = dict(row)
        title = f"{number + 1} of {len(todo)}: {facts['head']}"
        yield Row(row, train(corpus, facts["head"], int(facts["seed"]), context, title))


def train(corpus: str, head: str, seed: int, context: Context, title: str) -> dict[str, float]:
    """One row: a model trained, or trained on, and measured."""
    from headlong.studies.models.jobs import build_job
    from headlong.studies.models.train import Moment, Run

    progress = context.stage(title)

    def report(moment: Moment) -> None:
        progress((moment.epoch - 1) * moment.steps + moment.step, moment.epochs * moment.steps)

    recipe = recipe_of(corpus, head, seed)
    job = build_job(recipe)
    run = Run(job, Path("runs") / "ganea2019" / corpus / slug(f"{head}-{seed}"), report)
    test = run.fit()
    valid = min(entry["valid_perplexity"] for entry in run.progress.history)
    epochs = len(run.progress.history)
    own = {id(parameter) for parameter in job.model.parameters()}
    found = {
        "parameters": float(sum(p.numel() for p in job.model.parameters() if p.requires_grad and id(p) in own)),
        "valid": valid,
        "test": test.perplexity,
        "epochs": float(epochs),
        "cpu_seconds_per_epoch": run.progress.cpu_seconds / epochs,
    }
    return {key: float(f"{value:.7g}") for key, value in found.items()}


def recipe_of(corpus: str, head: str, seed: int) -> Any:
    """The recipe of every row: only the head, the seed and the control's width differ."""
    from headlong.studies.models.recipe import from_dict

    dim = WIDER if head.endswith("wide") else DIM
    training = {"epochs": 1, "epoch_steps": STEPS[corpus], "batch": 20, "window": 35, "optimiser": "sgd", "rate": SGD_RATE}
    tables = {
        "data": corpus,
        "model": {"kind": "lstm", "dim": dim, "layers": 2, "dropout": 0.2},
        "head": HEADS[head],
        "training": {**training, "bf16": True, "seed": seed, "save_steps": 200},
    }
    return from_dict(tables, f"{corpus}-{slug(head)}-{seed}")


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


SOURCE = "the talk's AWD-LSTM table (58.37 softmax, 57.25 PLIF on PTB); another recipe, so no figure is expected; unverified"
CORPORA = {
    "ptb": ("penn-treebank", "penn-treebank/ptb.train.txt", tuple(HEADS)),
    "wikitext2": ("wikitext-2", "wikitext-2/train.txt", ON_WIKITEXT),
}
for _table, (_corpus, _file, _heads) in CORPORA.items():
    _expected: dict[Setting, dict[str, Expected]] = {}
    _text = f"{STEPS[_corpus]:,} steps of 700 tokens on {_corpus}"
    register(
        PaperTable(
            paper="ganea2019",
            table=_table,
            claim=f"output layers inside one small recipe, LSTM 2 x 200 tied, {_text}",
            source=SOURCE,
            needs=(_file,),
            run=partial(run, _heads, _corpus),
            expected=_expected,
            planned=partial(planned, _heads),
        )
    )
