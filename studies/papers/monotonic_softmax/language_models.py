"""Ganea et al. (2019): the language-model table, every output layer inside one small recipe.

::

    ptb, wikitext2               LSTM of 2 layers, embedding tied to the output rows, dropout 0.2; SGD at 20, one cycle over
                                 EPOCHS epochs, batch 20, window 35. All rows have the parameters of a softmax of D = 200:
                                 what a head takes, the LSTM's width gives (``width_of``)
    wikitext2-early              the start of such a training: 664 steps, a fifth of WikiText-2, at D = 200 for every head, with
                                 a softmax of D = 207 as the control

A row is an output layer and a seed. The printed figures are those of an AWD-LSTM: 58.37 test perplexity for the softmax, 57.25
for PLIF; a smaller model can be compared with their order only, and only where rows differ by more than their seeds do. A
study goes on where ``results/`` ends, and inside a row where its checkpoint is (``runs/ganea2019``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from studies.papers import Context, Model, PaperTable, Row, Setting, register

EPOCHS = 6
DIM, WIDER = 200, 207
"""With the control's 207, an LSTM and its softmax have as many parameters as one of 200 with a mixture of 3."""
PUBLISHED_RATE = 0.02
SGD_RATE = 20.0
PUBLISHED = {"knots": 100_000, "start": "random", "gain": math.sqrt(PUBLISHED_RATE / SGD_RATE)}
MILLION = PUBLISHED | {"knots": 1_000_000}

TRAINED_HEADS: dict[str, dict[str, Any]] = {
    "softmax": {"kind": "dense"},
    "PLIF, ours": {"kind": "plif"},
    "MoS, K = 15": {"kind": "mos", "components": 15},
    "MoS, K = 15, PLIF": {"kind": "mos", "components": 15, "curve": "plif"},
    "PLIF, published": {"kind": "plif", **PUBLISHED},
    "temperature": {"kind": "temperature"},
    "SigSoftmax": {"kind": "sigsoftmax"},
    "GSS(-1.5, 2.5)": {"kind": "gss", "centre": -1.5, "power": 2.5},
    "MoS, K = 3": {"kind": "mos", "components": 3},
    "MoS, K = 5": {"kind": "mos", "components": 5},
    "monotone network": {"kind": "monotone"},
    "monotone network, K = 1,000": {"kind": "monotone", "units": 1000},
    "MoC, K = 15": {"kind": "moc", "components": 15},
    "PLIF, frozen random": {"kind": "plif", **PUBLISHED, "frozen": True},
    "MoS, K = 15, PLIF, published": {"kind": "mos", "components": 15, "curve": "plif", **MILLION},
    f"softmax, {WIDER} wide": {"kind": "dense"},
    "MoS, K = 3, PLIF": {"kind": "mos", "components": 3, "curve": "plif"},
}
LONG = tuple(head for head in TRAINED_HEADS if not head.endswith("wide") and head != "MoS, K = 3, PLIF")
PRINTED = ("softmax", "PLIF, published", "PLIF, ours", "MoS, K = 15", "MoS, K = 15, PLIF, published")
"""The rows of the talk's table, and our PLIF."""


class Study(NamedTuple):
    """A table: the corpus, its heads and seeds, and how long each row is trained; ``steps`` 0: whole epochs."""

    corpus: str
    heads: tuple[str, ...]
    seeds: tuple[int, ...]
    epochs: int = EPOCHS
    steps: int = 0
    equal: bool = True


STUDIES = {
    "ptb": Study("penn-treebank", LONG, (1, 2, 3)),
    "wikitext2": Study("wikitext-2", tuple(head for head in LONG if head in (*PRINTED, "MoS, K = 15, PLIF")), (1, 2)),
    "wikitext2-early": Study(
        "wikitext-2", ("softmax", "PLIF, ours", "MoS, K = 3", "MoS, K = 3, PLIF", f"softmax, {WIDER} wide"), (1,), 1, 664,
        equal=False,
    ),
}  # fmt: skip
VOCABS = {"penn-treebank": 10_000, "wikitext-2": 33_278}


def setting(head: str, seed: int) -> Setting:
    return (("head", head), ("seed", str(seed)))


def planned(study: Study) -> list[Setting]:
    return [setting(head, seed) for seed in study.seeds for head in study.heads]


def run(name: str, context: Context) -> Iterator[Row]:
    """The rows that are not there yet."""
    study = STUDIES[name]
    todo = context.left(planned(study))
    for number, row in enumerate(todo):
        facts = dict(row)
        title = f"{number + 1} of {len(todo)}: {facts['head']}"
        dim = recipe_of(name, facts["head"], int(facts["seed"])).model_options["dim"]
        model = Model(f"LSTM 2 x {dim}", VOCABS[study.corpus], dim)
        yield Row(row, train(name, facts["head"], int(facts["seed"]), context, title), model)


def train(name: str, head: str, seed: int, context: Context, title: str) -> dict[str, float]:
    """One row: a model trained, or trained on, and measured."""
    from studies.models.jobs import build_job
    from studies.models.train import Run

    job = build_job(recipe_of(name, head, seed))
    run = Run(job, Path("runs") / "ganea2019" / name / slug(f"{head}-{seed}"), context.stage(title))
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


def recipe_of(name: str, head: str, seed: int) -> Any:
    """The recipe of every row: only the head, the seed and the width that makes up for the head differ."""
    from studies.models.recipe import from_dict

    study = STUDIES[name]
    dim = WIDER if head.endswith("wide") else width_of(head, VOCABS[study.corpus]) if study.equal else DIM
    model = {"kind": "lstm", "dim": dim, "layers": 2, "dropout": 0.2}
    training: dict[str, Any] = {"window": 35, "optimiser": "sgd", "rate": SGD_RATE}
    training |= {"epochs": study.epochs, "epoch_steps": study.steps, "batch": 20, "bf16": True, "seed": seed, "save_steps": 200}
    tables = {"data": study.corpus, "model": model, "head": TRAINED_HEADS[head], "training": training}
    return from_dict(tables, f"{name}-{slug(head)}-{seed}")


def width_of(head: str, vocab: int) -> int:
    """The LSTM's width at which it and the head come nearest to the parameters of a softmax of ``DIM``; a curve's own come on
    top, as in the print."""
    whole = parameters("softmax", DIM, vocab)
    return min(range(DIM // 2, DIM + 1), key=lambda dim: abs(parameters(head, dim, vocab) - whole))


def parameters(head: str, dim: int, vocab: int) -> int:
    """Of two LSTM layers and the head on them."""
    return 16 * (dim * dim + dim) + classes_and_mixture(head, dim, vocab)


def classes_and_mixture(head: str, dim: int, vocab: int) -> int:
    """The tied rows with their biases, and a mixture's projections and prior."""
    components: int = TRAINED_HEADS[head].get("components", 0)
    return vocab * (dim + 1) + components * (dim * dim + 2 * dim)


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


SOURCE = "the talk's AWD-LSTM table (PTB 58.37 / 57.25 / 56.43 / 56.02), checked; another recipe, so only the order is compared"
FILES = {"penn-treebank": "penn-treebank/ptb.train.txt", "wikitext-2": "wikitext-2/train.txt"}
for _table, _study in STUDIES.items():
    _long = f"{_study.steps:,} steps of 700 tokens" if _study.steps else f"{_study.epochs} epochs"
    register(
        PaperTable(
            paper="ganea2019",
            table=_table,
            claim=f"heads trained by one recipe, LSTM 2 x 200 or as wide, tied, {_long} on {_study.corpus}",
            source=SOURCE,
            needs=(FILES[_study.corpus],),
            run=partial(run, _table),
            planned=partial(planned, _study),
            trains=True,
        )
    )
