"""Ganea et al. (2019): what the trained heads became: ranks of their log-probabilities, perplexity beside them, their links.

    python -m studies reproduce ganea2019:trained RUNS studies/results/ganea2019-trained.json

``RUNS`` is a folder of runs of the language-model table, one for each head (``runs/ganea2019/ptb-early``); those of its
first seed are read, on ``QUERIES`` hidden vectors of the test text. "made" rows need no run: layers of random rows, d = 8,
whose softmax cannot exceed rank 9 and whose links and mixtures do. Links are kept as ``f(z) - f(0)`` at ``REACH * [-1, 1]``.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headlong import Layer
from headlong.bench.measure import environment
from headlong.capacity import ranks
from headlong.links import IDENTITY, Gss, Link, Table
from headlong.store import replacing
from headlong.structured import MixtureLayer
from studies.papers.monotonic_softmax.language_models import TRAINED_HEADS, slug

QUERIES = 2048
SIZE, DIM, COMPONENTS = 300, 8, 3
REACH, POINTS = 15.0, 121


def made() -> Iterator[dict[str, Any]]:
    """The bound of a softmax of 8 dimensions, and what exceeds it: 300 contexts, 300 classes."""
    rng = np.random.default_rng(0)
    weight, hidden = 1.5 * rng.standard_normal((SIZE, DIM)).astype(np.float32), rng.standard_normal((SIZE, DIM))
    slopes = np.exp(rng.uniform(math.log(0.3), math.log(3), 256))
    values = np.concatenate([[0.0], np.cumsum(slopes) * 40 / 256])
    links: dict[str, Link] = {
        "softmax": IDENTITY, "SigSoftmax": Gss(), "GSS(-1.5, 2.5)": Gss(-1.5, 2.5),
        "PLIF": Table(-20.0, 40 / 256, values, 1.0, 1.0),
    }  # fmt: skip
    project = rng.standard_normal((COMPONENTS * DIM, DIM)).astype(np.float32)
    mixture = [project, np.zeros(COMPONENTS * DIM, np.float32), rng.standard_normal((COMPONENTS, DIM)).astype(np.float32)]
    layers: dict[str, Layer | MixtureLayer] = {name: Layer(weight, None, link) for name, link in links.items()}
    layers["MoS, K = 3"] = MixtureLayer(Layer(weight), *mixture)
    layers["MoC, K = 3"] = MixtureLayer(Layer(weight), *mixture, pooled=True)
    for name, layer in layers.items():
        yield {"what": f"made, d = {DIM}", "head": name, **ranked(layer, hidden)}


def trained(runs: Path) -> Iterator[dict[str, Any]]:
    """Every head whose first run is there."""
    from studies.models.harvest import trained as load
    from studies.models.harvest import vectors
    from studies.models.jobs import harvested_feed

    for head in TRAINED_HEADS:
        folder = runs / slug(f"{head}-1")
        if not (folder / "best.safetensors").is_file():
            continue
        job = load(folder)
        feed = harvested_feed(job.data.content, "test", job.recipe.training)
        hidden = np.concatenate([part.numpy() for part, _ in vectors(job.model, feed)])[:QUERIES]
        layer = job.model.head.to_layer()
        link = layer.link if isinstance(layer, Layer) else layer.matrix.link
        row = {"what": runs.name, "head": head, **ranked(layer, hidden)}
        yield row if link == IDENTITY else row | {"link": drawn(link)}
        sys.stderr.write(f"{head}\n")


def ranked(layer: Layer | MixtureLayer, hidden: Any) -> dict[str, Any]:
    found = ranks(layer, hidden)
    effective = {f"effective_{eps:g}": rank for eps, rank in found.effective.items()}
    return {"queries": found.queries, "classes": found.classes, "softmax_rank": found.most, "press": found.press, **effective}


def drawn(link: Link) -> list[float]:
    """``f(z) - f(0)`` at ``POINTS`` even places."""
    z = np.linspace(-REACH, REACH, POINTS)
    return [float(f"{value:.5g}") for value in np.asarray(link(z)) - float(link(0.0))]


def main(runs: str, path: str) -> None:
    rows = [*made(), *trained(Path(runs))]
    where = f"runs/ganea2019/{Path(runs).name} studies/results/{Path(path).name}"
    command = f"python -m studies reproduce ganea2019:trained {where}"
    record = {"format": "headlong-ganea2019-trained", "version": 1, "command": command, "environment": environment(1)}
    with replacing(path) as file:
        file.write(json.dumps(record | {"reach": REACH, "rows": rows}, indent=1).encode() + b"\n")
