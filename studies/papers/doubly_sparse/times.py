"""One query's ten likeliest classes by every method of the poster's table, at its four shapes, in one run.

::

    V, D       printed classes, and the D at which D / V + 16 / D + 1 / 10 is what SVD-10 is printed to save
    full       rows [V, D] in PyTorch: linear, log_softmax, topk               full, here  the same rows, read by our engine
    svd-10     16 columns, a tenth of the rows
    d-softmax  a quarter of the classes at D, a quarter at D / 2, half at D / 4
    ds-64      a gate and 64 experts of V / (times fewer FLOPs) - 64 rows

    python -m studies reproduce liao2019:times results/studies/liao2019.times.json

The rows are random: every method here reads as many of them whatever they are, so the times are those of a trained layer of
that shape, and the answers mean nothing. The poster times one processor of another make, so ratios are what can be compared.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from headlong import Layer
from headlong import compile as compile_layer
from headlong.bench import rivals
from headlong.bench.measure import Contestant, Schedule, claim_threads, contest, pinned, processors
from headlong.structured import BlocksLayer, ExpertsLayer
from studies.papers.doubly_sparse.printed import REAL
from studies.papers.scripts import keep

K, EXPERTS, WIDTH, QUERIES = 10, 64, 16, 256


class Shape(NamedTuple):
    """Of the softmax, and how many rows a mean expert has left of it."""

    vocab: int
    dim: int
    expert: int


def shape(task: str, vocab: int, dim: int) -> Shape:
    return Shape(vocab, dim, round(vocab / REAL[task]["ds-64"][1]) - EXPERTS)


SHAPES = {
    "ptb": shape("ptb", 10_000, 200), "wikitext2": shape("wikitext2", 33_278, 200), "multi30k": shape("multi30k", 7_709, 512),
    "characters": shape("characters", 3_740, 1000),
}  # fmt: skip
"""By the names that ``printed`` has for PTB, Wiki-2, En-Ve and CASIA."""


def flat(made: Shape, rng: np.random.Generator) -> Layer:
    weight = rng.standard_normal((made.vocab, made.dim), np.float32) * np.float32(2 / made.dim**0.5)
    return Layer(weight, rng.standard_normal(made.vocab).astype(np.float32))


def blocks(layer: Layer) -> BlocksLayer:
    """Of falling width, the first classes the widest."""
    import torch

    from studies.papers.doubly_sparse.tasks import blocks_of

    weight, bias = (torch.from_numpy(np.array(part)) for part in (layer.weight, layer.bias))
    return blocks_of(weight, bias, np.arange(layer.vocab, 0, -1)).to_layer()


def experts(made: Shape, rng: np.random.Generator) -> ExpertsLayer:
    """As many rows for every expert: their mean is all that is printed."""
    ids = np.concatenate([np.sort(rng.choice(made.vocab, made.expert, replace=False)) for _ in range(EXPERTS)])
    gate, weight = (rng.standard_normal((rows, made.dim), np.float32) for rows in (EXPERTS, len(ids)))
    return ExpertsLayer(gate, weight, ids, np.arange(EXPERTS + 1) * made.expert, made.vocab)


def contestants(made: Shape, threads: int) -> list[Contestant]:
    rng = np.random.default_rng(0)
    layer = flat(made, rng)
    engines: dict[str, Any] = {
        "full, here": compile_layer(layer, "full", threads=threads),
        "svd-10": compile_layer(layer, "svd", threads=threads, width=WIDTH, rows=round(made.vocab / 10)),
        "d-softmax": compile_layer(blocks(layer), threads=threads),
        "ds-64": compile_layer(experts(made, rng), threads=threads),
    }
    full = rivals.contestant("torch fp32", layer, K, threads)
    return [replace(full, name="full"), *(_contestant(name, engine) for name, engine in engines.items())]


def _contestant(name: str, engine: Any) -> Contestant:
    return Contestant(name, lambda hidden: engine.topk(hidden, k=K))


def timed(made: Shape, threads: int, schedule: Schedule) -> dict[str, list[float]]:
    """Quartiles in milliseconds, by method."""
    hidden = np.random.default_rng(1).standard_normal((QUERIES, made.dim)).astype(np.float32)
    return {
        run.contestant: [round(1000 * part, 5) for part in statistics.quantiles(run.seconds, n=4)]
        for run in contest(contestants(made, threads), hidden, 1, schedule)
    }


def main(file: str) -> None:
    threads = processors()
    claim_threads(threads)
    runs: list[dict[str, Any]] = []
    with pinned(threads):
        for task, made in SHAPES.items():
            found = timed(made, threads, Schedule(rounds=25, calls=8, seconds=12.0))
            runs.append({"task": task, **made._asdict(), "milliseconds": found})
    keep(file, "liao2019:times", {"runs": runs}, threads)
