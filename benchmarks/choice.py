"""Whether "auto" takes the fastest of our own ways to keep a promise: layer by layer, promise by promise, in a loop and cold.

    python benchmarks/choice.py results/choice.json                      layers made up by headlong.bench.synthetic
    python benchmarks/choice.py results/choice.json --layer LAYER --hidden HIDDEN
    python benchmarks/choice.py results/choice-drawn.json --drawn 20  drawn shapes, spectra, biases, dtypes

Goes on with the layers that the file does not hold yet. Each case asks the same queries of every engine in turns: "auto" with
and without calibration vectors, and ``full``, ``cascade`` and calibrated ``cascade`` as a user may name them. ``over`` is
auto's median over that of the fastest, which knows no more than auto did.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  # bfloat16 by its name
import numpy as np

import headlong as hl
from headlong.bench import measure
from headlong.bench.synthetic import scale, synthetic
from headlong.cli import inputs
from headlong.cli.terminal import bars

MEGABYTES, CALIBRATION, K, SEED = 96, 4096, 10, 3
SHAPES = ((10_000, 100, 0.5), (10_000, 200, 1.0), (12_000, 64, 1.0), (50_000, 256, 1.0), (262_144, 640, 1.0))
"""Classes, dimensions, and how fast the energy of hidden vectors falls off."""
PROMISES: dict[str, dict[str, Any]] = {
    "ids proved": {"eps": math.inf},
    "default promise": {},
    "eps 0.2 proved": {"eps": 0.2, "delta": 0.0},
}
BATCHES = {1: 60, 8: 16, 64: 6}
"""Queries at once, and in how many turns."""
MOST_WEIGHTS, ASKED = 50_000_000, 2048
"""Of a layer that is drawn, and how many vectors it is asked with."""
DRAWN: dict[str, tuple[Any, ...]] = {
    "dim": (32, 48, 64, 96, 128, 200, 256, 384, 512, 768, 1024), "power": (0, 0.5, 1, 1.5, 2), "top": (0.05, 0.3, 0.8),
    "dtype": ("bfloat16", "float16", "float32"), "alike": (False, True), "bias": (False, True),
}  # fmt: skip
OURS = ("full", "cascade")


def engines(layer: hl.Layer, vectors: np.ndarray, options: dict[str, Any], threads: int) -> dict[str, Any]:
    """By name; those that know calibration vectors end in ", calibrated"."""
    found: dict[str, Any] = {}
    for method in ("auto", *OURS):
        found[method] = hl.compile(layer, method, threads=threads, **options)
        if method != "full":
            found[f"{method}, calibrated"] = hl.compile(layer, method, calibration=vectors, threads=threads, **options)
    return found


def timed(
    field: dict[str, Any], asked: np.ndarray, batch: int, turns: int, other: np.ndarray | None, k: int = K
) -> dict[str, list[float]]:
    """The microseconds of each turn's call of each engine. Each turn has an order of its own: who comes after one like it finds
    its code in the caches."""
    taken: dict[str, list[float]] = {name: [] for name in field}
    names, order = list(field), np.random.default_rng(SEED)
    for turn in range(turns):
        rows = np.ascontiguousarray(asked[turn * batch % (len(asked) - batch + 1) :][:batch])
        for name in (names[i] for i in order.permutation(len(names))):
            if other is None:
                field[name].topk(rows, k)
            else:
                other.sum()
            start = time.perf_counter()
            field[name].topk(rows, k)
            taken[name].append(1e6 * (time.perf_counter() - start))
    return taken


def alike(one: Any, other: Any) -> bool:
    """Whether two engines read the same things in the same order."""
    plans = [(engine.name, engine.plan.dense, [level.layout for level in engine.plan.levels]) for engine in (one, other)]
    blocks = [None if engine.plan.blocks is None else engine.plan.blocks.look for engine in (one, other)]
    return plans[0] == plans[1] and blocks[0] == blocks[1]


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the turns' ratios."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def drawn(seed: int) -> tuple[str, hl.Layer, np.ndarray] | None:
    """A layer that nothing was chosen for, and vectors; None: it would be too large.

    ``alike``: fifty rows to a common centre, and hidden vectors about a common mean. ``top``: the probability of the likeliest
    class of the median vector.
    """
    rng = np.random.default_rng(seed)
    vocab = int(np.exp(rng.uniform(np.log(2_000), np.log(300_000))))
    dim, power, top, dtype, alike_rows, bias = (values[rng.integers(len(values))] for values in DRAWN.values())
    if vocab * dim > MOST_WEIGHTS:
        return None
    turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0].astype(np.float32)
    energy = np.arange(1, dim + 1, dtype=np.float32)[:, None] ** np.float32(-power / 4) * turn.T
    rows = rng.standard_normal((vocab, dim), np.float32)
    hidden = rng.standard_normal((CALIBRATION + ASKED, dim), np.float32) @ energy
    if alike_rows:
        centres = rng.standard_normal((max(8, vocab // 50), dim), np.float32)
        rows = 0.6 * rows + 0.8 * centres[rng.integers(len(centres), size=vocab)]
        hidden += rng.standard_normal(dim).astype(np.float32) @ energy
    rows = rows @ energy
    layer = hl.Layer(rows.astype(np.dtype(dtype)), 1.5 * rng.standard_normal(vocab).astype(np.float32) if bias else None)
    hidden *= np.float32(scale(layer, hidden[:16], top))
    said = f"drawn {seed}: {vocab:,} x {dim}, a = {power:g}, {dtype}"
    return said + (", rows alike" if alike_rows else "") + (", biases" if bias else ""), layer, hidden


def cases(name: str, layer: hl.Layer, hidden: np.ndarray, threads: int, other: np.ndarray) -> list[dict[str, Any]]:
    """A row for each promise, batch, state, and what auto knew."""
    rows = []
    for promise, options in PROMISES.items():
        field = engines(layer, hidden[:CALIBRATION], options, threads)
        for batch, turns in BATCHES.items():
            for state, between in (("a loop", None), ("cold caches", other)):
                times = timed(field, hidden[CALIBRATION:], batch, turns, between)
                for auto in ("auto", "auto, calibrated"):
                    named = [*OURS, *(["cascade, calibrated"] if auto != "auto" else [])]
                    rivals = [one for one in named if not alike(field[one], field[auto])]
                    ratios = {one: ratio(times[auto], times[one]) for one in rivals}
                    best = max(ratios, key=lambda one: ratios[one])
                    row = {"layer": name, "promise": promise, "batch": batch, "state": state, "auto": auto, "fastest": best}
                    row |= {"took": field[auto].name, "over": max(1.0, ratios[best])}
                    rows.append(row | {"median_us": {one: statistics.median(each) for one, each in times.items()}})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layer")
    parser.add_argument("--hidden")
    parser.add_argument("--drawn", type=int, default=0, metavar="COUNT")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(options.out.read_text())["rows"] if options.out.is_file() else []
    known, other = {row["layer"] for row in rows}, np.ones(MEGABYTES * 250_000, np.float32)
    with measure.pinned(options.threads), bars() as stage:

        def take(name: str, layer: hl.Layer, hidden: np.ndarray) -> None:
            rows.extend(cases(name, layer, hidden, options.threads, other))
            record = {"environment": measure.environment(options.threads), "facts": {"k": K}, "rows": rows}
            options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

        if options.layer is not None:
            name = Path(options.layer).stem
            if name not in known:
                take(name, inputs.layer(options.layer), np.asarray(inputs.hidden(options.hidden)).astype(np.float32))
            return
        if options.drawn > 0:
            some = (found for found in map(drawn, itertools.count()) if found is not None)
            for name, layer, hidden in itertools.islice(some, options.drawn):
                stage(name)(1, 1)
                if name not in known:
                    take(name, layer, hidden)
            return
        for vocab, dim, power in SHAPES:
            name = f"{vocab:,} x {dim}, a = {power:g}"
            if name not in known:
                made = synthetic(vocab, dim, power, 512, SEED, stage(name))
                take(name, made.layer, np.concatenate([made.calibration[:CALIBRATION], made.hidden]))


if __name__ == "__main__":
    main()
