"""What a training step of an expressive head costs beside the dense head's, and what reading its finished layer costs::

    python -m headlong.models.head_costs steps results/head-steps.json
    python -m headlong.models.head_costs memory results/head-memory.json
    python -m headlong.models.head_costs reading DATA/heads/wikitext2-gpt512 results/link-reading.json
    python -m headlong.models.head_costs exact DATA/heads/wikitext2-gpt512 results/link-exact.json

Steps: V = 33,278, N = 2,240, D = 200, float32, forward and backward, in turn in one process; "eager" is the same head
without its native kernels. Memory: the rise of the resident set over one step, each in a process of its own.
Reading: the trained layer with a link, by the cascade, ids alone and at the default promise, beside the linear layer in the
same round; every answer is held against float64.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headlong.heads import build_head
from headlong.layers.matrix import Layer
from headlong.links import Gss, Link, Table
from headlong.measure import environment
from headlong.models.costs import DIM, ROWS, VOCAB, _status, in_turn, ratio
from headlong.store import open_file, replacing

HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("dense", {}),
    "PLIF": ("plif", {}),
    "PLIF, 1e5 knots": ("plif", {"knots": 100_000, "start": "random", "gain": 1.0}),
    "SigSoftmax": ("sigsoftmax", {}),
    "MoS, K = 5": ("mos", {"components": 5}),
    "MoS, K = 15": ("mos", {"components": 15}),
    "MoS, K = 5, PLIF": ("mos", {"components": 5, "curve": "plif"}),
}
TIMED = ("dense", "PLIF", "PLIF, 1e5 knots", "SigSoftmax", "MoS, K = 5")
Step = Callable[[], float]


def head_step(name: str, vocab: int = VOCAB, rows: int = ROWS, dim: int = DIM, eager: bool = False) -> Step:
    """Forward and backward of one head; ``eager`` takes PyTorch's own operations in place of the native kernels."""
    torch.manual_seed(0)
    kind, options = HEADS[name]
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
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return float(loss.detach())

    return step


def memory_rise(name: str) -> int:
    """Bytes by which the resident set of this process grows over a step; to be called once in a fresh process."""
    head_step(name, 64, 32, 8)()  # loads the kernels
    step = head_step(name)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    step()
    return _status("VmHWM") - before


def fresh_memory_rise(name: str) -> int:
    """``memory_rise`` in a process of its own."""
    code = f"from headlong.models.head_costs import memory_rise; print(memory_rise({name!r}))"
    return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


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
    rises = {name: fresh_memory_rise(name) for name in HEADS}
    return {"shape": SHAPE, "memory_rise": rises, "memory_ratio": {name: rise / rises["dense"] for name, rise in rises.items()}}


def links() -> dict[str, Link]:
    """The linear layer, SigSoftmax, and a PLIF of 256 knots whose slopes lie between 0.6 and 1.6."""
    from headlong.links import IDENTITY

    slopes = np.exp(np.random.default_rng(7).uniform(np.log(0.6), np.log(1.6), 256))
    values = np.concatenate([[0.0], np.cumsum(slopes) * 40 / 256])
    plif = Table(-20.0, 40 / 256, values, float(slopes[0]), float(slopes[-1]))
    return {"linear": IDENTITY, "SigSoftmax": Gss(), "PLIF": plif}


def reading(prefix: str, queries: int = 64, rounds: int = 9, threads: int = 2) -> dict[str, Any]:
    """Time per query of each link at batch 1, and how every hidden vector's answer compares with float64."""
    import headlong as hl

    plain = Layer.load(f"{prefix}.safetensors", weight="weight")
    file = open_file(f"{prefix}.hidden.safetensors")
    hidden, calibration = file.read("valid_hidden").astype(np.float32), file.read("train_hidden").astype(np.float32)
    engines = {
        f"{name}, {kind}": hl.compile(
            Layer(plain.weight, plain.bias, link), "cascade", threads=threads, calibration=vectors
        )
        for name, link in links().items()
        for kind, vectors in (("int8", None), ("calibrated", calibration))
    }  # fmt: skip
    chosen = hidden[:: max(1, len(hidden) // queries)][:queries]

    def timed(engine: Any, eps: float | None) -> Step:
        def call() -> float:
            for row in chosen:
                engine.topk(row[None], 10, eps=eps)
            return 0.0

        return call

    asked = {"ids": np.inf, "default": None}
    calls = {f"{name}, {what}": timed(engine, eps) for name, engine in engines.items() for what, eps in asked.items()}
    seconds = in_turn(calls, rounds)
    return {
        "queries": len(chosen),
        "seconds": seconds,
        "speed_of_linear": {name: ratio(seconds, f"linear, {name.split(', ', 1)[1]}", name) for name in seconds},
        "microseconds": {name: 1e6 * statistics.median(times) / len(chosen) for name, times in seconds.items()},
    }


def exactness(prefix: str, rows: int = 5120, threads: int = 2) -> dict[str, Any]:
    """Top 10 of every hidden vector against float64: ids, proofs, and the normaliser within its stated error."""
    import headlong as hl

    plain = Layer.load(f"{prefix}.safetensors", weight="weight")
    hidden = open_file(f"{prefix}.hidden.safetensors").read("valid_hidden").astype(np.float64)[:rows]
    weight, bias = plain.weight.astype(np.float64), 0.0 if plain.bias is None else plain.bias.astype(np.float64)
    layers = {name: Layer(plain.weight, plain.bias, link) for name, link in links().items()}
    engines = {name: hl.compile(layer, "cascade", threads=threads) for name, layer in layers.items()}
    counts: dict[str, dict[str, Any]] = {
        name: {"queries": 0, "same_ids": 0, "proved": 0, "lse_within": 0, "worst_lse": 0.0} for name in engines
    }
    for start in range(0, len(hidden), 64):
        part = hidden[start : start + 64]
        z = part @ weight.T + bias
        best = np.argsort(-z, axis=1, kind="stable")[:, :10]
        for name, engine in engines.items():
            f = layers[name].link(z)
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


WHAT: dict[str, Callable[..., dict[str, Any]]] = {"steps": steps, "memory": memory, "reading": reading, "exact": exactness}


def main() -> None:
    what, *given, path = sys.argv[1:]
    command = f"python -m headlong.models.head_costs {' '.join([what, *given])} results/{Path(path).name}"
    about = {"format": f"headlong-head-{what}", "version": 1, "command": re.sub(r"\S*/heads/", "DATA/heads/", command)}
    record = about | {"environment": environment(torch.get_num_threads())} | WHAT[what](*given)
    with replacing(path) as file:
        file.write(json.dumps(record, indent=1).encode() + b"\n")
    sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
