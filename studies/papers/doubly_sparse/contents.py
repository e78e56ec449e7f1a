"""What trained experts hold, and the softmax's share of a model's arithmetic (Liao et al. 2019).

::

    python -m studies reproduce liao2019:contents studies/results/liao2019.contents.json TASK...

    own words   of an expert: those that the fewest other experts hold, the more frequent first
    held        by m experts: how many classes, the geometric mean and the quartiles of their frequency in training
    rank correlation (Spearman's) of a class's frequency and the number of experts that hold it

A task's 64 experts are those that ``liao2019:learned`` seeded and left in ``runs/liao2019``; ``10x10`` trains the made-up
hierarchy again and stores the classes that each expert keeps. A task's entry in the file is replaced, the others stay. The
paper's smallest expert on Penn Treebank has 64 words of money, time and comparison; its frequent words sit in more experts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.bench.measure import environment, write_run
from headlong.store import open_file
from headlong.structured import ExpertsLayer, load_layer
from studies.papers.doubly_sparse import synthetic as liao2019_synthetic
from studies.papers.doubly_sparse import tasks as study
from studies.papers.doubly_sparse.softmax_share import compute
from studies.papers.doubly_sparse.tables import RUNS
from studies.papers.svd_hierarchical.steps import said
from studies.papers.verdicts import Expected

SMALLEST, SHOWN = 6, 24
"""Experts that are listed, and words of each."""
SOFTMAX_SHARE = Expected(0.98, 1.0)
"""The poster's, for a two-layer recurrent net of 200 on WikiText-2; unverified."""

Counts = NDArray[np.int64]


def contents(layer: ExpertsLayer, counts: Counts, words: list[str]) -> dict[str, Any]:
    """``counts [vocab]``: how often each class is a target in training."""
    number = np.bincount(layer.ids, minlength=layer.vocab)
    came = counts > 0
    held = []
    for experts in np.unique(number[came]).tolist():
        mine = counts[came & (number == experts)]
        low, high = np.percentile(mine, (25, 75)).tolist()
        mean = float(np.exp(np.log(mine).mean()))
        held.append({"experts": experts, "classes": len(mine), "frequency": round(mean, 2), "low": low, "high": high})
    order = np.argsort(layer.sizes, kind="stable")[:SMALLEST]
    return {
        "classes": layer.vocab,
        "experts": layer.experts,
        "sizes": np.sort(layer.sizes).tolist(),
        "smallest": [listed(layer, int(expert), counts, number, words) for expert in order],
        "held": held,
        "rank_correlation": rank_correlation(counts[came], number[came]),
    }


def listed(layer: ExpertsLayer, expert: int, counts: Counts, number: Counts, words: list[str]) -> dict[str, Any]:
    """An expert's most frequent words, and those that are most its own."""
    ids = layer.ids[layer.part(expert)]
    frequent = ids[np.argsort(-counts[ids], kind="stable")][:SHOWN]
    own = ids[np.lexsort((-counts[ids], number[ids]))][:SHOWN]
    return {"size": len(ids), "words": [words[at] for at in frequent], "own": [words[at] for at in own]}


def rank_correlation(a: Counts, b: Counts) -> float | None:
    """Spearman's, equal values at their mean rank; None where all values of either are equal."""
    if len(np.unique(a)) < 2 or len(np.unique(b)) < 2:
        return None
    return round(float(np.corrcoef(_ranks(a), _ranks(b))[0, 1]), 4)


def _ranks(values: Counts) -> NDArray[np.float64]:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place], np.float64)


def of_task(root: Path, name: str) -> dict[str, Any]:
    """A trained head of 64 experts, and the backbone that it belongs to."""
    folder = root / study.TASKS[name].folder
    layer = load_layer(next(RUNS.glob(f"{name}/seeded-64-0-*/layer.safetensors")))
    assert isinstance(layer, ExpertsLayer)
    words = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")
    target = np.asarray(open_file(folder / "hidden.safetensors").read("train_target"), np.int64)
    found = contents(layer, np.bincount(target, minlength=layer.vocab), words)
    share = compute(folder.name, folder / "layer.safetensors")
    verdict = SOFTMAX_SHARE.verdict(share["share"]) if name == "wikitext2" else "no figure"
    return {**found, "training_targets": len(target), "compute": {**share, "verdict": verdict}}


def of_hierarchy(name: str) -> dict[str, Any]:
    """Which of the made-up classes each expert keeps."""
    case = liao2019_synthetic.CASES[name]
    found = liao2019_synthetic.trained(case, 0, said(f"train {name}"))
    kept = [sorted(ids.tolist()) for _, ids in found.head.parts()]
    pure, exact = liao2019_synthetic.purity([ids for _, ids in found.head.parts()], case.supers)
    return {"classes": case.supers**2, "experts": len(kept), "purity": round(pure, 4), "exact": exact, "kept": sorted(kept)}


def main(file: str, *names: str) -> None:
    path = Path(file)
    runs = json.loads(path.read_text("utf-8"))["runs"] if path.is_file() else []
    for name in names:
        made = name in liao2019_synthetic.CASES
        found = of_hierarchy(name) if made else of_task(Path(os.environ["HEADLONG_DATA"]), name)
        runs = [run for run in runs if run["task"] != name] + [{"task": name, **found}]
        command = f"python -m studies reproduce liao2019:contents results/{path.name} TASK..."
        write_run(path, {"command": command, "environment": environment(1), "runs": runs})
        sys.stderr.write(f"{name}: {found['experts']} experts\n")
