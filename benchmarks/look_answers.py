"""What radii that are learned for the answer would save of a look at all classes, where ids may fail: bytes, no clock.

    python benchmarks/look_answers.py --json results/look-answers.json [NAME LAYER HIDDEN...]

    all classes     radii that hold for all classes at once, as engines have them
    the answer      the same prefix, its radii learned for the k best alone (learned_answers.py)
    scan, rows      the first look's part of it, shared by a batch, and that of k rows: no radii read less after this prefix
    wider           a prefix of 48 coordinates, with radii of all classes; ``--wider`` adds it to rows that the file has

One query a call and 64 a call, k of 10 and 64, ids but for 0.01; 2,000 vectors that chose nothing. The layers that
``benchmarks/blocks.py`` makes, and NAME's. An engine of the first kind is what compile makes with ``blocks=False``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from blocks import recommender, recurrent

import headlong as hl
from headlong import native
from headlong.bench import measure
from headlong.cli import inputs
from headlong.engines.base import Engine
from headlong.engines.methods.cascade import Cascade
from headlong.engines.methods.learned_answers import Find, Learned, answer_factors, factor_for
from headlong.layers.matrix import Layer
from headlong.plan import Plan
from headlong.previews.calibrated_radii import split

CALIBRATION, ASKED, DELTA, WIDER = 4000, 2000, 0.01, 48


def narrowed(plan: Plan, factor: float) -> Plan:
    """``plan`` with another factor on the tail of its prefix."""
    first, *rest = plan.levels[0].terms
    level = plan.levels[0]._replace(terms=(first._replace(factor=factor), *rest))
    return plan._replace(levels=(level, *plan.levels[1:]))


def reader(layer: Layer, plan: Plan, norms: Any) -> Any:
    return native.executor(layer.weight, layer.bias, norms, layer.link.lowered(), plan, native.isa())


def finder(layer: Layer, engine: Engine, batch: int) -> Find:
    def find(hidden: Any, k: int, factor: float) -> tuple[Any, Any]:
        executor = reader(layer, narrowed(engine.plan, factor), engine.norms)
        parts = (np.ascontiguousarray(hidden[start : start + batch]) for start in range(0, len(hidden), batch))
        found = [executor.topk(part, k, math.inf, None, False, 1) for part in parts]
        return np.concatenate([one[0] for one in found]), ~np.concatenate([one[8] for one in found])

    return find


def read(executor: Any, hidden: Any, batch: int, k: int, whole: float) -> tuple[float, Any]:
    """The share of float32's bytes, and the least logit of each answer."""
    parts = (hidden[start : start + batch] for start in range(0, len(hidden), batch))
    found = [executor.topk(np.ascontiguousarray(part), k, math.inf, None, False, 1) for part in parts]
    return float(np.mean(np.concatenate([one[7] for one in found]))) / whole, np.concatenate([one[0][:, -1] for one in found])


def scan(plan: Plan) -> int:
    """Bytes of the first look at all classes: codes, scales, slack, base."""
    level = plan.levels[0]
    return sum(part.nbytes for part in (level.codes, level.scale, level.slack, plan.base) if part is not None)


def halved(layer: Layer, vectors: Any) -> tuple[Any, Any, Any]:
    """The vectors that calibrate, those that are asked, and all logits of these."""
    vectors = np.random.default_rng(0).permutation(vectors)[: CALIBRATION + ASKED].astype(np.float64)
    hidden = vectors[CALIBRATION:]
    return vectors[:CALIBRATION], hidden, hidden @ layer.weight.astype(np.float64).T + (0 if layer.bias is None else layer.bias)


def least_of(z: Any, k: int) -> Any:
    """The k-th largest of each row."""
    return np.partition(z, -k, axis=1)[:, -k]


def compiled(layer: Layer, calibration: Any, threads: int, **options: Any) -> Engine:
    promise = {"eps": math.inf, "delta_ids": DELTA, "over": ("query", "calibration")}
    chosen = hl.compile(layer, Cascade.name, calibration=calibration, blocks=False, threads=threads, **promise, **options)
    assert isinstance(chosen, Engine)
    return chosen


def widened(known: list[dict[str, Any]], name: str, layer: Layer, vectors: Any, threads: int) -> None:
    """What a wider prefix reads joins the rows of its layer."""
    calibration, hidden, z = halved(layer, vectors)
    chosen, whole = compiled(layer, calibration, threads, width=WIDER), 4.0 * layer.vocab * layer.dim
    for row in known:
        if row["layer"] == name:
            executor, k = reader(layer, chosen.plan, chosen.norms), row["k"]
            share, found = read(executor, hidden, row["batch"], k, whole)
            least = least_of(z, k)
            row |= {"wider": share, "wider, wrong": int((found < least - 1e-9 * (1 + np.abs(least))).sum())}


def counted(name: str, layer: Layer, vectors: Any, threads: int) -> Iterator[dict[str, Any]]:
    calibration, hidden, z = halved(layer, vectors)
    halves, whole = split(calibration, DELTA), 4.0 * layer.vocab * layer.dim
    chosen = compiled(layer, calibration, threads)
    plan = chosen.plan
    width = max(stop for _, stop, _ in plan.levels[0].layout)
    for batch in (1, 64):
        learned: Learned = ()
        if width < layer.dim:  # all coordinates are read otherwise: there is no tail
            bounded_by = calibration[CALIBRATION // 2 :]
            learned = answer_factors(layer, finder(layer, chosen, batch), halves[0], bounded_by, DELTA, threads)
        for k in (10, 64):
            least, factor = least_of(z, k), factor_for(learned, k)
            row = {"layer": name, "batch": batch, "k": k, "width": width, "asked": len(hidden)}
            row |= {"scan": scan(plan) / whole / batch, "rows": k / layer.vocab * layer.weight.itemsize / 4}
            each = {"all classes": plan} | ({} if factor is None else {"the answer": narrowed(plan, factor)})
            for what, one in each.items():
                share, found = read(reader(layer, one, chosen.norms), hidden, batch, k, whole)
                wrong = int((found < least - 1e-9 * (1 + np.abs(least))).sum())
                row |= {what: share, f"{what}, wrong": wrong, f"{what}, factor": one.levels[0].terms[0].factor}
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("layer", nargs="?", default="")
    parser.add_argument("hidden", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wider", action="store_true", help="add what a wider prefix reads to the rows in the file")
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    count = CALIBRATION + ASKED
    layers = {"a recommender's, made": recommender(count=count), "an LSTM's, made": recurrent(count=count)}
    if asked.name:
        vectors = np.concatenate([np.asarray(inputs.hidden(source)) for source in asked.hidden])
        layers[asked.name] = inputs.layer(asked.layer), vectors
    if asked.wider:
        rows = json.loads(asked.json.read_text(encoding="utf-8"))["rows"]
        for name, (layer, vectors) in layers.items():
            if layer.dim > 2 * WIDER:
                widened(rows, name, layer, vectors, asked.threads)
    else:
        rows = [row for name, there in layers.items() for row in counted(name, *there, asked.threads)]
    record = {"environment": measure.environment(asked.threads), "facts": {"calibrated_with": CALIBRATION}, "rows": rows}
    asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
