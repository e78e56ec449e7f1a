"""What AdaptiveSoftmax and its promise cost on real data: entries, bytes, memory, time; coverage; kernel density.

    python tools/adaptive.py time LAYER HIDDEN:SPLIT OUT.json        one run, all contestants interleaved, batch 1
    python tools/adaptive.py coverage LAYER HIDDEN:SPLIT OUT.json    do intervals hold? spiky rows included
    python tools/adaptive.py density OUT.json                        a million points in 16 dimensions, beside scikit-learn
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from headlong.measure import claim_threads, environment, pinned

THREADS = 2
EPS, DELTA = math.log(1.3), 0.1


def _load(layer_file: str, source: str) -> tuple[Any, Any]:
    import numpy as np

    from headlong import Layer
    from headlong.store import open_file

    names = open_file(layer_file).tensors
    layer = Layer.load(layer_file, weight="weight" if "weight" in names else "lm_head.weight")
    file, _, split = source.rpartition(":")
    return layer, np.asarray(open_file(file).read(split), np.float32)


def _parts(hidden: Any) -> tuple[Any, Any, Any]:
    """Tuning, tests, and vectors to learn widths from, of one shuffled split."""
    import numpy as np

    order = np.random.default_rng(0).permutation(len(hidden))
    return hidden[order[:200]], hidden[order[200:1000]], hidden[order[1000:3000]]


def engines(layer: Any, tuning: Any, learning: Any) -> dict[str, Any]:
    """The same promise, kept in different ways, and the published search."""
    from headlong import compile as compile_engine

    asked: dict[str, Any] = {"eps": EPS, "delta": DELTA, "threads": THREADS}
    return {
        "full": compile_engine(layer, method="full", **asked),
        "cascade": compile_engine(layer, method="cascade", **asked),
        "cascade, calibrated": compile_engine(layer, method="cascade", calibration=learning, **asked),
        "adaptive, proved": compile_engine(layer, method="adaptive", **asked),
        "adaptive, bernstein": compile_engine(layer, method="adaptive", delta_ids=DELTA, widths="bernstein", **asked),
        "adaptive, calibrated": compile_engine(
            layer, method="adaptive", delta_ids=DELTA, widths="calibrated", calibration=learning, **asked
        ),
        "adaptive, published": compile_engine(layer, method="adaptive", published=True, calibration=tuning, **asked),
    }


def memory(engine: Any) -> int:
    """Bytes beside the layer's own."""
    plan = engine.plan
    arrays = list((plan.arrays or {}).values()) + [plan.rotation]
    arrays += [part for level in plan.levels for part in (level.codes, level.scale, level.slack)]
    return sum(array.nbytes for array in arrays if array is not None)


def run_time(layer_file: str, source: str, out: str) -> None:
    import numpy as np

    from headlong.measure import Contestant, Schedule, race
    from headlong.rivals import contestant

    layer, hidden = _load(layer_file, source)
    tuning, queries, learning = _parts(hidden)
    found = engines(layer, tuning, learning)
    exact = found["full"].topk(queries, 1)
    with pinned(THREADS):
        rivals = [contestant(name, layer, 1, THREADS) for name in ("torch fp32", "torch bf16")]
        ours = [Contestant(name, lambda rows, e=engine: e.topk(rows, 1)) for name, engine in found.items()]
        timings = race([*rivals, *ours], queries, 1, Schedule(rounds=15, seconds=60))
    medians = {timing.contestant: statistics.median(timing.seconds) for timing in timings}
    rows = []
    for name, seconds in medians.items():
        row: dict[str, Any] = {"contestant": name, "median_us": round(seconds * 1e6, 2)}
        row["against_torch_fp32"] = round(medians["torch fp32"] / seconds, 3)
        row["against_full"] = round(seconds / medians["full"], 3)
        if name in found:
            top = found[name].topk(queries, 1)
            off = np.abs(np.expm1(top.log_probs[:, 0] - exact.log_probs[:, 0])) > 0.3
            wrong = int((off | (top.ids[:, 0] != exact.ids[:, 0])).sum())
            one = [found[name].topk(queries[i : i + 1], 1).cost.bytes[0] for i in range(50)]
            row |= {"promise": str(found[name].promise), "failures": wrong, "queries": len(queries)}
            row |= {"bytes": round(float(np.mean(one))), "memory": memory(found[name]), "dense": float(top.cost.dense.mean())}
        rows.append(row)
    _write(out, {"vocab": layer.vocab, "dim": layer.dim, "eps": EPS, "delta": DELTA}, rows)


def run_coverage(layer_file: str, source: str, out: str) -> None:
    """``|z - estimate| <= radius`` for every class, look and query, in the NumPy race."""
    import numpy as np

    from headlong import Layer

    layer, hidden = _load(layer_file, source)
    rng = np.random.default_rng(1)
    spiky = rng.standard_normal((4000, 512)).astype(np.float32) * np.float32(0.02)
    spiky[np.arange(4000), rng.integers(0, 512, 4000)] = 6.0
    peaks = rng.standard_normal((4000, 512)).astype(np.float32) * np.float32(0.1)
    peaks[np.arange(4000), rng.integers(0, 512, 4000)] = 3.0
    rows = []
    for name, subject, vectors in (("trained", layer, hidden), ("spiky", Layer(spiky), peaks)):
        _, queries, learning = _parts(vectors)
        rows += [{"layer": name, "widths": kind, **_covered(subject, kind, learning, queries[:25])} for kind in
                 ("sure", "bernstein", "calibrated")]  # fmt: skip
    _write(out, {"delta": DELTA}, rows)


def _covered(layer: Any, kind: str, learning: Any, queries: Any) -> dict[str, Any]:
    import numpy as np

    from headlong.engines.bandit import Adaptive, rate_of
    from headlong.engines.bandit_race import RaceQuery, Widths, odds_of
    from headlong.engines.bandit_reader import keys_of
    from headlong.engines.query import Matrix
    from headlong.kernels import row_norms

    method = Adaptive(widths=kind)
    promise = method.promise(EPS, DELTA, 0.0 if kind == "sure" else DELTA)
    plan = method.plan(layer, learning.astype(np.float64) if kind == "calibrated" else None, 1, promise)
    assert plan.arrays is not None
    odds = odds_of(layer.vocab, len(plan.arrays["column_weight"]), rate_of(promise)) if kind == "bernstein" else 0.0
    factor = float(plan.arrays["factor"][0]) if "factor" in plan.arrays else 1.0
    matrix = Matrix(layer.weight, layer.bias, row_norms(layer.weight), layer.link, plan)
    pairs = outside = failing = 0
    for hidden, key in zip(queries.astype(np.float64), keys_of(queries.astype(np.float64)), strict=True):
        exact = np.asarray(layer.weight, np.float64) @ hidden + (0 if layer.bias is None else layer.bias)
        query = RaceQuery(matrix, hidden, np.ones(layer.vocab, bool), plan.arrays, Widths(kind, factor, odds), 0, int(key))
        missed = 0
        for depth in range(len(query.looks)):
            query._read(depth, np.arange(layer.vocab))  # noqa: SLF001 - looks are what is tested
            missed += int((np.abs(exact - query.estimate) > query.radius).sum())
            pairs += layer.vocab
        outside += missed
        failing += missed > 0
    allowed = rate_of(promise) if kind != "sure" else 0.0
    return {"pairs": pairs, "outside": outside, "queries": len(queries), "queries_with_any": failing, "allowed_rate": allowed}


def run_density(out: str) -> None:
    import numpy as np
    from sklearn.neighbors import KernelDensity

    from headlong import Layer
    from headlong import compile as compile_engine
    from headlong.layers.density import log_density, storage_error

    rng = np.random.default_rng(0)
    count, dim, eps, bandwidth = 1_000_000, 16, 0.05, 0.5
    centres = rng.standard_normal((64, dim)) * 3

    def draw(n: int) -> Any:
        return centres[rng.integers(0, 64, n)] + rng.standard_normal((n, dim))

    points, queries, learning = draw(count), draw(40), draw(4000)
    layer = Layer.gaussian_kernel(points, bandwidth)
    found: dict[str, Any] = {}
    for name, options in (
        ("cascade", {"method": "cascade"}),
        ("cascade, calibrated", {"method": "cascade", "calibration": learning}),
        ("full", {"method": "full"}),
    ):
        start = time.perf_counter()
        engine = compile_engine(layer, eps=eps, delta=0.01, threads=THREADS, **options)
        found[name] = (engine, time.perf_counter() - start)
    truth = []
    for x in queries:
        power = ((points - x) ** 2).sum(axis=1) / (-2 * bandwidth**2)
        truth.append(power.max() + math.log(np.exp(power - power.max()).sum()))
    exact = np.array(truth) - math.log(count) - dim / 2 * math.log(2 * math.pi * bandwidth**2)
    rows = []
    for name, (engine, built) in found.items():
        taken, values, error = [], [], []
        for x in queries:
            start = time.perf_counter()
            answer = engine.lse(x[None])
            values.append(log_density(answer.lse, x[None], count, bandwidth)[0])
            taken.append(time.perf_counter() - start)
            error.append(answer.error[0] + storage_error(layer.weight, layer.bias, x[None])[0])
        off = np.abs(np.array(values) - exact)
        rows.append({
            "contestant": name, "build_s": round(built, 2), "median_ms": round(1e3 * statistics.median(taken), 3),
            "worst_error": float(off.max()), "outside_own_error": int((off > np.array(error)).sum()), "eps": eps,
        })  # fmt: skip
    for leaf, rtol in ((40, math.expm1(eps)), (400, math.expm1(eps))):
        start = time.perf_counter()
        tree = KernelDensity(bandwidth=bandwidth, algorithm="kd_tree", rtol=rtol, leaf_size=leaf).fit(points)
        built, taken, values = time.perf_counter() - start, [], []
        for x in queries[:10]:
            start = time.perf_counter()
            values.append(tree.score_samples(x[None])[0])
            taken.append(time.perf_counter() - start)
        off = np.abs(np.array(values) - exact[:10])
        rows.append({
            "contestant": f"scikit-learn kd_tree, leaf {leaf}", "build_s": round(built, 2),
            "median_ms": round(1e3 * statistics.median(taken), 3), "worst_error": float(off.max()), "eps": eps,
        })  # fmt: skip
    _write(out, {"points": count, "dim": dim, "bandwidth": bandwidth, "delta": 0.01}, rows)


def _write(out: str, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = f'{{"facts": {json.dumps(facts)},\n"environment": {json.dumps(environment(THREADS))},\n"rows": [\n{lines}\n]}}\n'
    Path(out).write_text(text, encoding="utf-8")
    sys.stdout.write(lines + "\n")


if __name__ == "__main__":
    claim_threads(THREADS)
    commands = {"time": run_time, "coverage": run_coverage, "density": run_density}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        raise SystemExit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
