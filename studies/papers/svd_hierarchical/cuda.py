"""Time per token on a GPU: the full softmax, SVD-softmax, the cascade and hierarchical heads, top-10 at batch 1.

::

    us     = the faster of both medians below, in microseconds
    plain  = the call as it is        graph = the call as one CUDA graph        bytes, rows = what a query reads

The layers and heads are those of ``times.py`` beside this file, which has the CPU's times; heads are trained for
some steps first; the full softmax is stored in bfloat16. Everyone is timed in turns, by device events, behind a read of more
than the L2 cache.

    python -m studies reproduce vlasova-softmax:cuda              python -m studies reproduce vlasova-softmax:cuda-synthetic
"""

from __future__ import annotations

import functools
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from headlong.bench import run as bench
from headlong.bench.device_contestants import on_host
from headlong.bench.gpu_clock import Place, no_gpu, place
from headlong.bench.measure import Contestant, Schedule
from headlong.bench.rivals.device import TorchLayer
from headlong.compile import compile as compile_layer
from headlong.engines.device.memory import tensor_of
from headlong.layers.matrix import Layer
from headlong.store import open_file
from studies.papers import Context, PaperTable, Row, Setting, register
from studies.papers.svd_hierarchical import hierarchical as study
from studies.papers.svd_hierarchical import times

DEVICE, K = "cuda", 10
FLAT = ("torch bf16", "full", "svd", "cascade")
"""What reads the full softmax; the other rows are layers of their own."""
TREES = ("two levels, frequency", "two levels, clustered", "tree, huffman", "tree, learned")
"""Of the heads, those that a GPU reads: bands and differentiated layers are read on the CPU."""
TRAINED = "ptb-lstm, 10,000 x 200"
SYNTHETIC = f"synthetic, {times.VOCAB:,} x {times.DIM}"
ROWS = {TRAINED: (*FLAT, *TREES), SYNTHETIC: (*FLAT, "two levels, frequency", "tree, huffman")}
SCHEDULE = Schedule(rounds=15, settle=2, calls=5, pause=0.0, seconds=25.0)
GRAPH = ", graph"


class Subject(NamedTuple):
    """Named layers of one size, and queries ``[n, dim]``."""

    layers: list[tuple[str, Any]]
    hidden: Any


def planned(size: str) -> list[Setting]:
    return [(("layer", size), ("head", name)) for name in ROWS[size]]


def run(size: str, context: Context) -> Iterator[Row]:
    """The rows that are not done, all of them timed in turns."""
    todo = [setting for setting in planned(size) if setting not in context.done and context.wants(setting)]
    if todo:
        found = timed(subject(size, context), place(DEVICE), context)
        yield from (Row(setting, found[setting[1][1]]) for setting in todo)


def subject(size: str, context: Context) -> Subject:
    if size == SYNTHETIC:
        hidden = np.random.default_rng(1).standard_normal((times.QUERIES, times.DIM))
        return Subject(list(times.synthetic()), hidden.astype(np.float32))
    rows = open_file(context.data / study.HIDDEN).read("test_hidden")
    with tempfile.TemporaryDirectory() as folder:
        times.prepare(Path(folder), TREES)
        layers = list(times.saved(Path(folder), TREES))
    return Subject(layers, study.spread(rows, times.QUERIES).astype(np.float32))


def timed(asked: Subject, spot: Place, context: Context) -> dict[str, dict[str, float]]:
    """The numbers of every row."""
    field = list(contestants(asked, spot))
    runs = {entry["contestant"]: entry for entry in bench.timed(field, asked.hidden, 1, SCHEDULE, context.stage, spot.clock)}
    found = {}
    for name in (name for name in runs if not name.endswith(GRAPH)):
        plain, graph = (1e6 * statistics.median(runs[form]["seconds"]) for form in (name, name + GRAPH))
        got = {"us": min(plain, graph), "plain": plain, "graph": graph}
        got |= {key: float(runs[name][key]) for key in ("bytes", "rows") if key in runs[name]}
        found[name] = {key: float(f"{value:.5g}") for key, value in got.items()}
    return found


def contestants(asked: Subject, spot: Place) -> Iterator[Contestant]:
    """Every row as it is and as a graph."""

    def prepared(rows: Any) -> Any:
        return tensor_of(rows, spot.torch, spot.device)

    def forms(name: str, engine: Any) -> Iterator[Contestant]:
        def call(hidden: Any) -> Any:
            return engine.topk(hidden, K)

        yield Contestant(name, call, prepared, on_host)
        yield Contestant(name + GRAPH, spot.captured(call), prepared, on_host)

    for name, given in asked.layers:
        if not isinstance(given, Layer):
            yield from forms(name, compile_layer(given, device=spot.name))
            continue
        layer = Layer(given.weight.astype(ml_dtypes.bfloat16), given.bias, given.link)
        plain, about = TorchLayer(layer, prepared(layer.weight)).topk(K), {"bytes": 2 * layer.vocab * layer.dim}
        for form, call in (("", plain), (GRAPH, spot.captured(plain))):
            yield Contestant(FLAT[0] + form, call, lambda rows: prepared(rows).bfloat16(), about=about)
        for method in FLAT[1:]:
            yield from forms(method, compile_layer(layer, method, delta=0.0, eps=0.2, device=spot.name))


for _name, _size, _needs in (("cuda", TRAINED, (study.LAYER, study.HIDDEN)), ("cuda-synthetic", SYNTHETIC, ())):
    register(
        PaperTable(
            paper="vlasova-softmax",
            table=_name,
            claim=f"Time per token on a GPU: full softmax, SVD-softmax, the cascade and hierarchical heads ({_size})",
            source="the study's own figures are not public: nothing could be checked against them",
            needs=_needs,
            run=functools.partial(run, _size),
            planned=functools.partial(planned, _size),
            here=no_gpu,
            facts=lambda: place(DEVICE).facts,
        )
    )
