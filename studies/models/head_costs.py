"""What a training step of an expressive head costs beside the dense head's::

    python -m studies reproduce training:heads steps results/studies/head-steps.json
    python -m studies reproduce training:heads memory results/studies/head-memory.json

V = 33,278, N = 2,240, D = 200, float32, forward and backward. Steps: in turn in one process. Memory: the rise of the resident
set over one step, each in a process of its own.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from headlong.heads import build_head
from studies.papers.scripts import keep

SHAPE = {"vocab": 33_278, "rows": 2_240, "dim": 200}
ROUNDS = 3
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("dense", {}),
    "PLIF": ("plif", {}),
    "PLIF, 1e5 knots": ("plif", {"knots": 100_000, "start": "random", "gain": 1.0}),
    "SigSoftmax": ("sigsoftmax", {}),
    "monotone network, K = 16": ("monotone", {}),
    "monotone network, K = 1,000": ("monotone", {"units": 1000}),
    "MoS, K = 5": ("mos", {"components": 5}),
    "MoS, K = 15": ("mos", {"components": 15}),
}
Step = Callable[[], float]


def head_step(name: str, vocab: int, rows: int, dim: int) -> Step:
    """Forward and backward of one head."""
    torch.manual_seed(0)
    kind, options = HEADS[name]
    head = build_head(kind, dim, vocab, **options)
    hidden, target = torch.randn(rows, dim, requires_grad=True), torch.randint(vocab, (rows,))

    def step() -> float:
        head.zero_grad()
        hidden.grad = None
        loss = head(hidden, target).loss
        loss.backward()
        return float(loss.detach())

    return step


def memory_rise(name: str, shape: dict[str, int]) -> int:
    """Bytes by which the resident set of this process grows over one step; to be called once in a fresh process."""
    head_step(name, vocab=64, rows=32, dim=8)()  # loads the kernels
    step = head_step(name, **shape)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    step()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def fresh_memory_rise(name: str, shape: dict[str, int]) -> int:
    """``memory_rise`` in a process of its own."""
    code = f"from {__name__} import memory_rise; print(memory_rise({name!r}, {shape!r}))"
    return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def steps() -> dict[str, Any]:
    """Raw seconds after one untimed round; the median over the rounds of each head's time over the dense head's in the same."""
    taken = {name: head_step(name, **SHAPE) for name in HEADS}
    seconds: dict[str, list[float]] = {name: [] for name in taken}
    for turn in range(ROUNDS + 1):
        for name, step in taken.items():
            started = time.perf_counter()
            step()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    ratios = {
        name: statistics.median(one / other for one, other in zip(mine, seconds["dense"], strict=True))
        for name, mine in seconds.items()
    }
    return {"seconds": seconds, "time_ratio": ratios}


def memory() -> dict[str, Any]:
    """Raw bytes, and the ratios to the dense head's."""
    rises = {name: fresh_memory_rise(name, SHAPE) for name in HEADS}
    return {"memory_rise": rises, "memory_ratio": {name: rise / rises["dense"] for name, rise in rises.items()}}


WHAT: dict[str, Callable[[], dict[str, Any]]] = {"steps": steps, "memory": memory}


def main(what: str, path: str) -> None:
    keep(path, f"training:heads {what}", {"shape": SHAPE, **WHAT[what]()}, torch.get_num_threads())
    sys.stdout.write(f"wrote {path}\n")
