"""Singular values of several models' output layers: what a preview of few columns can know of them.

::

    python -m studies reproduce vlasova-softmax:spectra studies/results/vlasova-softmax.spectra.json

    plain     singular values of W
    centred   of W less its mean row, which adds the same to every logit and is nothing to a softmax
    weighted  of (W - mean row) C^(1/2), C = E[h h^T]: their energy is that of the logits of such hidden vectors

Layers are looked for as ``DATA/heads/wikitext2-gpt512`` and ``DATA/harvest/NAME`` (``harvest``); those that are not
there are named as not run. C is taken over training hidden vectors. ``energy`` is the share of the sum of squares that the
first D/16, D/8 and D/4 values have, and of the mean row in W.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from headlong import Layer
from headlong.arrays import hidden64
from headlong.bench.measure import environment, silent, write_run
from headlong.inspection import spectrum
from headlong.native import Doubles
from headlong.store import open_file
from studies.papers.doubly_sparse.tasks import TASKS

VECTORS, PARTS = 20_000, (16, 8, 4)
NAMES = [task.folder for task in TASKS.values()]


def found(root: Path, name: str) -> tuple[Layer, Doubles] | None:
    """The layer and some of its training hidden vectors; None where they are not there."""
    folder = root / name
    path, rows = folder / "layer.safetensors", folder / "hidden.safetensors"
    if not folder.is_dir():
        path, rows = root / f"{name}.safetensors", root / f"{name}.hidden.safetensors"
    if not path.is_file() or not rows.is_file():
        return None
    layer = Layer.load(path) if folder.is_dir() else Layer.load(path, weight="weight")
    hidden = open_file(rows).read("train_hidden")
    return layer, hidden64(hidden[:: -(-len(hidden) // VECTORS)], layer.dim)


def weighted(singular: Doubles, directions: Doubles, hidden: Doubles) -> Doubles:
    """Singular values of ``W C^(1/2)``, falling: with ``W = U S Q^T`` the roots of the eigenvalues of ``S Q^T C Q S``."""
    rotated = (hidden @ directions) * singular
    energies = np.linalg.eigvalsh(rotated.T @ rotated / len(hidden))[::-1]
    return np.asarray(np.sqrt(np.maximum(energies, 0.0)), np.float64)


def measured(name: str, layer: Layer, hidden: Doubles) -> dict[str, Any]:
    """Three falling lists, over their largest, and how much energy the widths of the study hold."""
    rows = np.asarray(layer.weight, np.float32)
    _, singular, _ = spectrum(layer, silent)
    _, centred, directions = spectrum(Layer(rows - rows.mean(axis=0, dtype=np.float64).astype(np.float32)), silent)
    line: dict[str, Any] = {"layer": name.split("/")[-1], "vocab": layer.vocab, "dim": layer.dim}
    line["mean_row_energy"] = round(1 - float(np.sum(centred**2) / np.sum(singular**2)), 4)
    kinds = {"plain": singular, "centred": centred, "weighted": weighted(centred, directions, hidden)}
    for kind, values in kinds.items():
        energy = np.cumsum(values**2) / np.sum(values**2)
        line[f"{kind}_energy"] = {f"D/{part}": round(float(energy[layer.dim // part - 1]), 4) for part in PARTS}
        line[kind] = [float(f"{value:.4g}") for value in values / values[0]]
    return line


def main(path: str) -> None:
    root = Path(os.environ["HEADLONG_DATA"])
    runs, absent = [], []
    for name in NAMES:
        pair = found(root, name)
        if pair is None:
            absent.append(name)
        else:
            runs.append(measured(name, *pair))
            sys.stderr.write(f"{name}: {runs[-1]['vocab']:,} x {runs[-1]['dim']}\n")
    command = f"python -m studies reproduce vlasova-softmax:spectra studies/results/{Path(path).name}"
    write_run(Path(path), {"command": command, "environment": environment(1), "not_run": absent, "runs": runs})
