"""What a training step of an expressive head costs beside the dense head's,::

    python -m studies reproduce training:heads steps studies/results/head-steps.json
    python -m studies reproduce training:heads memory studies/results/head-memory.json

Steps: V = 33,278, N = 2,240, D = 200, float32, forward and backward, in turn in one process; "eager" is the same head
without its native kernels. Memory: the rise of the resident set over one step, each in a process of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from headlong.bench.measure import environment
from headlong.heads import build_head
from headlong.store import replacing

VOCAB, ROWS, DIM = 33_278, 2_240, 200
Step = Callable[[], float]


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


TIMED_HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("dense", {}),
    "PLIF": ("plif", {}),
    "PLIF, 1e5 knots": ("plif", {"knots": 100_000, "start": "random", "gain": 1.0}),
    "SigSoftmax": ("sigsoftmax", {}),
    "GSS(-1.5, 2.5)": ("gss", {"centre": -1.5, "power": 2.5}),
    "temperature": ("temperature", {}),
    "monotone network": ("monotone", {}),
    "MoC, K = 3": ("moc", {"components": 3}),
    "MoS, K = 3": ("mos", {"components": 3}),
    "MoS, K = 5": ("mos", {"components": 5}),
    "MoS, K = 15": ("mos", {"components": 15}),
    "MoS, K = 5, PLIF": ("mos", {"components": 5, "curve": "plif"}),
}
TIMED = ("dense", "PLIF", "PLIF, 1e5 knots", "SigSoftmax", "MoS, K = 5")


def head_step(name: str, vocab: int = VOCAB, rows: int = ROWS, dim: int = DIM, eager: bool = False) -> Step:
    """Forward and backward of one head; ``eager`` takes PyTorch's own operations in place of the native kernels."""
    torch.manual_seed(0)
    kind, options = TIMED_HEADS[name]
    head = build_head(kind, dim, vocab, **options)
    hidden, target = torch.randn(rows, dim, requires_grad=True), torch.randint(vocab, (rows,))

    def step() -> float:
        head.zero_grad()
        hidden.grad = None
        level = os.environ.get("HEADLONG_ISA")
        if eager:
            os.environ["HEADLONG_ISA"] = "numpy"
        loss = head(hidden, target).loss
        if eager:
            os.environ.pop("HEADLONG_ISA") if level is None else os.environ.update(HEADLONG_ISA=level)
        loss.backward()
        return float(loss.detach())

    return step


SHAPE = {"vocab": VOCAB, "rows": ROWS, "dim": DIM, "dtype": "float32"}


def steps(rounds: int = 3) -> dict[str, Any]:
    """Raw seconds, and the ratios to the dense head's."""
    taken = {name: head_step(name) for name in TIMED}
    taken |= {f"{name}, eager": head_step(name, eager=True) for name in ("PLIF", "SigSoftmax")}
    seconds = in_turn(taken, rounds)
    ratios = {name: ratio(seconds, name, "dense") for name in seconds}
    return {"shape": SHAPE, "seconds": seconds, "time_ratio": ratios}


def memory() -> dict[str, Any]:
    """Raw bytes, and the ratios to the dense head's."""
    rises = {name: fresh_memory_rise(head_step, name) for name in TIMED_HEADS}
    return {"shape": SHAPE, "memory_rise": rises, "memory_ratio": {name: rise / rises["dense"] for name, rise in rises.items()}}


WHAT: dict[str, Callable[[], dict[str, Any]]] = {"steps": steps, "memory": memory}


def main(what: str, path: str) -> None:
    command = f"python -m studies reproduce training:heads {what} studies/results/{Path(path).name}"
    about = {"format": f"headlong-head-{what}", "version": 1, "command": command}
    record = about | {"environment": environment(torch.get_num_threads())} | WHAT[what]()
    with replacing(path) as file:
        file.write(json.dumps(record, indent=1).encode() + b"\n")
    sys.stdout.write(f"wrote {path}\n")
