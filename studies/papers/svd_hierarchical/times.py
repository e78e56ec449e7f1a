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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import headlong as hl
from headlong import Layer
from headlong.bench import rivals
from headlong.bench.measure import Contestant, Schedule, contest, environment, pinned, processors, write_run
from headlong.structured import TreeLayer, load_layer
from studies.papers.svd_hierarchical import hierarchical as study
from studies.papers.svd_hierarchical import steps

STEPS, VOCAB, DIM, QUERIES = 120, 793_471, 256, 64


def prepare(folder: Path) -> None:
    """Each head after ``STEPS`` steps, as a saved layer."""
    data = study.read(Path(os.environ["HEADLONG_DATA"]), study.FOLDERS["hierarchical"])
    folder.mkdir(parents=True, exist_ok=True)
    some = study.spread(np.arange(len(data.target)), STEPS * steps.BATCH)
    for name in study.HEADS:
        head = study.build(name, data)
        steps.start(head)
        steps.train(head, data.hidden[some], data.target[some], steps.said(f"train {name}"))
        head.to_layer().save(folder / _file(name))


def _file(name: str) -> str:
    return f"{name.replace(', ', '-').replace(' ', '-')}.safetensors"


def synthetic() -> Iterator[tuple[str, Any]]:
    """A flat layer, two levels of it, and a Huffman tree, all of One Billion Word's size."""
    from headlong.heads import classes, trees

    rng = np.random.default_rng(0)
    weight = rng.standard_normal((VOCAB, DIM), np.float32) * np.float32(2 / DIM**0.5)
    share = trees.zipf(VOCAB)
    yield "full", Layer(weight, np.log(share / share.sum()).astype(np.float32))
    group = classes.by_frequency(None, VOCAB, round(VOCAB**0.5))
    mass = np.bincount(group, share)
    rows = np.concatenate([rng.standard_normal((len(mass), DIM), np.float32) * np.float32(2 / DIM**0.5), weight])
    bias = np.log(np.concatenate([mass / mass.sum(), share / mass[group]])).astype(np.float32)
    children = np.concatenate([np.arange(1, len(mass) + 1), ~np.arange(VOCAB)])
    starts = np.concatenate([[0], len(mass) + np.concatenate([[0], np.cumsum(np.bincount(group))])])
    yield "two levels, frequency", TreeLayer(rows.astype(np.float16), bias, children, starts)
    yield "tree, huffman", TreeLayer(weight[1:].astype(np.float16), None, trees.huffman(share))


def contestants(layers: Iterator[tuple[str, Any]], threads: int) -> Iterator[Contestant]:
    """Full softmax in PyTorch, SVD-softmax and the cascade over the flat layer; each other layer with its engine."""
    for name, layer in layers:
        if isinstance(layer, Layer):
            yield rivals.contestant("torch fp32", layer, 10, threads)
            for method in ("svd", "cascade"):
                yield _engine(method, hl.compile(layer, method=method, delta=0.0, eps=0.2, threads=threads))
        else:
            yield _engine(name, hl.compile(layer, threads=threads))


def _engine(name: str, engine: Any) -> Contestant:
    return Contestant(name, lambda hidden: engine.topk(hidden, k=10), about={"engine": repr(engine)})


def timed(layers: Iterator[tuple[str, Any]], hidden: Any, threads: int, schedule: Schedule) -> list[Any]:
    field = {one.name: one for one in contestants(layers, threads)}
    found = []
    for timing in contest(list(field.values()), hidden, 1, schedule):
        one = field[timing.contestant]
        entry: dict[str, Any] = {"contestant": one.name, "about": dict(one.about), "seconds": timing.seconds}
        costs = [getattr(one.call(one.prepare(hidden[b : b + 1])), "cost", None) for b in range(16)]
        if costs[0] is not None:
            entry |= {key: float(np.mean([getattr(cost, key)[0] for cost in costs])) for key in ("rows", "bytes")}
        found.append(entry)
    return found


def saved(folder: Path) -> Iterator[tuple[str, Any]]:
    yield "full", Layer.load(Path(os.environ["HEADLONG_DATA"], study.FOLDERS["hierarchical"], "layer.safetensors"))
    for name in study.HEADS:
        yield name, load_layer(folder / _file(name))


def main(what: str, folder: str, *out: str) -> None:
    """``prepare FOLDER`` trains the heads, ``time FOLDER FILE`` times them."""
    if what == "prepare":
        prepare(Path(folder))
        return
    threads, path = processors(), Path(*out)
    data = study.read(Path(os.environ["HEADLONG_DATA"]), study.FOLDERS["hierarchical"])
    hidden = study.spread(data.test_hidden, QUERIES).astype(np.float32)
    made = np.random.default_rng(1).standard_normal((QUERIES, DIM)).astype(np.float32)
    record: dict[str, Any] = {"environment": environment(threads), "runs": []}
    schedule = Schedule(rounds=9, settle=1, calls=5, seconds=25.0)
    with pinned(threads):
        for name, layers, asked in (
            ("ptb-lstm, 10,000 x 200", saved(Path(folder)), hidden), (f"synthetic, {VOCAB:,} x {DIM}", synthetic(), made),
        ):  # fmt: skip
            record["runs"].append({"layer": name, "entries": timed(layers, asked, threads, schedule)})
            write_run(path, record)
