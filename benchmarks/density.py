"""Kernel density beside scikit-learn's tree: a million points in 16 dimensions, narrow to wide bandwidths, one run.

    python benchmarks/density.py OUT.json [BANDWIDTH ...]       rows of other bandwidths stay in the file
    python benchmarks/density.py OUT.json few [DIM ...]         the same in two and three dimensions, or in some of them
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.neighbors import KDTree

from headlong import Layer
from headlong import compile as compile_engine
from headlong.bench.measure import claim_threads, environment
from headlong.layers.density import log_density, storage_error

THREADS, COUNT, EPS, DELTA = 2, 1_000_000, 0.05, 0.01
DIM, BANDWIDTHS = 16, (0.25, 0.5, 1.0, 2.0, 4.0)
FEW, NARROW = (2, 3), (0.03, 0.2)
QUERIES, CALIBRATION, SECONDS, ROUNDS = 40, 4096, 1.5, 4


class Contestant(NamedTuple):
    """``ask`` gives a query's log-density, ``error`` how far off it may be, where that is known."""

    name: str
    built: float
    ask: Callable[[Any], float]
    error: Callable[[Any], Any] | None = None


def row(one: Contestant, bandwidth: float, found: dict[int, tuple[float, float]], queries: Any, exact: Any) -> dict[str, Any]:
    """``found``: milliseconds and log-density of each query that there was time for."""
    places = sorted(found)
    off = np.abs(np.array([found[place][1] for place in places]) - exact[places])
    made = {
        "contestant": one.name, "bandwidth": bandwidth, "build_s": round(one.built, 2), "queries": len(off),
        "median_ms": round(statistics.median(taken for taken, _ in found.values()), 3), "worst_error": float(off.max()),
        "asked": EPS,
    }  # fmt: skip
    return made if one.error is None else {**made, "outside_own_error": int((off > one.error(queries[places])).sum())}


def in_turns(contestants: list[Contestant], queries: Any) -> list[dict[int, tuple[float, float]]]:
    """One query at a time, some to each contestant in every round: after one to warm up, until its time is over."""
    found: list[dict[int, tuple[float, float]]] = [{} for _ in contestants]
    for turn in range(ROUNDS):
        for one, answers in zip(contestants, found, strict=True):
            one.ask(queries[:1])
            begin = time.perf_counter()
            for place in range(turn, len(queries), ROUNDS):
                start = time.perf_counter()
                value = one.ask(queries[place][None])
                answers[place] = 1e3 * (time.perf_counter() - start), value
                if time.perf_counter() - begin > SECONDS / ROUNDS:
                    break
    return found


def ours(name: str, layer: Layer, bandwidth: float, **options: Any) -> Contestant:
    start = time.perf_counter()
    engine = compile_engine(layer, method=name.split(",")[0], eps=EPS, delta=DELTA, threads=THREADS, **options)
    built = time.perf_counter() - start

    def error(queries: Any) -> Any:
        one_by_one = np.concatenate([engine.lse(x[None]).error for x in queries])  # a batch has other draws
        return one_by_one + storage_error(layer.weight, layer.bias, queries)

    return Contestant(name, built, lambda x: float(log_density(engine.lse(x).lse, x, COUNT, bandwidth)[0]), error)


def trees_of(points: Any, bandwidth: float, trees: dict[int, tuple[KDTree, float]]) -> list[Contestant]:
    made = []
    for (leaf, (tree, built)), breadth in itertools.product(trees.items(), (True, False)):
        # what sklearn.neighbors.KernelDensity(rtol=..., breadth_first=...) asks of its tree
        asked = {"h": bandwidth, "kernel": "gaussian", "rtol": math.expm1(EPS), "return_log": True, "breadth_first": breadth}
        order = "breadth" if breadth else "depth"
        made.append(Contestant(
            f"scikit-learn kd_tree, leaf {leaf}, {order} first", built,
            lambda x, t=tree, a=asked: float(t.kernel_density(x, **a)[0] - math.log(len(points))),
        ))  # fmt: skip
    return made


def compared(bandwidths: tuple[float, ...], dim: int = DIM) -> list[dict[str, Any]]:
    """Every contestant at each bandwidth, on a mixture of 64 Gaussians."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((64, dim)) * 3

    def draw(n: int) -> Any:
        return centres[rng.integers(0, 64, n)] + rng.standard_normal((n, dim))

    points, queries, others = draw(COUNT), draw(QUERIES), draw(CALIBRATION)
    squares = np.stack([((points - x) ** 2).sum(axis=1) for x in queries])
    trees = {}
    for leaf in (40, 400):
        start = time.perf_counter()
        trees[leaf] = KDTree(points, leaf_size=leaf), time.perf_counter() - start
    rows: list[dict[str, Any]] = []
    for h in bandwidths:
        power = squares / (-2 * h * h)
        peak = power.max(axis=1)
        volume = math.log(COUNT) + dim / 2 * math.log(2 * math.pi * h * h)
        exact = peak + np.log(np.exp(power - peak[:, None]).sum(axis=1)) - volume
        layer = Layer.gaussian_kernel(points, h)
        contestants = [ours(name, layer, h) for name in ("full", "cascade", "auto")]
        contestants.append(ours("cascade, calibrated", layer, h, calibration=others))
        contestants += trees_of(points, h, trees)
        found = in_turns(contestants, queries)
        rows += [row(one, h, answers, queries, exact) for one, answers in zip(contestants, found, strict=True)]
        sys.stderr.write(f"{dim} dimensions, bandwidth {h}\n")
    return [{"dim": dim, **one} for one in rows]


def main(out: Path, *asked: str) -> None:
    known = json.loads(out.read_text(encoding="utf-8"))["rows"] if asked and out.exists() else []
    if asked[:1] == ("few",):
        dims = tuple(map(int, asked[1:])) or FEW
        rows = [row for row in known if row["dim"] not in dims]
        rows += [row for dim in dims for row in compared(NARROW, dim)]
    else:
        widths = tuple(map(float, asked))
        rows = [row for row in known if row["bandwidth"] not in widths] + compared(widths or BANDWIDTHS)
    rows.sort(key=lambda row: (row["dim"], row["bandwidth"]))
    facts = {"points": COUNT, "eps": EPS, "delta": DELTA}
    lines = ",\n".join(json.dumps(one) for one in rows)
    text = f'{{"facts": {json.dumps(facts)},\n"environment": {json.dumps(environment(THREADS))},\n"rows": [\n{lines}\n]}}\n'
    out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    claim_threads(THREADS)
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), *sys.argv[2:])
