"""What trained experts hold (Liao et al. 2019).

::

    python -m studies reproduce liao2019:contents results/studies/liao2019.contents.json

    smallest          an expert with the fewest classes, the more frequent of them first
    rank correlation  (Spearman's) of a class's frequency in training and the number of experts that hold it

The 64 experts are those that ``liao2019:learned`` seeded on Penn Treebank and left in ``runs/liao2019``. The paper's smallest
has 64 words of money, time and comparison; its frequent words sit in more experts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from headlong.store import open_file
from headlong.structured import ExpertsLayer, load_layer
from studies.papers.doubly_sparse import tasks as study
from studies.papers.doubly_sparse.tables import RUNS
from studies.papers.scripts import keep

TASK = "ptb, six epochs"
"""The task whose 64 experts are read."""

Counts = NDArray[np.int64]


def contents(layer: ExpertsLayer, counts: Counts, words: list[str]) -> dict[str, Any]:
    """``counts [vocab]``: how often each class is a target in training."""
    number = np.bincount(layer.ids, minlength=layer.vocab)
    came = counts > 0
    ids = layer.ids[layer.part(int(layer.sizes.argmin()))]
    frequent = ids[np.argsort(-counts[ids], kind="stable")]
    return {
        "classes": layer.vocab,
        "experts": layer.experts,
        "smallest": {"size": len(ids), "words": [words[at] for at in frequent]},
        "rank_correlation": rank_correlation(counts[came], number[came]),
    }


def rank_correlation(a: Counts, b: Counts) -> float | None:
    """Spearman's, equal values at their mean rank; None where all values of either are equal."""
    if len(np.unique(a)) < 2 or len(np.unique(b)) < 2:
        return None
    return round(float(spearmanr(a, b).statistic), 4)


def main(file: str) -> None:
    folder = Path(os.environ["HEADLONG_DATA"]) / study.TASKS[TASK].folder
    layer = load_layer(next(RUNS.glob(f"{TASK}/seeded-64-0-*/layer.safetensors")))
    assert isinstance(layer, ExpertsLayer)
    words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    target = np.asarray(open_file(folder / "hidden.safetensors").read("train_target"), np.int64)
    found = contents(layer, np.bincount(target, minlength=layer.vocab), words)
    keep(file, "liao2019:contents", {"runs": [{"task": "ptb", **found}]})
