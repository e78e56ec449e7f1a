"""What a promise costs beside another, one query a call in cold caches: all of them in turns, in one run.

    python benchmarks/promise_times.py LAYER HIDDEN results/promise-times.json

    over = the promise's median time / the median time of what it is compared with

Vectors that calibrate come first (``train_hidden``), those asked are others (``valid_hidden``). Between two calls 96 MB or more
of other weights are multiplied in PyTorch. ``bar`` is what the ratio was meant to stay below, ``kept`` whether it did.
``compile_s`` is processor time.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import headlong as hl
from headlong.arrays import evenly
from headlong.bench import cold, measure
from headlong.cli import inputs
from headlong.costs.machine_load import Neighbours, load_average
from headlong.engines.base import Engine
from headlong.report.summaries import percentile

K, QUERIES, CALIBRATION = 10, 128, 8192
TAUGHT = ("query", "calibration")
LOOK, BLOCKS = "ids proved, by a look at all classes", "ids proved, by blocks"


class Asked(NamedTuple):
    """Options of compile, what the time is compared with, and the largest ratio that was meant."""

    options: dict[str, Any]
    beside: str = LOOK
    bar: float | None = None


PROMISES = {
    LOOK: Asked({"eps": math.inf, "blocks": False}),
    BLOCKS: Asked({"eps": math.inf, "blocks": True}),
    "ids but for 0.01": Asked({"eps": math.inf, "delta_ids": 0.01, "over": TAUGHT}, BLOCKS, 0.6),
    "within 0.01 but for 0.001, over calibration": Asked({"eps": 0.01, "delta": 0.001, "over": TAUGHT}, LOOK, 1.3),
    "within 0.01 but for 0.001, over the query": Asked({"eps": 0.01, "delta": 0.001}, LOOK, 1.8),
    "within 0.05 but for 0.01, over calibration": Asked({"eps": 0.05, "delta": 0.01, "over": TAUGHT}, BLOCKS, 1.5),
}


def compiled(layer: hl.Layer, calibration: Any, options: dict[str, Any], threads: int) -> tuple[Engine, float]:
    """The engine, and how many seconds of processor time it took to make."""
    start = time.process_time()
    engine = hl.compile(layer, "cascade", calibration=calibration, threads=threads, **options)
    assert isinstance(engine, Engine)
    return engine, time.process_time() - start


def asking(engine: Engine) -> Callable[[Any], Any]:
    """The best of one query."""
    return lambda hidden: engine.topk(hidden, K)


def row(name: str, engine: Engine, compile_s: float, queries: Any, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """One promise: its times, what it read, and its time beside another's."""
    asked = PROMISES[name]
    cost = [engine.topk(one[None], K).cost for one in queries]
    median = percentile(seconds[name], 50)
    about: dict[str, Any] = {"promise": name, "median_us": 1e6 * median}
    about |= {f"q{part}_us": 1e6 * percentile(seconds[name], part) for part in (25, 75)}
    about["share_read"] = float(np.mean([one.bytes[0] for one in cost])) / (4.0 * engine.layer.vocab * engine.layer.dim)
    about |= {"rows": float(np.mean([one.rows[0] for one in cost])), "compile_s": compile_s}
    if asked.bar is not None:
        ratio = median / percentile(seconds[asked.beside], 50)
        about |= {"beside": asked.beside, "over": ratio, "bar": asked.bar, "kept": ratio <= asked.bar}
    return about


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layer")
    parser.add_argument("hidden")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--keep", type=Path, help="a folder that keeps the engines: what is there is not compiled again")
    parser.add_argument("--compile", action="store_true", help="compile only")
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    layer, load, neighbours = inputs.layer(asked.layer), load_average(), Neighbours()
    calibration = np.asarray(inputs.hidden(f"{asked.hidden}:train_hidden"))[:CALIBRATION]
    queries = np.asarray(evenly(inputs.hidden(f"{asked.hidden}:valid_hidden"), QUERIES)).astype(np.float32)
    with measure.pinned(asked.threads):
        engines = {
            name: kept(asked.keep, number, layer, calibration, promise.options, asked.threads)
            for number, (name, promise) in enumerate(PROMISES.items())
        }
        if asked.compile:
            return
        field = [measure.Contestant(name, asking(engine)) for name, (engine, _) in engines.items()]
        work = cold.OtherLayers(cold.megabytes())
        seconds = {one.contestant: one.seconds for one in cold.contest(field, queries, 1, asked.rounds, work)}
    made = measure.environment(asked.threads, load=load, others=neighbours.share())
    facts = {"layer": Path(asked.layer).stem, "between two calls": work.made, "rounds": asked.rounds}
    rows = [row(name, *engine, queries, seconds) for name, engine in engines.items()]
    asked.out.write_text(json.dumps({"environment": made, "facts": facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def kept(
    folder: Path | None, number: int, layer: hl.Layer, calibration: Any, options: dict[str, Any], threads: int
) -> tuple[Engine, float]:
    """As :func:`compiled`, from the folder where it was compiled before."""
    if folder is None:
        return compiled(layer, calibration, options, threads)
    saved, took = folder / f"{number}.safetensors", folder / f"{number}.json"
    if not took.is_file():
        engine, seconds = compiled(layer, calibration, options, threads)
        engine.save(saved)
        took.write_text(json.dumps(seconds), encoding="utf-8")
    engine = hl.load(saved, threads=threads)
    assert isinstance(engine, Engine)
    return engine, float(json.loads(took.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
