"""Time per token: the full softmax, SVD-softmax, the cascade and hierarchical heads, top-10 at batch 1, in one run.

::

    python -m studies reproduce vlasova-softmax:times prepare FOLDER  # heads trained on Penn Treebank's vectors
    python -m studies reproduce vlasova-softmax:times time FOLDER studies/results/hierarchical-times.json

Two sizes: the Penn Treebank LSTM's layer (10,000 x 200) with heads trained on its hidden vectors, and a synthetic layer of
One Billion Word's size (793,471 x 256; random rows, biases and tree by Zipf's law): its times are real, its answers mean
nothing, and no perplexity is claimed. ``rows`` is how many rows an engine read: for a binary tree, nodes opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headlong import Layer
from headlong import compile as compile_layer
from headlong.bench import rivals
from headlong.bench.measure import Contestant, Schedule, contest, environment, pinned, processors, write_run
from headlong.layers.structured import StructuredLayer
from headlong.store import open_file
from headlong.structured import TreeLayer, load_layer
from studies.papers.svd_hierarchical import hierarchical as study
from studies.papers.svd_hierarchical import steps

STEPS, VOCAB, DIM = 120, 793_471, 256
TIMED = ("two levels, frequency", "two levels, clustered", "tree, huffman", "tree, learned", "bands", "differentiated")
QUERIES = 64


def prepare(folder: Path, names: Sequence[str] = TIMED) -> None:
    """Each of those heads after ``STEPS`` steps, as a saved layer."""
    data = study.read(Path(os.environ["HEADLONG_DATA"]), STEPS * steps.BATCH)
    factories = study.heads(data)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        head = factories[name]()
        steps.start(head)
        steps.train(head, data, steps.said(f"train {name}"))
        head.to_layer().save(folder / f"{name.replace(', ', '-').replace(' ', '-')}.safetensors")


def synthetic() -> Iterator[tuple[str, Layer | StructuredLayer]]:
    """A flat layer, two levels of it, and a Huffman tree, all of One Billion Word's size."""
    from headlong.heads import trees
    from headlong.heads.classes import by_frequency

    rng = np.random.default_rng(0)
    weight = rng.standard_normal((VOCAB, DIM), np.float32) * np.float32(2 / DIM**0.5)
    share = trees.zipf(VOCAB)
    yield "full", Layer(weight, np.log(share / share.sum()).astype(np.float32))
    group = by_frequency(None, VOCAB, round(VOCAB**0.5))
    mass = np.bincount(group, share)
    rows = np.concatenate([rng.standard_normal((len(mass), DIM), np.float32) * np.float32(2 / DIM**0.5), weight])
    bias = np.log(np.concatenate([mass / mass.sum(), share / mass[group]])).astype(np.float32)
    children = np.concatenate([np.arange(1, len(mass) + 1), ~np.arange(VOCAB)])
    starts = np.concatenate([[0], len(mass) + np.concatenate([[0], np.cumsum(np.bincount(group))])])
    yield "two levels, frequency", TreeLayer(rows.astype(np.float16), bias, children, starts)
    yield "tree, huffman", TreeLayer(weight[1:].astype(np.float16), None, trees.huffman(share))


def contestants(layers: Iterator[tuple[str, Layer | StructuredLayer]], threads: int) -> Iterator[Contestant]:
    """Full softmax in PyTorch, SVD-softmax and the cascade over the flat layer; each other layer with its engine."""
    for name, layer in layers:
        if isinstance(layer, Layer):
            yield rivals.contestant("torch fp32", layer, 10, threads)
            for method in ("svd", "cascade"):
                yield _engine(method, compile_layer(layer, method=method, delta=0.0, eps=0.2, threads=threads))
        else:
            yield _engine(name, compile_layer(layer, threads=threads))


def _engine(name: str, engine: Any) -> Contestant:
    return Contestant(name, lambda hidden: engine.topk(hidden, k=10), about={"engine": repr(engine)})


def timed(layers: Iterator[tuple[str, Layer | StructuredLayer]], hidden: Any, threads: int, schedule: Schedule) -> list[Any]:
    field = list(contestants(layers, threads))
    found = []
    for timing in contest(field, hidden, 1, schedule):
        (one,) = (one for one in field if one.name == timing.contestant)
        entry: dict[str, Any] = {"contestant": one.name, "about": dict(one.about), "seconds": timing.seconds}
        costs = [getattr(one.call(one.prepare(hidden[b : b + 1])), "cost", None) for b in range(16)]
        if costs[0] is not None:
            entry |= {key: float(np.mean([getattr(cost, key)[0] for cost in costs])) for key in ("rows", "bytes")}
        found.append(entry)
    return found


def saved(folder: Path, names: Sequence[str] = TIMED) -> Iterator[tuple[str, Layer | StructuredLayer]]:
    yield "full", Layer.load(Path(os.environ["HEADLONG_DATA"]) / study.LAYER)
    for name in names:
        yield name, load_layer(folder / f"{name.replace(', ', '-').replace(' ', '-')}.safetensors")


def main(what: str, folder: str, *out: str) -> None:
    """``prepare FOLDER`` trains the heads, ``time FOLDER FILE`` times them."""
    if what == "prepare":
        prepare(Path(folder))
    else:
        timing(Path(folder), Path(*out))


def timing(folder: Path, out: Path) -> None:
    threads = processors()
    rows = open_file(Path(os.environ["HEADLONG_DATA"]) / study.HIDDEN).read("test_hidden")
    hidden = study.spread(rows, QUERIES).astype(np.float32)
    made = np.random.default_rng(1).standard_normal((QUERIES, DIM)).astype(np.float32)
    record: dict[str, Any] = {"environment": environment(threads)}
    with pinned(threads):
        schedule = Schedule(rounds=9, settle=1, calls=5, seconds=25.0)
        record["runs"] = [{"layer": "ptb-lstm, 10,000 x 200", "entries": timed(saved(folder), hidden, threads, schedule)}]
        write_run(out, record)
        size = f"synthetic, {VOCAB:,} x {DIM}"
        record["runs"].append({"layer": size, "entries": timed(synthetic(), made, threads, schedule)})
        write_run(out, record)
