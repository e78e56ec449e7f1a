"""Singular values of several models' output layers: what a preview of few columns can know of them.

::

    python -m studies reproduce vlasova-softmax:spectra results/studies/vlasova-softmax.spectra.json

    plain     singular values of W
    centred   of W less its mean row, which adds the same to every logit and is nothing to a softmax
    weighted  of (W - mean row) C^(1/2), C = E[h h^T]: their energy is that of the logits of such hidden vectors

SmolLM2's head, a text recogniser's, a small transformer's and those of ``DATA/harvest/NAME``; a layer that is not there keeps
the entry that the file has of it. C is taken over training hidden vectors. ``energy`` is the share of the sum of squares that
the first D/16, D/8 and D/4 values have, and of the mean row in W.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import real_layers
from headlong import Layer
from headlong.errors import HeadlongError
from studies.papers.scripts import keep

Doubles = NDArray[np.float64]
VECTORS, PARTS = 20_000, (16, 8, 4)
NAMES = {"smollm2": "smollm2", "characters": "characters", "gpt": "wikitext2-gpt512"}
"""Of layers with their vectors among the data at hand: how they are called in the file."""


def spectrum(rows: Doubles) -> Doubles:
    """Singular values, falling, by the Gram matrix."""
    energies = np.linalg.eigvalsh(sum(part.T @ part for part in np.array_split(rows, max(1, len(rows) // 8192))))[::-1]
    return np.asarray(np.sqrt(np.maximum(energies, 0.0)))


def measured(name: str, layer: Layer, hidden: NDArray[Any]) -> dict[str, Any]:
    """Three falling lists, over their largest, and how much energy the widths of the study hold."""
    rows, some = np.asarray(layer.weight, np.float64), hidden[:: -(-len(hidden) // VECTORS)].astype(np.float64)
    centred = rows - rows.mean(axis=0)
    values, directions = np.linalg.eigh(some.T @ some / len(some))
    root = (directions * np.sqrt(np.maximum(values, 0.0))) @ directions.T
    kinds = {"plain": spectrum(rows), "centred": spectrum(centred), "weighted": spectrum(centred @ root)}
    line: dict[str, Any] = {"layer": name, "vocab": layer.vocab, "dim": layer.dim}
    line["mean_row_energy"] = round(1 - float(np.sum(kinds["centred"] ** 2) / np.sum(kinds["plain"] ** 2)), 4)
    for kind, found in kinds.items():
        energy = np.cumsum(found**2) / np.sum(found**2)
        line[f"{kind}_energy"] = {f"D/{part}": round(float(energy[layer.dim // part - 1]), 4) for part in PARTS}
        line[kind] = [float(f"{value:.4g}") for value in found / found[0]]
    return line


def main(path: str) -> None:
    file, harvested = Path(path), Path(os.environ["HEADLONG_DATA"], "harvest")
    runs = {run["layer"]: run for run in json.loads(file.read_text("utf-8"))["runs"]} if file.is_file() else {}
    for source, name in NAMES.items() | {(str(folder), folder.name) for folder in harvested.glob("*")}:
        try:
            one = real_layers.load(source)
        except HeadlongError as error:
            sys.stderr.write(f"{name}: {error}\n")
            continue
        runs[name] = measured(name, one.layer, one.train)
    keep(path, "vlasova-softmax:spectra", {"runs": list(runs.values())})
