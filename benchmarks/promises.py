"""How often promises that may fail do fail, on vectors that chose nothing, against float64.

    python benchmarks/promises.py NAME LAYER HIDDEN... --json results/promise-failures.json [--rotations] [--drift KIND=HIDDEN]
    python benchmarks/promises.py --made --json results/promise-failures.json

    failure     |lse^ - lse| > eps, or any of the ids that is not among the k largest logits of float64
    low, high   95 % limits of the rate behind the failures (Clopper and Pearson 1934)

The vectors of all HIDDEN are shuffled; 6,000 calibrate and 10,000 others (``--count``) are asked, so that both are alike.
Drift is what follows when they are not: the same engines, asked with vectors of a scale of 1.5 (a sharper model), with rows
of the layer, with vectors that have no direction in common with any, and with those of ``--drift``: ``headlong harvest
--data`` makes them of another text or another model. A file is filled layer by layer. No clock: counts only.
``--rotations``: 2,000 random rotations of every eighth class, too; failures of one rotation are not independent, so its rate
is given for rotations with any failure, and for single radii of (class, query) pairs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from blocks import recommender, recurrent
from numpy.typing import NDArray

import headlong as hl
from headlong.bench import measure
from headlong.cli import inputs
from headlong.engines.base import Engine
from headlong.engines.promise_failures import tally
from headlong.engines.reference.query import halves_of, products, radii
from headlong.layers.matrix import Layer
from headlong.plan import Plan

SEEDS, ROTATIONS, EIGHTH, K, BLOCK = 6, 2000, 8, 10, 128
CALIBRATION, COUNT, COSTED = 6000, 10_000, 300
TIE = 1e-9
TAUGHT = ("query", "calibration")
PROMISES: dict[str, dict[str, Any]] = {
    "top-10 ids proved, by a look at all classes": {"eps": math.inf, "blocks": False},
    "within 0.01 but for 0.001": {"eps": 0.01, "delta": 0.001, "over": TAUGHT},
    "top-10 ids but for 0.01": {"eps": math.inf, "delta_ids": 0.01, "over": TAUGHT},
    "top-10 ids but for 0.05": {"eps": math.inf, "delta_ids": 0.05, "over": TAUGHT},
    "within 0.05 but for 0.01": {"eps": 0.05, "delta": 0.01, "over": TAUGHT},
    "within 0.01 but for 0.001, over the query": {"eps": 0.01, "delta": 0.001},
    "within 0.05 but for 0.05, over the query": {"eps": 0.05, "delta": 0.05},
}
DRIFTED = ("top-10 ids but for 0.01", "within 0.01 but for 0.001")


class Exact(NamedTuple):
    """By float64: log-normalisers, and the k-th largest logit."""

    lse: NDArray[np.float64]
    least: NDArray[np.float64]


def exact(layer: Layer, hidden: NDArray[Any], k: int) -> Exact:
    weight = layer.weight.astype(np.float64)
    lse, least = [], []
    for start in range(0, len(hidden), BLOCK):
        z = hidden[start : start + BLOCK].astype(np.float64) @ weight.T
        z = z if layer.bias is None else z + layer.bias
        top = z.max(axis=1)
        lse.append(top + np.log(np.exp(z - top[:, None]).sum(axis=1)))
        least.append(np.partition(z, -k, axis=1)[:, -k])
    return Exact(np.concatenate(lse), np.concatenate(least))


def row(layer: str, promise: str, over: str, promised: float, failures: int, trials: int, **more: Any) -> dict[str, Any]:
    found = tally("", promised, failures, trials)
    counts = {"promised": promised, "failures": failures, "trials": trials, "low": found.low, "high": found.high}
    return {"layer": layer, "promise": promise, "over": over, **counts, "kept": found.holds, **more}


def counted(name: str, promise: str, engine: Engine, hidden: Any, true: Exact) -> dict[str, Any]:
    """Ids one a call; a normaliser one a call (``alone``: how many of these failed) and, with other seeds, 64 a call, which is
    answered another way; with every other seed from a call for ids, which draws other rows (``ways``: failures and trials)."""
    over, eps = " and ".join(sorted(engine.promise.over)), engine.promise.eps
    read = float(np.mean([engine.topk(one[None], K).cost.bytes[0] for one in hidden[:COSTED]]))
    draws = engine.plan.draws
    spent = {} if draws is None else {"spends": {"alone": draws.spend, "beside ids": draws.spent_on(K)}}
    about: dict[str, Any] = spent | {"share_read": read / (4.0 * engine.layer.vocab * engine.layer.dim)}
    if math.isinf(eps):
        found = np.array([engine.topk(one[None], K).logits[0, -1] for one in hidden])
        wrong = int((found < true.least - TIE * (1 + np.abs(true.least))).sum())
        return row(name, promise, over, engine.promise.delta_ids, wrong, len(hidden), **about)
    beyond, worst, alone = 0, 0.0, 0
    ways: dict[str, list[int]] = {}
    for seed in range(SEEDS):
        reader = Engine(engine.layer, engine.method, engine.plan, engine.norms, engine.promise, threads=1, seed=seed)
        size, of = 64 if seed > 1 else 1, lse_of if seed % 2 else lse_beside_ids
        lse = np.concatenate([of(reader, hidden[start : start + size]) for start in range(0, len(hidden), size)])
        off = np.abs(lse - true.lse)
        failed = int((~(off <= eps)).sum())
        beyond, worst, alone = beyond + failed, max(worst, float(off.max())), alone + failed * (size == 1)
        counts = ways.setdefault(f"{'beside ids' if of is lse_beside_ids else 'alone'}, {size} a call", [0, 0])
        counts[:] = counts[0] + failed, counts[1] + len(off)
    about |= {"worst": worst, "alone": alone, "ways": ways}
    return row(name, promise, over, engine.promise.delta, beyond, SEEDS * len(hidden), **about)


def lse_of(engine: Engine, hidden: Any) -> NDArray[np.float64]:
    return np.asarray(engine.lse(hidden).lse)


def lse_beside_ids(engine: Engine, hidden: Any) -> NDArray[np.float64]:
    best = engine.topk(hidden, K)
    return np.asarray(best.logits[:, 0] - best.log_probs[:, 0])


def measured(
    name: str, layer: Layer, vectors: NDArray[Any], threads: int, only: str, others: dict[str, NDArray[Any]], count: int
) -> Iterator[dict[str, Any]]:
    """Every promise of one layer, and two of them under drift."""
    rng = np.random.default_rng(0)
    vectors = rng.permutation(vectors)[: CALIBRATION + count].astype(np.float32)
    calibration, hidden = vectors[:CALIBRATION], vectors[CALIBRATION:]
    true = exact(layer, hidden, K)
    size = float(np.median(np.linalg.norm(hidden - hidden.mean(axis=0), axis=1)))
    some = rng.choice(layer.vocab, 500, replace=False)
    drifts = {
        "vectors times 1.5": 1.5 * hidden[:500],
        "rows of the layer": _long(layer.weight[some].astype(np.float32), size),
        "random directions": _long(rng.standard_normal((500, layer.dim)).astype(np.float32), size),
        **{kind: asked[:2000].astype(np.float32) for kind, asked in others.items()},
    }
    truths = {drift: exact(layer, asked, K) for drift, asked in drifts.items()}
    for promise, options in ((promise, options) for promise, options in PROMISES.items() if only in promise):
        engine = hl.compile(layer, "cascade", calibration=calibration, threads=threads, **options)
        assert isinstance(engine, Engine)
        yield counted(name, promise, engine, hidden, true)
        for drift, asked in drifts.items() if promise in DRIFTED else ():
            yield counted(name, f"{promise}, {drift}", engine, asked, truths[drift])


def _long(vectors: NDArray[Any], size: float) -> NDArray[Any]:
    return vectors * (size / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-20)))


def rotations(name: str, layer: Layer, hidden: Any, threads: int) -> list[dict[str, Any]]:
    bias = None if layer.bias is None else np.ascontiguousarray(layer.bias[::EIGHTH])
    part = Layer(np.ascontiguousarray(layer.weight[::EIGHTH]), bias)
    least, every = exact(part, hidden, K).least, np.arange(part.vocab)
    logits = hidden[0].astype(np.float64) @ part.weight.astype(np.float64).T + (0 if bias is None else bias)
    failing, outside, missed = 0, 0, 0
    for seed in range(ROTATIONS):
        engine = hl.compile(
            part, "cascade", threads=threads, eps=math.inf, delta_ids=0.01, bits=4, rotation=seed
        )
        failed = int((engine.topk(hidden, K).logits[:, -1] < least - TIE).sum())
        failing += failed > 0
        off = beyond(engine.plan, hidden[0].astype(np.float64), logits, every)
        outside, missed = outside + off, missed + (off > 0)
    return [
        row(name, "top-10 ids, rotations with any failure", "rotation", 0.01, failing, ROTATIONS),
        row(name, "all radii of one query", "rotation", 0.01, missed, ROTATIONS),
        row(name, "radii, (class, query) pairs", "rotation", 0.01 / part.vocab, outside, ROTATIONS * part.vocab),
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
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("layer", nargs="?", default="")
    parser.add_argument("hidden", nargs="*")
    parser.add_argument("--made", action="store_true", help="the two layers that benchmarks/blocks.py makes")
    parser.add_argument("--rotations", action="store_true")
    parser.add_argument("--drift", action="append", default=[], help="KIND=HIDDEN: vectors of another kind")
    parser.add_argument("--only", default="", help="promises with these words in their names")
    parser.add_argument("--count", type=int, default=COUNT, help="vectors that are asked")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    rows: Iterator[dict[str, Any]]
    if asked.made:
        count = CALIBRATION + asked.count
        made = {"a recommender's, made": recommender(count=count), "an LSTM's, made": recurrent(count=count)}
        each = (measured(name, *there, asked.threads, asked.only, {}, asked.count) for name, there in made.items())
        rows = itertools.chain.from_iterable(each)
    else:
        layer = inputs.layer(asked.layer)
        vectors = np.concatenate([np.asarray(inputs.hidden(source)) for source in asked.hidden])
        others = {kind: np.asarray(inputs.hidden(source)) for kind, _, source in (one.partition("=") for one in asked.drift)}
        rows = measured(asked.name, layer, vectors, asked.threads, asked.only, others, asked.count)
        if asked.rotations:
            rows = itertools.chain(rows, rotations(asked.name, layer, vectors[:64].astype(np.float32), asked.threads))
    for one in rows:
        write(one, asked.json, asked.threads)


def write(new: dict[str, Any], path: Path, threads: int) -> None:
    """The file with one row more, or in place of the one that it had; each row says which build it was counted with."""
    environment = measure.environment(threads)
    new |= {"commit": environment["commit"], "date": environment["date"]}
    known = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    rows = [row for row in known if (row.get("layer"), row["promise"]) != (new["layer"], new["promise"])] + [new]
    rows.sort(key=lambda row: row.get("layer", "~"))
    facts = {"asked": COUNT, "calibrated_with": CALIBRATION}
    record = {"environment": environment, "facts": facts, "rows": rows}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
