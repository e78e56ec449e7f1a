"""Holds engines against float64 on every hidden vector, and counts what does not hold.

    python benchmarks/verify.py LAYER --hidden FILE:TENSOR [--hidden ...] --json results/verify-NAME.json

The oracle is one float64 matrix product over all classes, another route than any engine takes. For every row::

    ids        logits of rank 1..k equal the k largest of the oracle (ties within float64's rounding), proved is true
    log p      |log p^ - log p| <= error for each of them, |lse^ - lse| <= error, error <= eps; again for a class at random
    samples    argmax of z + g of all classes for the same Gumbels g; on some rows at 0.8 with top_p 0.95

A promise that may fail with probability delta is allowed as many failures as a fair run shows but for one in a million.
Bytes are counted at batch 1, on some rows. The exit status is 1 where anything does not hold.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import headlong as hl
from headlong import native
from headlong.bench import measure
from headlong.cli import inputs
from headlong.engines.base import Engine
from headlong.engines.reference.gumbel import gumbels
from headlong.layers.matrix import Layer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "helpers"))
from oracle import check_draw, logsumexp

Doubles = NDArray[np.float64]
BLOCK, SEED = 128, 20261121
CALIBRATION = 4096
RARE = 1e-6
FILTERED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95}


class Truth(NamedTuple):
    """``logits, noise [rows, vocab]``, ``lse [rows]``, and what float64 may have lost of a logit and of a normaliser."""

    logits: Doubles
    exponents: Doubles
    noise: Doubles
    best: Doubles
    lse: Doubles
    rounding: Doubles
    slack: Doubles


@dataclass
class Tally:
    """Rows that failed, by claim, and the worst of what was stated."""

    rows: int = 0
    ids: int = 0
    unproved: int = 0
    log_p: int = 0
    beyond_eps: int = 0
    log_p_of_random: int = 0
    samples: int = 0
    filtered: int = 0
    drawn: int = 0
    drawn_filtered: int = 0
    worst_error: float = 0.0
    worst_off: float = 0.0
    closest: float = 0.0
    """The largest share of a stated error that was used up."""
    costs: list[Any] = field(default_factory=list)


class Oracle:
    """Float64 logits of any rows, from weights that are widened once."""

    def __init__(self, layer: Layer, k: int) -> None:
        self.layer, self.k = layer, k
        self.weight = layer.weight.astype(np.float64)
        self.longest = float(np.linalg.norm(self.weight, axis=1).max())
        self.bias = np.zeros(layer.vocab) if layer.bias is None else layer.bias.astype(np.float64)
        self.classes = np.arange(layer.vocab, dtype=np.int64)

    def truth(self, hidden: Doubles, row0: int, noise: bool = True) -> Truth:
        layer = self.layer
        logits = hidden @ self.weight.T + self.bias
        exponents = layer.link(logits)
        size = self.longest * np.linalg.norm(hidden, axis=1) + float(np.abs(self.bias).max())
        rounding = (layer.dim + 4) * 2.0**-52 * size
        lse = logsumexp(exponents)
        kind, slope, _ = layer.link.lowered()
        slack = (slope if kind == "affine" else 1.0) * 2 * rounding + (np.abs(lse) + layer.vocab) * 2.0**-50
        drawn = np.stack([gumbels(SEED, row0 + b, 0, self.classes) for b in range(len(hidden))]) if noise else logits
        best = -np.sort(np.partition(-logits, self.k - 1, axis=1)[:, : self.k], axis=1)
        return Truth(logits, exponents, drawn, best, lse, rounding, slack)


def check(engine: Engine, hidden: Doubles, row0: int, truth: Truth, tally: Tally) -> None:
    """One block of rows by every verb."""
    k, rounding = truth.best.shape[1], truth.rounding[:, None]
    found = engine.topk(hidden, k)
    there = np.take_along_axis(truth.logits, found.ids, axis=1)
    right = (np.abs(there - truth.best) <= 2 * rounding).all(axis=1) & (np.abs(there - found.logits) <= rounding).all(axis=1)
    distinct = (np.diff(np.sort(found.ids, axis=1), axis=1) > 0).all(axis=1)
    log_p = np.take_along_axis(truth.exponents, found.ids, axis=1) - truth.lse[:, None]
    off = np.maximum(np.abs(found.log_probs - log_p).max(axis=1), np.abs(found.lse - truth.lse))
    tally.rows += len(hidden)
    tally.ids += int((~(right & distinct)).sum())
    tally.unproved += int((~found.proved).sum())
    tally.log_p += int((~(off <= found.error + truth.slack)).sum())
    tally.beyond_eps += int((~(found.error <= engine.promise.eps + truth.slack)).sum())
    stated = np.isfinite(found.error)
    tally.worst_error = max(tally.worst_error, float(found.error[stated].max(initial=0.0)))
    tally.worst_off = max(tally.worst_off, float(off[stated].max(initial=0.0)))
    tally.closest = max(tally.closest, float((off / (found.error + truth.slack))[stated].max(initial=0.0)))
    check_random_class(engine, hidden, row0, truth, tally)
    check_samples(engine, hidden, row0, truth, tally)


def check_random_class(engine: Engine, hidden: Doubles, row0: int, truth: Truth, tally: Tally) -> None:
    ids = np.random.default_rng([SEED, row0]).integers(0, engine.layer.vocab, (len(hidden), 1))
    given = engine.log_prob(hidden, ids)
    log_p = np.take_along_axis(truth.exponents, ids, axis=1)[:, 0] - truth.lse
    off = np.maximum(np.abs(given.log_probs[:, 0] - log_p), np.abs(given.lse - truth.lse))
    tally.log_p_of_random += int((~(off <= given.error + truth.slack)).sum())


def check_samples(engine: Engine, hidden: Doubles, row0: int, truth: Truth, tally: Tally) -> None:
    drawn = engine.sample(hidden, seed=SEED, row0=row0)
    keys = truth.exponents + truth.noise
    best, won = keys.max(axis=1), np.take_along_axis(keys, drawn.ids, axis=1)[:, 0]
    close = truth.slack + 1e-12 * (1 + np.abs(best))
    right = (won >= best - close) & (np.abs(drawn.score[:, 0] - won) <= close) & drawn.proved[:, 0]
    tally.drawn += len(hidden)
    tally.samples += int((~right).sum())


def check_some(engine: Engine, hidden: Doubles, row: int, truth: Truth, b: int, tally: Tally) -> None:
    """Row ``b`` of a block alone: filtered samples, and what a query of its own reads."""
    one = hidden[b : b + 1]
    drawn = engine.sample(one, seed=SEED, row0=row, **FILTERED)
    exponents = truth.exponents[b] / FILTERED["temperature"]
    cut = (0, FILTERED["top_p"], 0.0)
    tally.drawn_filtered += 1
    try:
        check_draw(truth.logits[b], exponents, truth.noise[b], cut, int(drawn.ids[0, 0]), float(drawn.score[0, 0]))
    except AssertionError:
        tally.filtered += 1
    tally.costs.append(engine.topk(one, truth.best.shape[1]).cost)


def allowed_failures(rows: int, delta: float) -> int:
    """The least c with ``P[Binomial(rows, delta) > c] <= RARE``."""
    if delta <= 0:
        return 0
    count, mass, log = 0, 0.0, math.log
    while True:
        choose = math.lgamma(rows + 1) - math.lgamma(count + 1) - math.lgamma(rows - count + 1)
        mass += math.exp(choose + count * log(delta) + (rows - count) * math.log1p(-delta))
        if mass >= 1 - RARE or count == rows:
            return count
        count += 1


def verdict(name: str, engine: Engine, tally: Tally) -> dict[str, Any]:
    """One entry of the record; ``violations`` is what has to be 0."""
    promise, layer = engine.promise, engine.layer
    allowed = allowed_failures(tally.rows, promise.delta)
    late = sum(max(0, misses - allowed) for misses in (tally.log_p, tally.log_p_of_random))
    filtered = max(0, tally.filtered - allowed_failures(tally.drawn_filtered, promise.delta))  # a nucleus may be bet on
    proving = promise.delta_ids == 0
    violations = late + tally.beyond_eps + tally.samples + filtered + (tally.ids + tally.unproved if proving else 0)
    rows, read = (np.array([float(getattr(cost, part)[0]) for cost in tally.costs]) for part in ("rows", "bytes"))
    counts = {key: value for key, value in vars(tally).items() if isinstance(value, int)}
    return {
        "contestant": name,
        "engine": repr(engine),
        "violations": violations,
        **counts,
        "allowed_failures": allowed,
        "worst_error": tally.worst_error,
        "worst_off": tally.worst_off,
        "closest": round(tally.closest, 4),
        "mean_rows": round(float(rows.mean()), 1),
        "mean_bytes": round(float(read.mean())),
        "bytes_of_float32": round(float(read.mean()) / (4 * layer.vocab * layer.dim), 4),
        "dense_rows": int(sum(bool(cost.dense[0]) for cost in tally.costs)),
    }


def contestants(layer: Layer, calibration: Any, threads: int) -> Iterator[tuple[str, Engine]]:
    yield "full", hl.compile(layer, "full", threads=threads)
    yield "cascade, eps 0.2 proved", hl.compile(layer, "cascade", eps=0.2, delta=0.0, threads=threads)
    fitted: dict[str, dict[str, float]] = {
        "ids only": {"eps": math.inf},
        "eps 0.2 proved": {"eps": 0.2, "delta": 0.0},
        "eps 0.05 proved": {"eps": 0.05, "delta": 0.0},
        "the default promise": {},
    }
    for name, asked in fitted.items():
        engine = hl.compile(layer, "cascade", calibration=calibration, threads=threads, **asked)  # type: ignore[arg-type]
        yield f"cascade calibrated, {name}", engine
    by_blocks = hl.compile(layer, "cascade", calibration=calibration, threads=threads, eps=math.inf, blocks=True)
    yield "cascade calibrated, blocks", by_blocks


def verify(layer: Layer, hidden: Doubles, engines: list[tuple[str, Engine]], k: int, some: int) -> list[dict[str, Any]]:
    """Every engine on every row; the oracle's work is shared."""
    oracle, tallies = Oracle(layer, k), [Tally() for _ in engines]
    chosen = set(np.linspace(0, len(hidden) - 1, min(some, len(hidden))).astype(int).tolist())
    for start in range(0, len(hidden), BLOCK):
        block = hidden[start : start + BLOCK]
        truth = oracle.truth(block, start)
        for (_, engine), tally in zip(engines, tallies, strict=True):
            check(engine, block, start, truth, tally)
            for b in range(len(block)):
                if start + b in chosen:
                    check_some(engine, block, start + b, truth, b, tally)
        sys.stderr.write(f"\r{start + len(block)} of {len(hidden)} rows")
    sys.stderr.write("\n")
    return [verdict(name, engine, tally) for (name, engine), tally in zip(engines, tallies, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("layer", help="path[:tensor]")
    parser.add_argument("--hidden", action="append", required=True, help="path[:tensor]; all rows of each")
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, help="only the first of each file")
    parser.add_argument("--some", type=int, default=512, help="rows of filtered samples and of queries one at a time")
    parser.add_argument("--json", help="the record")
    options = parser.parse_args()
    layer = inputs.layer(options.layer)
    parts = [np.asarray(inputs.hidden(text)[: options.rows], np.float64) for text in options.hidden]
    engines = list(contestants(layer, parts[0][:CALIBRATION], options.threads))
    runs = verify(layer, np.concatenate(parts), engines, options.k, options.some)
    for run in runs:
        share = f"{run['bytes_of_float32']:.1%} of float32's bytes"
        sys.stdout.write(f"{run['contestant']}: {run['rows']} rows, {run['violations']} violations, {share}\n")
    if options.json:
        facts = {"vocab": layer.vocab, "dim": layer.dim, "dtype": layer.dtype, "name": Path(options.layer).stem}
        about = {"layer": facts, "k": options.k, "calibration": f"the first {CALIBRATION} rows of the first file"}
        environment = measure.environment(options.threads, kernel=native.isa())
        measure.write_run(options.json, {"environment": environment, **about, "runs": runs})
    return 1 if any(run["violations"] for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
