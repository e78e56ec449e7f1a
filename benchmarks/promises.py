"""How often promises that may fail do fail, against float64.

    python benchmarks/promises.py LAYER --calibration HIDDEN --hidden HIDDEN --json results/promise-failures.json

    failure   |lse^ - lse| > eps, or for ids a class of the answer that is not among the k largest logits of float64
    upper     the largest rate that so few failures do not refute at 95 % (Clopper and Pearson 1934)

Over the query's randomness: the default promise, seven seeds on every vector, alone and in batches. Over calibration:
learned widths; those who calibrate and those who are asked are drawn from the same vectors, so that they are
exchangeable. Over the rotation: 2,000 independent ones of every eighth class; failures of one rotation are not independent,
so its rate is also given for rotations with any failure, and for single radii of (class, query) pairs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import headlong as hl
from headlong.bench import measure
from headlong.cli import inputs
from headlong.engines.reference.query import halves_of, products, radii
from headlong.layers.matrix import Layer
from headlong.plan import Plan

SEEDS, ROTATIONS, EIGHTH, K, BLOCK = 7, 2000, 8, 10, 128
TIE = 1e-9


class Exact(NamedTuple):
    """By float64: log-normalisers, and the k-th largest logit."""

    lse: NDArray[np.float64]
    least: NDArray[np.float64]


def exact(layer: Layer, hidden: NDArray[Any]) -> Exact:
    weight = layer.weight.astype(np.float64)
    lse, least = [], []
    for start in range(0, len(hidden), BLOCK):
        z = hidden[start : start + BLOCK].astype(np.float64) @ weight.T
        z = z if layer.bias is None else z + layer.bias
        top = z.max(axis=1)
        lse.append(top + np.log(np.exp(z - top[:, None]).sum(axis=1)))
        least.append(np.partition(z, -K, axis=1)[:, -K])
    return Exact(np.concatenate(lse), np.concatenate(least))


def upper(failures: int, trials: int, level: float = 0.95) -> float:
    """The rate at which so few failures come with probability ``1 - level``, by bisection of the binomial tail."""
    low, high = failures / trials, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        few = sum(
            math.exp(math.lgamma(trials + 1) - math.lgamma(i + 1) - math.lgamma(trials - i + 1)
                     + i * math.log(rate) + (trials - i) * math.log1p(-rate))
            for i in range(failures + 1)
        )  # fmt: skip
        low, high = (rate, high) if few > 1 - level else (low, rate)
    return high


def row(name: str, over: str, promised: float, failures: int, trials: int, **more: Any) -> dict[str, Any]:
    found = {"promise": name, "over": over, "promised": promised, "failures": failures, "trials": trials}
    return {**found, "upper": upper(failures, trials), "kept": upper(failures, trials) <= promised, **more}


def seeds(layer: Layer, calibration: Any, hidden: Any, true: Exact, threads: int, **options: Any) -> list[dict[str, Any]]:
    """Every vector in a call of its own, and all in one: batches are answered another way."""
    calls = {"one a call": 1, "all in a call": len(hidden)}
    failures, wrong, worst = dict.fromkeys(calls, 0), dict.fromkeys(calls, 0), dict.fromkeys(calls, 0.0)
    for seed in range(SEEDS):
        engine = hl.compile(layer, "cascade", calibration=calibration, seed=seed, threads=threads, **options)
        for name, size in calls.items():
            found = [engine.topk(hidden[start : start + size], K) for start in range(0, len(hidden), size)]
            off = np.abs(np.concatenate([some.lse for some in found]) - true.lse)
            failures[name] += int((off > engine.promise.eps).sum())
            worst[name] = max(worst[name], float(off.max()))
            wrong[name] += int((np.concatenate([some.logits[:, -1] for some in found]) < true.least - TIE).sum())
    what = f"log-probabilities within {engine.promise.eps:g}" + (", learned widths" if options else "")
    over, trials = " and ".join(sorted(engine.promise.over)), SEEDS * len(hidden)
    return [
        row(f"{what}, {name}", over, engine.promise.delta, failures[name], trials, worst=worst[name], wrong_ids=wrong[name])
        for name in calls
    ]


def learned(layer: Layer, calibration: Any, hidden: Any, true: Exact, threads: int) -> dict[str, Any]:
    engine = hl.compile(
        layer, "cascade", calibration=calibration, threads=threads, eps=math.inf, delta_ids=0.01
    )
    wrong = int((engine.topk(hidden, K).logits[:, -1] < true.least - TIE).sum())
    return row("top-10 ids, learned widths", "calibration", 0.01, wrong, len(hidden))


def rotations(layer: Layer, hidden: Any, threads: int) -> list[dict[str, Any]]:
    bias = None if layer.bias is None else np.ascontiguousarray(layer.bias[::EIGHTH])
    part = Layer(np.ascontiguousarray(layer.weight[::EIGHTH]), bias)
    true, every = exact(part, hidden), np.arange(part.vocab)
    logits = hidden[0].astype(np.float64) @ part.weight.astype(np.float64).T + (0 if bias is None else bias)
    wrong, turned, outside, missed = 0, 0, 0, 0
    for seed in range(ROTATIONS):
        engine = hl.compile(
            part, "cascade", threads=threads, eps=math.inf, delta_ids=0.01, bits=4, rotation=seed
        )
        failed = int((engine.topk(hidden, K).logits[:, -1] < true.least - TIE).sum())
        wrong, turned = wrong + failed, turned + (failed > 0)
        off = beyond(engine.plan, hidden[0].astype(np.float64), logits, every)
        outside, missed = outside + off, missed + (off > 0)
    return [
        row("top-10 ids, rotations with any failure", "rotation", 0.01, turned, ROTATIONS, failed_queries=wrong),
        row("all radii of one query", "rotation", 0.01, missed, ROTATIONS),
        row("radii, (class, query) pairs", "rotation", 0.01 / part.vocab, outside, ROTATIONS * part.vocab),
    ]


def beyond(plan: Plan, hidden: NDArray[np.float64], logits: NDArray[np.float64], every: NDArray[np.int64]) -> int:
    """How many classes are further from their first estimate than their radius."""
    level, halves = plan.levels[0], halves_of(plan, hidden)
    assert plan.base is not None
    shared = 0.0 if plan.centre is None else float(plan.centre @ hidden)
    estimate = plan.base[: len(every)] + shared + products(level, True, halves.x, every, len(every))
    return int((np.abs(estimate - logits) > radii(level, halves, every)).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layer")
    parser.add_argument("--calibration", required=True)
    parser.add_argument("--hidden", required=True)
    parser.add_argument("--count", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    layer, calibration = inputs.layer(asked.layer), np.asarray(inputs.hidden(asked.calibration))
    vectors = np.random.default_rng(0).permutation(np.asarray(inputs.hidden(asked.hidden)))
    hidden, like_them = vectors[: asked.count], vectors[asked.count :]
    true, rows = exact(layer, hidden), []
    for made in (
        lambda: seeds(layer, calibration, hidden, true, asked.threads),
        lambda: seeds(layer, like_them, hidden, true, asked.threads, over=("query", "calibration")),
        lambda: [learned(layer, like_them, hidden, true, asked.threads)],
        lambda: rotations(layer, hidden[:64], asked.threads),
    ):
        rows += made()
        record = {"environment": measure.environment(asked.threads), "facts": {"vectors": len(hidden)}, "rows": rows}
        asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
