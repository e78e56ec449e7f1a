"""``python -m studies train``: a recipe in, a trained model in a folder and the record of its run out::

    record = train("ptb-lstm")                       # runs/ptb-lstm/{best.safetensors, run.json}

The record has what it takes to judge and repeat the run: seed, recipe, environment, curve, figures, and the
checksum of the trained layer. It names no folder and no host.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from headlong import Layer
from headlong.bench.measure import environment
from headlong.errors import StoreError
from headlong.store import replacing
from studies.models.bleu import score_translations
from studies.models.evaluate import Figures, Tell
from studies.models.jobs import Job, build_job
from studies.models.optimisers import product_facts
from studies.models.recipe import Recipe
from studies.models.train import BEST, Run

FORMAT, VERSION = "headlong-training", 1
RECORD = "run.json"


def train(recipe: Recipe, out: str | os.PathLike[str] | None = None, report: Tell | None = None) -> dict[str, Any]:
    """Train the recipe in ``out`` (default ``runs/NAME``), which holds no model yet; returns the record that it also wrote."""
    folder = Path(out) if out is not None else Path("runs") / recipe.name
    if (folder / BEST).exists():
        raise StoreError(f"{folder} holds a trained model; give another folder with --out, or remove this one")
    run = Run(build_job(recipe), folder, report)
    record = describe(run.job, run, run.fit())
    with replacing(folder / RECORD) as file:
        file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    return record


def describe(job: Job, run: Run, figures: Figures) -> dict[str, Any]:
    """The record of a finished run."""
    recipe = job.recipe
    test: dict[str, Any] = {"loss": figures.loss, "perplexity": figures.perplexity, "targets": figures.targets}
    if job.data.kind == "pairs":
        test |= score_translations(job)
    layer = job.model.head.to_layer()
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": recipe.name,
        "seed": recipe.training.seed,
        "data": {"name": job.data.name, "licence": job.data.licence},
        "recipe": recipe.as_dict() | {"data": job.data.name},
        "parameters": sum(parameter.numel() for parameter in job.model.parameters()),
        "environment": environment(torch.get_num_threads(), **product_facts(recipe.training.bf16)),
        "seconds": run.history[-1]["seconds"],
        "cpu_seconds": run.cpu_seconds,
        "curve": run.history,
        "test": test,
        "layer": {"checksum": layer.checksum(), "vocab": layer.vocab, "dim": layer.dim} if isinstance(layer, Layer) else {},
    }


def summary(record: Mapping[str, Any]) -> str:
    """``ptb-lstm: test perplexity 98.30 on 82,420 targets, 0:11:32``."""
    test, seconds = dict(record["test"]), int(record["seconds"])
    text = f"{record['name']}: test perplexity {test['perplexity']:.2f} on {test['targets']:,} targets"
    if "bleu" in test:
        text += f", BLEU {test['bleu']:.2f} ({test['signature']})"
    return f"{text}, {seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
