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
QUERIES, CALIBRATION, SECONDS = 40, 4096, 1.5


class Timed(NamedTuple):
    """Milliseconds and log-densities of the queries that there was time for."""

    taken: list[float]
    values: list[float]


def timed(ask: Callable[[Any], float], queries: Any) -> Timed:
    """One query at a time, after one to warm up, until ``SECONDS`` are over."""
    ask(queries[:1])
    taken: list[float] = []
    values: list[float] = []
    begin = time.perf_counter()
    for x in queries:
        start = time.perf_counter()
        values.append(ask(x[None]))
        taken.append(1e3 * (time.perf_counter() - start))
        if time.perf_counter() - begin > SECONDS:
            break
    return Timed(taken, values)


def row(name: str, bandwidth: float, built: float, found: Timed, exact: Any, error: Any = None) -> dict[str, Any]:
    off = np.abs(np.array(found.values) - exact[: len(found.values)])
    made = {
        "contestant": name, "bandwidth": bandwidth, "build_s": round(built, 2), "queries": len(off),
        "median_ms": round(statistics.median(found.taken), 3), "worst_error": float(off.max()), "asked": EPS,
    }  # fmt: skip
    return made if error is None else {**made, "outside_own_error": int((off > error[: len(off)]).sum())}


def ours(name: str, layer: Layer, bandwidth: float, queries: Any, exact: Any, **options: Any) -> dict[str, Any]:
    start = time.perf_counter()
    engine = compile_engine(layer, method=name.split(",")[0], eps=EPS, delta=DELTA, threads=THREADS, **options)
    built = time.perf_counter() - start
    found = timed(lambda x: float(log_density(engine.lse(x).lse, x, COUNT, bandwidth)[0]), queries)
    one_by_one = np.concatenate([engine.lse(x[None]).error for x in queries])  # a batch has other draws
    error = one_by_one + storage_error(layer.weight, layer.bias, queries)
    return row(name, bandwidth, built, found, exact, error)


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
        rows += [ours(name, layer, h, queries, exact) for name in ("full", "cascade", "auto")]
        rows.append(ours("cascade, calibrated", layer, h, queries, exact, calibration=others))
        for (leaf, (tree, built)), breadth in itertools.product(trees.items(), (True, False)):
            # what sklearn.neighbors.KernelDensity(rtol=..., breadth_first=...) asks of its tree
            asked = {"h": h, "kernel": "gaussian", "rtol": math.expm1(EPS), "return_log": True, "breadth_first": breadth}
            found = timed(lambda x, t=tree, a=asked: float(t.kernel_density(x, **a)[0] - math.log(COUNT)), queries)
            order = "breadth" if breadth else "depth"
            rows.append(row(f"scikit-learn kd_tree, leaf {leaf}, {order} first", h, built, found, exact))
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
