"""Ganea et al. (2019): the language-model table, every output layer inside one small recipe.

::

    ptb                          LSTM of 2 layers, embedding tied to the output rows, dropout 0.2; SGD at 20, one cycle over six
                                 epochs, batch 20, window 35
    ptb-short, wikitext2-short   every head in minutes: width 64, no dropout, SGD at 20, one cycle over ``STEPS`` steps of 20 x
                                 10 tokens spread over the training text; measured on the first ``MEASURED`` of validation and
                                 of test. WikiText-2 in its 10,000 most frequent words, all others ``<unk>``

All rows of a table have the parameters of the softmax of its width: what a head takes, the LSTM's width gives (``width_of``).
A row is an output layer and a seed. ``softmax, two more passes`` is the control: the softmax of that seed, trained on for two
more passes over the same steps at each of ``RATES``, of which validation chooses.

The printed figures are those of an AWD-LSTM: 58.37 test perplexity for the softmax, 57.25 for PLIF; a smaller model can be
compared with their order only, and only where rows differ by more than their seeds do. A study goes on where ``results/`` ends;
models are kept in ``runs/ganea2019``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from studies.papers import Context, Model, PaperTable, Row, Setting, register

PUBLISHED_RATE = 0.02
SGD_RATE = 20.0
RATES = (20.0, 5.0)
PUBLISHED = {"knots": 100_000, "start": "random", "gain": math.sqrt(PUBLISHED_RATE / SGD_RATE)}
MILLION = PUBLISHED | {"knots": 1_000_000}

SOFTMAX, TUNED = "softmax", "softmax, two more passes"
TRAINED_HEADS: dict[str, dict[str, Any]] = {
    SOFTMAX: {"kind": "dense"},
    TUNED: {"kind": "dense"},
    "PLIF, ours": {"kind": "plif"},
    "PLIF, published": {"kind": "plif", **PUBLISHED},
    "PLIF, frozen random": {"kind": "plif", **PUBLISHED, "frozen": True},
    "temperature": {"kind": "temperature"},
    "SigSoftmax": {"kind": "sigsoftmax"},
    "GSS(-1.5, 2.5)": {"kind": "gss", "centre": -1.5, "power": 2.5},
    "monotone network": {"kind": "monotone"},
    "MoC, K = 15": {"kind": "moc", "components": 15},
    "MoS, K = 3": {"kind": "mos", "components": 3},
    "MoS, K = 5": {"kind": "mos", "components": 5},
    "MoS, K = 15": {"kind": "mos", "components": 15},
    "MoS, K = 15, PLIF, published": {"kind": "mos", "components": 15, "curve": "plif", **MILLION},
}
AGAIN = ("softmax", "PLIF, ours", "SigSoftmax")
"""Trained from a second seed on Penn Treebank, for the spread."""


class Study(NamedTuple):
    """A table: the corpus, how many seeds (1, 2, ...) of each head, the width that ``width_of`` equals, and the training."""

    corpus: str
    seeds: Mapping[str, int]
    dim: int
    dropout: float
    training: Mapping[str, int]

    @property
    def heads(self) -> tuple[str, ...]:
        return tuple(self.seeds)


STEPS, MEASURED, WORDS = 400, 10_000, 10_000
SIX = ("softmax", "PLIF, ours", "PLIF, published", "temperature", "SigSoftmax", "GSS(-1.5, 2.5)", "monotone network")
SHORT = {"epochs": 1, "epoch_steps": STEPS, "batch": 20, "window": 10, "measured": MEASURED, "words": WORDS}
LONGER = ("PLIF, frozen random", "temperature", "GSS(-1.5, 2.5)", "MoC, K = 15")
BRIEF = [head for head in TRAINED_HEADS if head not in LONGER]
"""Controls of learned curves, of which the rows of six epochs say enough."""
STUDIES = {
    "ptb": Study(
        "penn-treebank",
        dict.fromkeys(SIX, 3) | dict.fromkeys(("MoS, K = 3", "MoC, K = 15", "PLIF, frozen random"), 2), 200, 0.2,
        {"epochs": 6, "batch": 20, "window": 35},
    ),
    "ptb-short": Study("penn-treebank", {head: 1 + (head in AGAIN) for head in BRIEF}, 64, 0.0, SHORT),
    "wikitext2-short": Study("wikitext-2", dict.fromkeys(BRIEF[:-1], 1), 64, 0.0, SHORT),
}  # fmt: skip
VOCABS = {"penn-treebank": 10_000, "wikitext-2": 33_278}


def setting(head: str, seed: int) -> Setting:
    return (("head", head), ("seed", str(seed)))


def planned(study: Study) -> list[Setting]:
    most = max(study.seeds.values())
    return [setting(head, seed) for seed in range(1, most + 1) for head, count in study.seeds.items() if seed <= count]


def run(name: str, context: Context) -> Iterator[Row]:
    """The rows that are not there yet."""
    study = STUDIES[name]
    todo = context.left(planned(study))
    for number, row in enumerate(todo):
        facts = dict(row)
        head, seed, progress = facts["head"], int(facts["seed"]), context.stage(f"{number + 1} of {len(todo)}: {facts['head']}")
        dim = width_of(head, study)
        model = Model(f"LSTM 2 x {dim}", vocab_of(study), dim)
        yield Row(row, tuned(name, seed, progress) if head == TUNED else train(name, head, seed, progress), model)


def train(name: str, head: str, seed: int, progress: Any) -> dict[str, float]:
    """One row: a model trained, or trained on, and measured."""
    from studies.models.jobs import build_job
    from studies.models.train import Run

    return figures(Run(build_job(recipe_of(name, head, seed)), folder_of(name, head, seed), progress))


def tuned(name: str, seed: int, progress: Any) -> dict[str, float]:
    """The control: the softmax's row, which has to be there, trained on at each rate; validation chooses."""
    from studies.models.jobs import build_job
    from studies.models.train import BEST, Run

    found = []
    for rate in RATES:
        job, folder = build_job(recipe_of(name, TUNED, seed, rate)), folder_of(name, f"{TUNED}, {rate:g}", seed)
        run = Run(job, folder, progress, folder_of(name, SOFTMAX, seed) / BEST)
        found.append({"rate": rate, **figures(run)})
    return min(found, key=lambda one: one["valid"])


def figures(run: Any) -> dict[str, float]:
    """Trains to the end."""
    test, epochs = run.fit(), run.training.epochs
    own = {id(parameter) for parameter in run.job.model.parameters()}
    found = {
        "parameters": float(sum(p.numel() for p in run.job.model.parameters() if p.requires_grad and id(p) in own)),
        "valid": min(entry["valid_perplexity"] for entry in run.history),
        "test": test.perplexity,
        "epochs": float(epochs),
        "cpu_seconds_per_epoch": run.cpu_seconds / epochs,
    }
    return {key: float(f"{value:.7g}") for key, value in found.items()}


def folder_of(name: str, head: str, seed: int) -> Path:
    return Path("runs") / "ganea2019" / name / slug(f"{head}-{seed}")


def recipe_of(name: str, head: str, seed: int, rate: float = SGD_RATE) -> Any:
    """The recipe of every row: only the head, the seed and the width that makes up for the head differ, and of the control how
    long and how fast."""
    from studies.models.recipe import from_dict

    study = STUDIES[name]
    model = {"kind": "lstm", "dim": width_of(head, study), "layers": 2, "dropout": study.dropout}
    training: dict[str, Any] = {"optimiser": "sgd", "rate": rate, "bf16": True, "seed": seed}
    training |= {**study.training, **({"epochs": 2} if head == TUNED else {})}
    tables = {"data": study.corpus, "model": model, "head": TRAINED_HEADS[head], "training": training}
    return from_dict(tables, f"{name}-{slug(head)}-{seed}")


def vocab_of(study: Study) -> int:
    return study.training.get("words") or VOCABS[study.corpus]


def width_of(head: str, study: Study) -> int:
    """The LSTM's width at which it and the head come nearest to the parameters of the table's softmax; a curve's own come on
    top, as in the print."""
    vocab, whole = vocab_of(study), parameters(SOFTMAX, study.dim, vocab_of(study))
    return min(range(study.dim // 2, study.dim + 1), key=lambda dim: abs(parameters(head, dim, vocab) - whole))


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
    _about = f"six epochs on {_study.corpus}" if _table == "ptb" else f"{STEPS} steps of 200 tokens on {_study.corpus}"
    register(
        PaperTable(
            paper="ganea2019",
            table=_table,
            claim=f"heads trained by one recipe, LSTM 2 x {_study.dim} or as many parameters, tied, {_about}",
            source=SOURCE,
            needs=(FILES[_study.corpus],),
            run=partial(run, _table),
            planned=partial(planned, _study),
            trains=True,
        )
    )
