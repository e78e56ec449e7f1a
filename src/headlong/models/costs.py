"""What a training step costs, beside plain PyTorch::

    python -m headlong.models.costs results/training-costs.json

Memory: the rise of the resident set over one step of a softmax layer (V = 33,278, N = 2,240), each path in a process of
its own. Time: the same paths in turn in one process. Throughput: tokens a second of this package's loop and of a loop
written out with ``nn.Embedding``, ``nn.LSTM`` and ``cross_entropy``, in turn in one process, same model, same numbers.
"""

from __future__ import annotations

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
from torch import Tensor, nn
from torch.nn import functional

from headlong.data import Loaded
from headlong.data.text import Corpus, Vocabulary
from headlong.heads import DenseHead
from headlong.measure import environment
from headlong.models.jobs import build_job
from headlong.models.recipe import from_dict
from headlong.models.train import Run
from headlong.store import replacing

VOCAB, ROWS, DIM = 33_278, 2_240, 200
BATCH, WINDOW = 20, 35
TOKENS = BATCH * WINDOW
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


def memory_rise(path: str) -> int:
    """Bytes by which the resident set of this process grows over a step; to be called once in a fresh process."""
    layer_step(path, 64, 32, 8)()  # loads the kernels
    step = layer_step(path)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    step()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def fresh_memory_rise(path: str) -> int:
    """``memory_rise`` in a process of its own."""
    code = f"from headlong.models.costs import memory_rise; print(memory_rise({path!r}))"
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


class Plain(nn.Module):
    """The same language model as ``Lstm`` and ``DenseHead``, written with PyTorch's own parts."""

    def __init__(self, vocab: int, dim: int) -> None:
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(vocab, dim), nn.Dropout(0.2)
        self.lstm, self.out = nn.LSTM(dim, dim, 2, dropout=0.2), nn.Linear(dim, vocab)
        self.out.weight = self.embedding.weight

    def forward(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        hidden, state = self.lstm(self.dropout(self.embedding(ids)), state)
        return self.out(self.dropout(hidden)), state


def language_model_steps(
    folder: Path, vocab: int = 10_000, dim: int = 200, batch: int = 20, window: int = 35
) -> dict[str, Step]:
    """One training step of this package's loop, and of the plain one, on the same random text."""
    torch.manual_seed(0)
    plain = Plain(vocab, dim)
    optimiser = torch.optim.SGD(plain.parameters(), 1.0)
    ids = np.random.default_rng(0).integers(0, vocab, 400 * TOKENS, np.int32)
    corpus = Corpus(Vocabulary(map(str, range(vocab))), ids, ids[:2000], ids[:2000])
    fields = {"optimiser": "sgd", "rate": 1.0, "schedule": "constant", "batch": BATCH, "window": WINDOW}
    recipe = from_dict({"data": "random", "model": {"kind": "lstm", "dim": dim}, "training": fields}, "costs")
    run = Run(build_job(recipe, data=Loaded("random", "text", corpus, "none")), folder)
    feed, model = run.job.train, run.job.model.train()
    at, state = 0, None

    def ours() -> float:
        nonlocal at
        at += 1
        run.progress.step = at
        return run.step_once(model, feed.batch(0, at), 1.0)

    def theirs() -> float:
        nonlocal state
        given = feed.batch(0, at)
        optimiser.zero_grad()
        logits, after = plain(given.inputs[0], state)
        state = tuple(part.detach() for part in after)
        loss = functional.cross_entropy(logits.flatten(0, 1), given.target)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.25)
        optimiser.step()
        return float(loss.detach())

    return {"headlong": ours, "plain": theirs}


def measure(rounds: int = 9) -> dict[str, Any]:
    """The record: raw seconds and bytes, and the ratios that are claimed of them."""
    rises = {path: fresh_memory_rise(path) for path in PATHS}
    seconds = in_turn({path: layer_step(path) for path in PATHS}, rounds)
    with tempfile.TemporaryDirectory() as folder:
        throughput = in_turn(language_model_steps(Path(folder)), 6 * rounds)
    tokens = {name: TOKENS / statistics.median(times) for name, times in throughput.items()}
    return {
        "format": "headlong-costs",
        "version": 1,
        "command": "python -m headlong.models.costs results/training-costs.json",
        "shape": {"vocab": VOCAB, "rows": ROWS, "dim": DIM, "dtype": "float32"},
        "environment": environment(torch.get_num_threads()),
        "memory_rise": rises,
        "memory_ratio": rises["chunked"] / rises["naive"],
        "seconds": seconds,
        "time_ratio": {path: ratio(seconds, path, "naive") for path in PATHS},
        "step_seconds": throughput,
        "tokens_per_second": tokens,
        "throughput_ratio": ratio(throughput, "plain", "headlong"),
    }


if __name__ == "__main__":
    record = json.dumps(measure(), indent=1)
    if len(sys.argv) > 1:
        with replacing(sys.argv[1]) as file:
            file.write(record.encode() + b"\n")
    sys.stdout.write(record + "\n")
