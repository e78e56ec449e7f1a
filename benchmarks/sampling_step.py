"""One step of next-token sampling, and queries under a mask: ours beside plain PyTorch, interleaved.

    python benchmarks/sampling_step.py LAYER --hidden HIDDEN --calibration HIDDEN --out results
    python benchmarks/sampling_step.py 262144,640,1 --out results

A step is top-p 0.95 at temperature 0.8. PyTorch: bfloat16 ``linear``, softmax, sort, cumulative sum, ``multinomial``. Masks
allow or exclude 10, 1,000 and vocab - 10 ids; their top-10 is compared with that of all logits in float64. Rows of the layer
are added to ``sampling-step.json`` and ``masks.json``, in place of those of a run before.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import headlong as hl
from headlong.bench import measure, synthetic
from headlong.cli import inputs

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
    rows = hidden.astype(np.float32)
    for z in np.concatenate([rows @ layer.weight[i : i + 8192].astype(np.float32).T for i in range(0, layer.vocab, 8192)], 1):
        z = np.sort((z if layer.bias is None else z + layer.bias) / TEMPERATURE)[::-1].astype(np.float64)
        p = np.exp(z - z[0])
        sizes.append(int(np.searchsorted(np.cumsum(p) / p.sum(), TOP_P)) + 1)
    return sizes


def contest(calls: dict[str, Callable[[int], Any]], rounds: int) -> dict[str, float]:
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


def sampling(layer: hl.Layer, rows: list[np.ndarray], calibration: np.ndarray, asked: argparse.Namespace) -> dict[str, Any]:
    engine = hl.compile(layer, "cascade", calibration=calibration, eps=0.05, threads=asked.threads)
    narrow = [torch.from_numpy(row.astype(np.float32)).to(torch.bfloat16) for row in rows]
    step, how = torch_step(layer), {"top_p": TOP_P, "temperature": TEMPERATURE}
    times = contest(
        {"torch bf16": lambda i: step(narrow[i]), "headlong": lambda i: engine.sample(rows[i], **how)}, asked.rounds
    )  # fmt: skip
    costs = [engine.sample(row, **how).cost for row in rows[:16]]
    sizes = nucleus_sizes(layer, np.concatenate(rows))
    return {
        "torch_us": 1e6 * times["torch bf16"],
        "headlong_us": 1e6 * times["headlong"],
        "speed_up": times["torch bf16"] / times["headlong"],
        "nucleus_median": float(np.median(sizes)),
        "nucleus_p90": float(np.percentile(sizes, 90)),
        "nucleus_largest": max(sizes),
        "rows": float(np.mean([cost.rows[0] for cost in costs])),
        "dense": float(np.mean([cost.dense[0] for cost in costs])),
    }


def masked(layer: hl.Layer, rows: list[np.ndarray], calibration: np.ndarray, asked: argparse.Namespace) -> list[dict[str, Any]]:
    engine = hl.compile(layer, "cascade", calibration=calibration, eps=np.inf, threads=asked.threads)
    found: dict[str, dict[str, Any]] = {"no mask": {}, **masks(layer.vocab)}
    calls: dict[str, Callable[[int], Any]] = {
        name: lambda i, mask=mask: engine.topk(rows[i], K, **mask) for name, mask in found.items()
    }
    times = contest(calls, max(4, asked.rounds // 2))
    truths = every_logit(layer, rows[:8])
    return [
        {"mask": name, "median_us": 1e6 * times[name], "over_no_mask": times[name] / times["no mask"],
         "wrong": sum(wrong(z, mask, calls[name](i)) for i, z in enumerate(truths))}
        for name, mask in found.items()
    ]  # fmt: skip


def every_logit(layer: hl.Layer, rows: list[np.ndarray]) -> np.ndarray:
    """``[rows, vocab]`` in float64."""
    hidden = np.concatenate(rows).astype(np.float64)
    parts = [hidden @ layer.weight[i : i + 8192].astype(np.float64).T for i in range(0, layer.vocab, 8192)]
    return np.concatenate(parts, axis=1) + (0 if layer.bias is None else layer.bias)


def wrong(z: np.ndarray, mask: dict[str, Any], top: Any) -> int:
    """1 where the answer is not proved or its logits are not the largest of those allowed."""
    allowed = np.zeros(len(z), bool)
    allowed[mask.get("allowed", slice(None) if "exclude" in mask or not mask else [])] = True
    allowed[mask.get("exclude", [])] = False
    best = np.sort(z[allowed])[::-1][:K]
    return int(not (top.proved.all() and np.allclose(top.logits[0][: len(best)], best, rtol=0, atol=1e-9)))


def add(path: Path, layer: str, rows: list[dict[str, Any]], threads: int) -> None:
    """The file's rows of other layers, then these."""
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    record = {
        "environment": measure.environment(threads),
        "facts": {"queries": QUERIES},
        "rows": [*(row for row in kept if row["layer"] != layer), *rows],
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layer")
    parser.add_argument("--hidden")
    parser.add_argument("--calibration")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--only", choices=("sampling", "masks"), help="measure and write one of the two files")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.hidden is None:
        layer, hidden, calibration = synthetic.synthetic(*synthetic.shape(asked.layer), QUERIES, 0, lambda done, total: None)
    else:
        layer, hidden, calibration = inputs.layer(asked.layer), inputs.hidden(asked.hidden), inputs.hidden(asked.calibration)
        hidden = np.asarray(hidden[:: len(hidden) // QUERIES][:QUERIES])
    name = {"layer": Path(asked.layer).stem, "vocab": layer.vocab, "dim": layer.dim}
    rows, vectors = [hidden[i : i + 1] for i in range(QUERIES)], np.asarray(calibration)
    with measure.pinned(asked.threads):
        if asked.only != "masks":
            steps = [{**name, **sampling(layer, rows, vectors, asked)}]
            add(asked.out / "sampling-step.json", name["layer"], steps, asked.threads)
        if asked.only != "sampling":
            found = [{**name, **row} for row in masked(layer, rows, vectors, asked)]
            add(asked.out / "masks.json", name["layer"], found, asked.threads)


if __name__ == "__main__":
    main()
