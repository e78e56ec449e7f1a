"""What a training step costs, beside plain PyTorch::

    python -m studies reproduce training:costs studies/results/training-costs.json

Memory: the rise of the resident set over one step of a softmax layer (V = 33,278, N = 2,240), each path in a process of
its own. Time: the same paths in turn in one process. Throughput: training steps of this package's loop and of the plain
twins in ``plain.py``, in turn in one process, same models, same batches, in float32 and under autocast.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from headlong.bench.measure import environment
from headlong.heads import DenseHead
from headlong.store import replacing
from studies.data import Loaded
from studies.data.text import Corpus, Vocabulary
from studies.data.translation import RESERVED, Pairs, Split
from studies.models.backbones.base import State
from studies.models.backbones.plain import like, plain_step
from studies.models.jobs import build_job
from studies.models.optimisers import build_optimiser
from studies.models.recipe import from_dict
from studies.models.train import Run

VOCAB, ROWS, DIM = 33_278, 2_240, 200
PATHS = ("naive", "whole", "chunked")
Step = Callable[[], float]


def layer_step(path: str, vocab: int = VOCAB, rows: int = ROWS, dim: int = DIM) -> Step:
    """Forward and backward of one path: ``naive`` holds [N, V] logits; the dense head ``whole`` or ``chunked``."""
    torch.manual_seed(0)
    head = DenseHead(dim, vocab, chunk=0 if path == "whole" else None)
    hidden, target = torch.randn(rows, dim, requires_grad=True), torch.randint(vocab, (rows,))

    def step() -> float:
        head.zero_grad()
        hidden.grad = None
        if path == "naive":
            loss = functional.cross_entropy(functional.linear(hidden, head.weight, head.bias), target)
        else:
            loss = head(hidden, target).loss
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return float(loss.detach())

    return step


def memory_rise(make: Callable[..., Step], name: str, **shape: int) -> int:
    """Bytes by which the resident set of this process grows over one step; to be called once in a fresh process."""
    make(name, vocab=64, rows=32, dim=8)()  # loads the kernels
    step = make(name, **shape)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    step()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def fresh_memory_rise(make: Callable[..., Step], name: str, **shape: int) -> int:
    """``memory_rise`` in a process of its own."""
    code = f"from {make.__module__} import {make.__name__} as make; from {__name__} import memory_rise; "
    code += f"print(memory_rise(make, {name!r}, **{shape!r}))"
    return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def in_turn(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Seconds of each step, one of each in every round, after one untimed round."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def ratio(seconds: dict[str, list[float]], name: str, base: str) -> float:
    """The median over the rounds of ``name``'s time over ``base``'s in the same round: what slows a round slows both."""
    return statistics.median(one / other for one, other in zip(seconds[name], seconds[base], strict=True))


MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "lstm": ({"kind": "lstm", "dim": 200}, {"optimiser": "sgd", "rate": 1.0, "batch": 20, "window": 35}),
    "gpt": ({"kind": "gpt", "dim": 256, "blocks": 2, "heads": 8}, {"rate": 1e-4, "batch": 12, "window": 64}),
    "seq2seq": ({"kind": "seq2seq", "dim": 256}, {"rate": 1e-4, "batch": 64}),
}
VOCAB_OF_MODELS = 10_000


def random_data(kind: str, vocab: int = VOCAB_OF_MODELS) -> Loaded:
    """Text, or sentence pairs of 8 to 16 words, of no meaning."""
    random = np.random.default_rng(0)
    words = Vocabulary([*RESERVED, *map(str, range(vocab - len(RESERVED)))])
    if kind != "seq2seq":
        ids = random.integers(0, vocab, 400_000, np.int32)
        return Loaded("random", "text", Corpus(words, ids, ids[:2000], ids[:2000]), "none")
    sides = [[random.integers(3, vocab, length).astype(np.int32) for length in random.integers(8, 17, 4000)] for _ in "st"]
    split = Split(sides[0], sides[1], ["" for _ in sides[0]])
    return Loaded("random", "pairs", Pairs(words, words, split, split, split), "none")


def model_steps(kind: str, bf16: bool, folder: Path) -> dict[str, Step]:
    """One training step of this package's loop, and of the plain model's, on the same batches; dropout in both."""
    model, training = MODELS[kind]
    fields = training | {"schedule": "constant", "clip": 0.25, "bf16": bf16}
    recipe = from_dict({"data": "random", "model": model, "training": fields}, "costs")
    run = Run(build_job(recipe, data=random_data(kind)), folder)
    ours, feed = run.job.model.train(), run.job.train
    twin = like(ours).train()
    optimiser = build_optimiser(twin.parameters(), run.training)
    at, state = 0, State()

    def headlong() -> float:
        nonlocal at
        at += 1
        run.progress.step = at
        return run.step_once(ours, feed.batch(0, at), run.training.rate)

    def plain() -> float:
        nonlocal state
        with torch.autocast("cpu", torch.bfloat16) if bf16 else contextlib.nullcontext():
            loss, state = plain_step(twin, optimiser, feed.batch(0, at), state, run.training.clip)
        return loss

    return {"headlong": headlong, "plain": plain}


def timed(kind: str, bf16: bool, rounds: int) -> dict[str, Any]:
    """Raw seconds of both, and how many times the plain model's speed ours trains at."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = in_turn(model_steps(kind, bf16, Path(folder)), rounds)
    model, training = MODELS[kind]
    return {"model": model, "training": training, "step_seconds": seconds, "speed": ratio(seconds, "plain", "headlong")}


def measure(rounds: int = 9) -> dict[str, Any]:
    """The record: raw seconds and bytes, and the ratios that are claimed of them."""
    rises = {path: fresh_memory_rise(layer_step, path) for path in PATHS}
    seconds = in_turn({path: layer_step(path) for path in PATHS}, rounds)
    types = {"float32": False, "bfloat16": True}
    models = {f"{kind}-{name}": timed(kind, bf16, 3 * rounds) for kind in MODELS for name, bf16 in types.items()}
    return {
        "format": "headlong-costs",
        "version": 1,
        "command": "python -m studies reproduce training:costs studies/results/training-costs.json",
        "shape": {"vocab": VOCAB, "rows": ROWS, "dim": DIM, "dtype": "float32"},
        "environment": environment(torch.get_num_threads()),
        "memory_rise": rises,
        "memory_ratio": rises["chunked"] / rises["naive"],
        "seconds": seconds,
        "time_ratio": {path: ratio(seconds, path, "naive") for path in PATHS},
        "models": models,
    }


def main(path: str) -> None:
    with replacing(path) as file:
        file.write(json.dumps(measure(), indent=1).encode() + b"\n")
