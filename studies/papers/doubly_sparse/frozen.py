"""Frozen experts against their own distribution in float64, their time beside the full softmax, and screens of one layer.

    python -m studies reproduce liao2019:frozen results WORK exact|time|screens TASK

``WORK`` holds ``TASK-64.safetensors`` from ``doubly_sparse.tables``. A row is added to ``liao2019.frozen.jsonl``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from headlong.bench.measure import Contestant, Schedule, claim_threads, contest, environment, pinned
from headlong.compile import compile as compile_layer
from headlong.engines.few_allowed_classes import lse_of
from headlong.engines.structured.base import StructuredEngine
from headlong.layers.experts import ExpertsLayer
from headlong.layers.structured import load_layer
from headlong.previews.screens import equal_clusters, learned_screen
from studies.papers.doubly_sparse import tasks as study

PIECE, VECTORS = 128, 8192


def dense(layer: ExpertsLayer, hidden: Any) -> Any:
    """The layer's logits by plain float64 products, -inf where a class is absent."""
    x = np.concatenate([hidden, np.ones((len(hidden), 1))], axis=1) if layer.constant else hidden
    scores = x @ layer.gate.astype(np.float64).T
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    g = (p / p.sum(axis=1, keepdims=True)).max(axis=1) if layer.scaled else np.ones(len(x))
    z = np.full((len(x), layer.vocab), -np.inf)
    for row, expert in enumerate(scores.argmax(axis=1)):
        part = layer.part(int(expert))
        z[row, layer.ids[part]] = layer.weight[part].astype(np.float64) @ (g[row] * x[row])
    return z


def exact(layer: ExpertsLayer, hidden: Any) -> dict[str, float]:
    """Top-10, lse and log-probabilities of every vector, by both readers of an expert."""
    found: dict[str, float] = {"vectors": len(hidden)}
    for parts in ("full", "cascade"):
        engine = compile_layer(layer, eps=1e-6, delta=0.0, parts=parts)
        wrong = unproved = 0
        worst = 0.0
        for start in range(0, len(hidden), PIECE):
            some = hidden[start : start + PIECE].astype(np.float64)
            z = dense(layer, some)
            lse = lse_of(z)
            top = engine.topk(some, k=10)
            order = np.argsort(-z, axis=1, kind="stable")[:, :10]
            best = np.where(np.isneginf(np.take_along_axis(z, order, 1)), -1, order)
            wrong += int((best != top.ids).any(axis=1).sum())
            unproved += int((~top.proved).sum())
            scored = engine.log_prob(some, np.maximum(best, 0))
            true = np.take_along_axis(z, np.maximum(best, 0), 1) - lse[:, None]
            there = np.isfinite(true)
            worst = max(worst, float(np.abs(top.lse - lse).max()), float(np.abs(scored.log_probs - true)[there].max()))
        found |= {f"{parts}_wrong_ids": wrong, f"{parts}_unproved": unproved, f"{parts}_worst_error": worst}
    return found


def timed(layer: ExpertsLayer, rows: Any, hidden: Any, threads: int) -> dict[str, float]:
    """Median time of one query's top-10, in microseconds, interleaved; torch's is a linear layer, log_softmax and topk."""
    import torch

    torch.set_num_threads(threads)
    weight, bias = torch.from_numpy(np.array(rows.weight, np.float32)), torch.from_numpy(np.array(rows.bias))

    def full(x: Any) -> Any:
        with torch.inference_mode():
            return torch.nn.functional.linear(x, weight, bias).log_softmax(-1).topk(10)

    half = ExpertsLayer(
        layer.gate, layer.weight.astype(np.float16), layer.ids, layer.starts, layer.vocab, constant=layer.constant
    )
    engines: dict[str, StructuredEngine] = {
        "experts": compile_layer(layer, threads=threads, parts="full"),
        "experts_one_thread": compile_layer(layer, threads=1, parts="full"),
        "experts_float16": compile_layer(half, threads=threads, parts="full"),
        "experts_int8": compile_layer(layer, threads=threads, parts="cascade"),
    }
    svd = compile_layer(rows, "svd", threads=threads, width=16, rows=round(0.1 * rows.vocab))
    contestants = [
        Contestant("torch", full, prepare=torch.from_numpy),
        Contestant("svd-10", svd.topk),
        *(Contestant(name, engine.topk) for name, engine in engines.items()),
    ]
    with pinned(threads):
        runs = contest(contestants, hidden[:: max(1, len(hidden) // 512)], 1, Schedule(rounds=25, calls=8, seconds=60.0))
    return {run.contestant: round(1e6 * float(np.median(run.seconds)), 1) for run in runs} | {"threads": threads}


def screened(data: study.Data) -> dict[str, float]:
    """Recall and classes read of both screens of the layer, on vectors that they were not built from."""
    found: dict[str, float] = {}
    calibration = np.asarray(data.train.sample(50_000), np.float64)
    hidden = data.hidden[:2048].astype(np.float64)
    wanted = compile_layer(data.layer, "full", eps=np.inf).topk(hidden, k=10).ids
    screens = {
        "learned": learned_screen(data.layer, calibration, 100, data.layer.vocab / 30),
        "equal": equal_clusters(data.layer, calibration, recall=0.99),
    }
    for name, screen in screens.items():
        engine = compile_layer(screen)
        top = engine.topk(hidden, k=10)
        same = [len(set(a) & set(b)) / 10 for a, b in zip(wanted.tolist(), top.ids.tolist(), strict=True)]
        assert screen.missed is not None
        found |= {
            f"{name}_top1": round(float((wanted[:, 0] == top.ids[:, 0]).mean()), 4),
            f"{name}_recall10": round(float(np.mean(same)), 4),
            f"{name}_rows": round(float(top.cost.rows.mean() + screen.clusters), 1),
            f"{name}_probes": screen.probes,
            f"{name}_missed": round(screen.missed[1], 4),
        }
    return found


def main(folder: str, work: str, question: str, name: str) -> None:
    if question == "time":
        claim_threads(2)
    data = study.read(Path(os.environ["HEADLONG_DATA"]), study.TASKS[name])
    threads = 2 if question == "time" else 1
    if question == "screens":
        got = screened(data)
    else:
        layer = load_layer(Path(work) / f"{name}-64.safetensors")
        assert isinstance(layer, ExpertsLayer)
        hidden = data.hidden[:VECTORS]
        got = exact(layer, hidden) if question == "exact" else timed(layer, data.layer, hidden, threads)
    line = {"paper": "liao2019", "table": "frozen", "setting": {"task": name, "question": question}, "got": got}
    line |= {"expected": {}, "verdict": dict.fromkeys(got, "no figure"), "environment": environment(threads)}
    with (Path(folder) / "liao2019.frozen.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, allow_nan=False) + "\n")
