"""What AdaptiveSoftmax and its promise cost on real data: entries, bytes, memory, time; coverage; low dimension.

    python benchmarks/adaptive.py time LAYER HIDDEN:SPLIT OUT.json        one run, all contestants interleaved, batch 1
    python benchmarks/adaptive.py coverage LAYER HIDDEN:SPLIT OUT.json    do intervals hold? spiky rows included
    python benchmarks/adaptive.py lowdim LAYER HIDDEN:SPLIT OUT.json [DIM ...]    the layer cut to 8, 16, 32 and 64 dimensions
    python benchmarks/adaptive.py questions LAYER HIDDEN:SPLIT OUT.json   top-k and nuclei: right ones, entries read
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from headlong.bench.measure import claim_threads, environment, pinned

THREADS = 2
EPS, DELTA = math.log(1.3), 0.1
COVERED = 200


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
    layer, hidden = _load(layer_file, source)
    rows = timed(layer, hidden, 15, 60)
    _write(out, {"vocab": layer.vocab, "dim": layer.dim, "eps": EPS, "delta": DELTA}, rows)


def timed(layer: Any, hidden: Any, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Every contestant on the same queries, interleaved: medians, failures, what was read."""
    import numpy as np

    from headlong.bench.measure import Contestant, Schedule, race
    from headlong.bench.rivals import contestant

    tuning, queries, learning = _parts(hidden)
    found = engines(layer, tuning, learning)
    exact = found["full"].topk(queries, 1)
    with pinned(THREADS):
        rivals = [contestant(name, layer, 1, THREADS) for name in ("torch fp32", "torch bf16")]
        ours = [Contestant(name, lambda rows, e=engine: e.topk(rows, 1)) for name, engine in found.items()]
        timings = race([*rivals, *ours], queries, 1, Schedule(rounds=rounds, seconds=seconds))
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
            one = [found[name].topk(queries[i : i + 1], 1).cost.bytes[0] for i in range(min(50, len(queries)))]
            row |= {"promise": str(found[name].promise), "failures": wrong, "queries": len(queries)}
            row |= {"entries": round(float(entries(found[name], queries, top.cost)), 4)}
            row |= {"bytes": round(float(np.mean(one))), "memory": memory(found[name]), "dense": float(top.cost.dense.mean())}
        rows.append(row)
    return rows


def entries(engine: Any, queries: Any, cost: Any, k: int = 1) -> float:
    """Entries of W looked at, as a share of all, by the paper's rule; a code of an entry counts as one."""
    import numpy as np

    from headlong.engines.adaptive.reader import PublishedReader, RaceReader

    layer, reader, plan = engine.layer, engine.executor, engine.plan
    whole = layer.vocab * layer.dim
    rows = queries.astype(np.float64)
    if isinstance(reader, PublishedReader):
        found = reader.search(rows, k, None, THREADS)
        return float(np.mean(found[3] / np.maximum(found[4], 1)))
    if isinstance(reader, RaceReader):
        read, dense = reader.entries(rows, k, engine.promise.eps, engine._chance[0])  # noqa: SLF001 - the chance of a call
        return float(np.mean(read + dense * whole)) / whole
    if not plan.levels and plan.arrays is None:
        return 1.0
    first = sum(stop - start for start, stop, _ in plan.levels[0].layout) * layer.vocab if plan.levels else 0
    scored = cost.rows.astype(np.float64) * layer.dim
    return float(np.mean(scored + np.where(cost.dense, 0, first))) / whole


def run_lowdim(layer_file: str, source: str, out: str, *dims: str) -> None:
    """The leading principal coordinates of a trained layer: how few dimensions change who is fastest. Rows of other dimensions
    than those asked for stay in the file."""
    import numpy as np

    from headlong import Layer

    layer, hidden = _load(layer_file, source)
    weight = np.asarray(layer.weight, np.float64)
    values, turn = np.linalg.eigh(np.cov(hidden.T.astype(np.float64)))
    turn = turn[:, np.argsort(-values)]
    asked = [int(dim) for dim in dims] or [8, 16, 32, 64]
    known = json.loads(Path(out).read_text(encoding="utf-8"))["rows"] if dims and Path(out).exists() else []
    rows = [row for row in known if row["dim"] not in asked]
    for dim in asked:
        part = Layer(np.ascontiguousarray(weight @ turn[:, :dim], np.float32), layer.bias)
        vectors = np.ascontiguousarray(hidden @ turn[:, :dim], np.float32)
        rows += [{"dim": dim, **row} for row in timed(part, vectors, 7, 25)]
    _write(out, {"vocab": layer.vocab, "eps": EPS, "delta": DELTA}, sorted(rows, key=lambda row: int(row["dim"])))


def run_questions(layer_file: str, source: str, out: str) -> None:
    """Top-k sets and nuclei of each engine beside the full softmax's, on the same queries and the same noise."""
    import numpy as np

    layer, hidden = _load(layer_file, source)
    tuning, queries, learning = _parts(hidden)
    found = engines(layer, tuning, learning)
    rows = []
    for name in ("cascade", "adaptive, proved", "adaptive, calibrated", "adaptive, published"):
        engine = found[name]
        for k in (1, 10, 100):
            exact, top = found["full"].topk(queries, k), engine.topk(queries, k)
            missed = (np.sort(exact.ids, axis=1) != np.sort(top.ids, axis=1)).any(axis=1)
            read = entries(engine, queries, top.cost, k)
            rows.append(_asked(name, f"top-{k}", missed, top.proved, read))
        some = queries[:200]
        draws = {"seed": 7, "top_p": 0.9}
        exact, drawn = found["full"].sample(some, 4, **draws), engine.sample(some, 4, **draws)
        rows.append(_asked(name, "nucleus 0.9, 4 draws", (exact.ids != drawn.ids).any(axis=1), drawn.proved.all(axis=1), None))
    _write(out, {"vocab": layer.vocab, "dim": layer.dim, "eps": EPS, "delta": DELTA}, rows)


def _asked(name: str, question: str, missed: Any, proved: Any, read: float | None) -> dict[str, Any]:
    from headlong.engines.adaptive.clopper_pearson import clopper_pearson

    wrong = int(missed.sum())
    row = {"contestant": name, "question": question, "wrong": wrong, "queries": len(missed)}
    row |= {"rate_below": round(clopper_pearson(wrong, len(missed)), 5), "proved": float(proved.mean())}
    return row | ({} if read is None else {"entries": round(read, 4)})


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
        rows += [{"layer": name, "widths": kind, **_covered(subject, kind, learning, queries[:COVERED])} for kind in
                 ("sure", "bernstein", "calibrated")]  # fmt: skip
    _write(out, {"delta": DELTA}, rows)


def _covered(layer: Any, kind: str, learning: Any, queries: Any) -> dict[str, Any]:
    import numpy as np

    from headlong.engines.adaptive.method import Adaptive
    from headlong.engines.adaptive.race import RaceQuery, Widths, odds_of
    from headlong.engines.adaptive.reader import keys_of
    from headlong.engines.reference.query import Matrix
    from headlong.native import row_norms

    method = Adaptive(widths=kind)
    promise = method.promise(EPS, DELTA, 0.0 if kind == "sure" else DELTA)
    plan = method.plan(layer, learning.astype(np.float64) if kind == "calibrated" else None, 1, promise)
    assert plan.arrays is not None
    odds = odds_of(layer.vocab, len(plan.arrays["column_weight"]), promise.ids_rate) if kind == "bernstein" else 0.0
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
    allowed = promise.ids_rate if kind != "sure" else 0.0
    return {"pairs": pairs, "outside": outside, "queries": len(queries), "queries_with_any": failing, "allowed_rate": allowed}


def _write(out: str, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(row) for row in rows)
    text = f'{{"facts": {json.dumps(facts)},\n"environment": {json.dumps(environment(THREADS))},\n"rows": [\n{lines}\n]}}\n'
    Path(out).write_text(text, encoding="utf-8")
    sys.stdout.write(lines + "\n")


if __name__ == "__main__":
    claim_threads(THREADS)
    commands = {"time": run_time, "coverage": run_coverage, "lowdim": run_lowdim, "questions": run_questions}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        raise SystemExit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
