"""One step of next-token sampling, and queries under a mask: ours beside plain PyTorch, interleaved.

    python tools/sampling_step.py LAYER --hidden HIDDEN --calibration HIDDEN --out results/sampling-step.jsonl
    python tools/sampling_step.py 262144,640,1 --out results/sampling-step.jsonl

A step is top-p 0.95 at temperature 0.8. PyTorch: bfloat16 ``linear``, softmax, sort, cumulative sum, ``multinomial``. Masks
allow or exclude 10, 1,000 and vocab - 10 ids. One JSON line a layer: medians in seconds, nucleus sizes, answers checked.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headlong as hl
from headlong import inputs, measure, synthetic

TOP_P, TEMPERATURE, QUERIES, K = 0.95, 0.8, 48, 10


def torch_step(layer: hl.Layer) -> Callable[[Any], Any]:
    weight = torch.from_numpy(np.asarray(layer.weight, np.float32)).to(torch.bfloat16)
    bias = None if layer.bias is None else torch.from_numpy(np.array(layer.bias, np.float32)).to(torch.bfloat16)

    @torch.inference_mode()
    def step(hidden: Any) -> Any:
        probabilities = (torch.nn.functional.linear(hidden, weight, bias).float() / TEMPERATURE).softmax(-1)
        ranked, order = probabilities.sort(-1, descending=True)
        ranked[ranked.cumsum(-1) - ranked > TOP_P] = 0
        return order.gather(-1, ranked.multinomial(1))

    return step


def nucleus_sizes(layer: hl.Layer, hidden: np.ndarray) -> list[int]:
    sizes = []
    for row in hidden:
        z = np.asarray(layer.weight, np.float32) @ row.astype(np.float32)
        z = np.sort((z if layer.bias is None else z + layer.bias) / TEMPERATURE)[::-1].astype(np.float64)
        p = np.exp(z - z[0])
        sizes.append(int(np.searchsorted(np.cumsum(p) / p.sum(), TOP_P)) + 1)
    return sizes


def race(calls: dict[str, Callable[[int], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name, call in calls.items():
            time.sleep(0.02)
            call(turn % QUERIES)
            for index in range(3):
                start = time.perf_counter()
                call((3 * turn + index) % QUERIES)
                seconds[name].append(time.perf_counter() - start)
    return {name: float(np.median(values)) for name, values in seconds.items()}


def masks(vocab: int) -> dict[str, dict[str, Any]]:
    ids = np.random.default_rng(0).permutation(vocab)
    return {
        f"{kind} {count if count < vocab - 10 else 'all but 10'}": {kind: np.sort(ids[:count])}
        for kind in ("allowed", "exclude")
        for count in (10, 1000, vocab - 10)
    }


def study(layer: hl.Layer, hidden: np.ndarray, calibration: np.ndarray, threads: int, rounds: int) -> dict[str, Any]:
    engine = hl.compile(layer, "cascade", calibration=calibration, eps=0.05, threads=threads)
    rows = [hidden[i : i + 1] for i in range(QUERIES)]
    narrow = [torch.from_numpy(row.astype(np.float32)).to(torch.bfloat16) for row in rows]
    step = torch_step(layer)
    asked = {"top_p": TOP_P, "temperature": TEMPERATURE}
    times = race(
        {"torch bf16": lambda i: step(narrow[i]), "headlong": lambda i: engine.sample(rows[i], **asked)}, rounds
    )  # fmt: skip
    ids = hl.compile(layer, "cascade", calibration=calibration, eps=np.inf, threads=threads)
    masked = masks(layer.vocab)
    calls: dict[str, Callable[[int], Any]] = {"no mask": lambda i: ids.topk(rows[i], K)}
    for name, mask in masked.items():
        calls[name] = lambda i, mask=mask: ids.topk(rows[i], min(K, 10), **mask)
    costs = [engine.sample(row, **asked).cost for row in rows[:16]]
    return {
        "step": times,
        "speed-up": times["torch bf16"] / times["headlong"],
        "nucleus": {name: float(np.percentile(nucleus_sizes(layer, hidden[:QUERIES]), at)) for name, at in
                    (("p10", 10), ("median", 50), ("p90", 90), ("largest", 100))},
        "dense": float(np.mean([cost.dense[0] for cost in costs])),
        "masks": race(calls, max(4, rounds // 2)),
        "engine": repr(engine),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layer")
    parser.add_argument("--hidden")
    parser.add_argument("--calibration")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.hidden is None:
        layer, hidden, calibration = synthetic.synthetic(*synthetic.shape(asked.layer), QUERIES, 0, lambda done, total: None)
    else:
        layer, hidden, calibration = inputs.layer(asked.layer), inputs.hidden(asked.hidden), inputs.hidden(asked.calibration)
        hidden = np.asarray(hidden[:: len(hidden) // QUERIES][:QUERIES])
    with measure.pinned(asked.threads):
        found = study(layer, hidden, np.asarray(calibration), asked.threads, asked.rounds)
    line = {"layer": Path(asked.layer).name, "vocab": layer.vocab, "dim": layer.dim, **found}
    with asked.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps({**line, "environment": measure.environment(asked.threads)}) + "\n")
    sys.stdout.write(json.dumps(line, indent=1) + "\n")


if __name__ == "__main__":
    main()
