"""Time per token: the full softmax, SVD-softmax, rotated codes and hierarchical heads, top-10 at batch 1, in one run.

::

    python -m studies reproduce vlasova-softmax:times prepare FOLDER  # heads trained on Penn Treebank's vectors
    python -m studies reproduce vlasova-softmax:times time FOLDER results/studies/hierarchical-times.json [LAYER...]

The Penn Treebank LSTM's layer with heads trained on its hidden vectors (``ptb-lstm``), SmolLM2's head and a text recogniser's
(``smollm2``, ``characters``), and a layer of One Billion Word's size (``synthetic``, 793,471 x 256; random rows, biases and
tree by Zipf's law): its times are real, its answers mean nothing, and no perplexity is claimed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np

import headlong as hl
from benchmarks.common import real_layers
from headlong import Layer
from headlong.bench import rivals
from headlong.bench.measure import Contestant, Schedule, contest, environment, pinned, processors, read_run, write_run
from headlong.structured import TreeLayer, load_layer
from studies.papers.shown import progress
from studies.papers.svd_hierarchical import hierarchical as study
from studies.papers.svd_hierarchical import steps

STEPS, VOCAB, DIM, QUERIES = 120, 793_471, 256, 64


def prepare(folder: Path) -> None:
    """Each head after ``STEPS`` steps, as a saved layer."""
    data = study.read(Path(os.environ["HEADLONG_DATA"]), study.FOLDERS["hierarchical"][0])
    folder.mkdir(parents=True, exist_ok=True)
    some = study.spread(np.arange(len(data.target)), STEPS * steps.BATCH)
    for name in study.HEADS:
        head = study.build(name, data)
        steps.start(head)
        steps.train(head, data.hidden[some], data.target[some], progress(f"train {name}"))
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
    """Full softmax in PyTorch, SVD-softmax and rotated codes over the flat layer; each other layer with its engine."""
    for name, layer in layers:
        if isinstance(layer, Layer):
            yield rivals.contestant("torch fp32", layer, 10, threads)
            yield _engine("svd, D/8, V/10", hl.compile(layer, method="svd", rows=-(-layer.vocab // 10), threads=threads))
            yield _engine("codes", hl.compile(layer, method="codes", delta=0.0, eps=0.2, threads=threads))
        else:
            yield _engine(name, hl.compile(layer, threads=threads))


def _engine(name: str, engine: Any) -> Contestant:
    return Contestant(name, lambda hidden: engine.topk(hidden, k=10))


def subjects(folder: Path) -> Iterator[tuple[str, Iterator[tuple[str, Any]], Any]]:
    """Name, layers, and the vectors that they are asked about, each read when its turn comes."""
    data = study.read(Path(os.environ["HEADLONG_DATA"]), study.FOLDERS["hierarchical"][0])
    saved = ((name, load_layer(folder / _file(name))) for name in study.HEADS)
    yield "ptb-lstm", chain([("full", data.layer)], saved), study.spread(data.test_hidden, QUERIES).astype(np.float32)
    for name in ("smollm2", "characters"):
        one = real_layers.load(name)
        yield name, iter([("full", one.layer)]), one.valid[:QUERIES].astype(np.float32)
    yield "synthetic", synthetic(), np.random.default_rng(1).standard_normal((QUERIES, DIM)).astype(np.float32)


def main(what: str, folder: str, file: str = "", *names: str) -> None:
    """``prepare FOLDER`` trains the heads, ``time FOLDER FILE`` times all layers, or those named; the file keeps the others."""
    if what == "prepare":
        prepare(Path(folder))
        return
    threads, schedule = processors(), Schedule(rounds=9, settle=1, calls=5, seconds=20.0)
    runs = {run["layer"]: run for run in read_run(file)["runs"]} if Path(file).is_file() else {}
    with pinned(threads):
        for name, layers, hidden in subjects(Path(folder)):
            if names and name not in names:
                continue
            found = contest(list(contestants(layers, threads)), hidden, 1, schedule)
            milliseconds = {one.contestant: [round(1000 * part, 5) for part in quantiles(one.seconds, n=4)] for one in found}
            runs[name] = {"layer": name, "milliseconds": milliseconds, "environment": environment(threads)}
            command = f"python -m studies reproduce vlasova-softmax:times time FOLDER results/studies/{Path(file).name}"
            write_run(file, {"command": command, "runs": list(runs.values())})
