"""What reading a finished layer with a link costs beside the same layer without, and whether it is right::

    python -m studies reproduce links:reading time DATA/heads/wikitext2-gpt512 studies/results/link-reading.json
    python -m studies reproduce links:reading exact DATA/heads/wikitext2-gpt512 studies/results/link-exact.json

The trained layer by the cascade, ids alone and at the default promise, in turn with the linear layer; every answer of
5,120 hidden vectors is held against float64.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import headlong as hl
from headlong.bench.measure import environment
from headlong.engines.base import Engine
from headlong.layers.matrix import Layer
from headlong.links import IDENTITY, Gss, Link, Table
from headlong.store import open_file, replacing


def links() -> dict[str, Link]:
    """The linear layer, SigSoftmax, and a PLIF of 256 knots whose slopes lie between 0.6 and 1.6."""
    slopes = np.exp(np.random.default_rng(7).uniform(np.log(0.6), np.log(1.6), 256))
    values = np.concatenate([[0.0], np.cumsum(slopes) * 40 / 256])
    plif = Table(-20.0, 40 / 256, values, float(slopes[0]), float(slopes[-1]))
    return {"linear": IDENTITY, "SigSoftmax": Gss(), "PLIF": plif}


def linked(prefix: str) -> dict[str, Layer]:
    """The trained layer with each link."""
    plain = Layer.load(f"{prefix}.safetensors", weight="weight")
    return {name: Layer(plain.weight, plain.bias, link) for name, link in links().items()}


def compiled(prefix: str, layers: dict[str, Layer], threads: int) -> dict[str, Engine]:
    """Each layer by int8 codes of its rows, and by what calibration vectors make of it."""
    calibration = open_file(f"{prefix}.hidden.safetensors").read("train_hidden").astype(np.float32)
    kinds = {"int8": None, "calibrated": calibration}
    return {
        f"{name}, {kind}": hl.compile(layer, "cascade", threads=threads, calibration=vectors)
        for name, layer in layers.items()
        for kind, vectors in kinds.items()
    }


def reading(prefix: str, queries: int = 64, rounds: int = 9, threads: int = 2) -> dict[str, Any]:
    """Time per query of each link at batch 1, and how every hidden vector's answer compares with float64."""
    hidden, layers = open_file(f"{prefix}.hidden.safetensors").read("valid_hidden").astype(np.float32), linked(prefix)
    engines = compiled(prefix, layers, threads)
    chosen = hidden[:: max(1, len(hidden) // queries)][:queries]

    asked = {"ids": np.inf, "default": None}
    calls = {f"{name}, {what}": (engine, eps) for name, engine in engines.items() for what, eps in asked.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, (engine, eps) in calls.items():
            started = time.perf_counter()
            for row in chosen:
                engine.topk(row[None], 10, eps=eps)
            if turn:
                seconds[name].append(time.perf_counter() - started)
    linear = {name: seconds[f"linear, {name.split(', ', 1)[1]}"] for name in seconds}
    pairs = {name: list(zip(linear[name], seconds[name], strict=True)) for name in seconds}
    return {
        "queries": len(chosen),
        "seconds": seconds,
        "speed_of_linear": {name: statistics.median(base / own for base, own in pair) for name, pair in pairs.items()},
        "microseconds": {name: 1e6 * statistics.median(times) / len(chosen) for name, times in seconds.items()},
    }


def exactness(prefix: str, rows: int = 5120, threads: int = 2) -> dict[str, Any]:
    """Top 10 of ``rows`` hidden vectors against float64: ids, proofs, and the normaliser within its stated error."""
    hidden, layers = open_file(f"{prefix}.hidden.safetensors").read("valid_hidden").astype(np.float64)[:rows], linked(prefix)
    plain, engines = layers["linear"], compiled(prefix, layers, threads)
    weight, bias = plain.weight.astype(np.float64), 0.0 if plain.bias is None else plain.bias.astype(np.float64)
    counts: dict[str, dict[str, Any]] = {
        name: {"queries": 0, "same_ids": 0, "proved": 0, "lse_within": 0, "worst_lse": 0.0} for name in engines
    }
    for start in range(0, len(hidden), 64):
        part = hidden[start : start + 64]
        z = part @ weight.T + bias
        best = np.argsort(-z, axis=1, kind="stable")[:, :10]
        for name, engine in engines.items():
            f = layers[name.split(", ")[0]].link(z)
            most = f.max(1)
            lse = most + np.log(np.exp(f - most[:, None]).sum(1))
            top, count = engine.topk(part, 10), counts[name]
            off = np.abs(top.lse - lse)
            count["queries"] += len(part)
            count["same_ids"] += int((top.ids == best).all(1).sum())
            count["proved"] += int(top.proved.sum())
            count["lse_within"] += int((off <= top.error + 1e-9).sum())
            count["worst_lse"] = max(count["worst_lse"], float(off.max()))
    return {"eps": 0.01, "delta": 1e-3, "k": 10, **counts}


WHAT: dict[str, Callable[[str], dict[str, Any]]] = {"time": reading, "exact": exactness}


def main(what: str, prefix: str, path: str) -> None:
    command = f"python -m studies reproduce links:reading {what} {prefix} studies/results/{Path(path).name}"
    about = {"format": f"headlong-link-{what}", "version": 1, "command": re.sub(r"\S*/heads/", "DATA/heads/", command)}
    record = about | {"environment": environment(2)} | WHAT[what](prefix)
    with replacing(path) as file:
        file.write(json.dumps(record, indent=1).encode() + b"\n")
    sys.stdout.write(f"wrote {path}\n")
