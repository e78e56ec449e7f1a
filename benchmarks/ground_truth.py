"""The ground truth of a search beside FAISS's flat index, and the least that a proof of somebody's ids could take.

    python benchmarks/ground_truth.py truth --json results/tables.json
    python benchmarks/ground_truth.py proof --json results/tables.json

"truth": the same Parquet files, each way in a process of its own; seconds by the clock and of all processors, the peak of
memory, and how many rows of ids are the same, or differ only where float32 cannot tell the distances apart.
"proof": a proof that no id is missing scans what ``topk`` scans, whatever ids it starts from; ``topk`` of one class is the
least that such a scan takes. ``gain``: ``topk`` of ten over that and the graph's own time. Below 1.2 everywhere, starting
from a graph's ids is not worth a verb.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from common.real_layers import load
from headlong.bench import measure

ITEMS, DIM, QUERIES, K = 1_000_000, 128, 10_000, 100
LAYERS = ("glove", "catalogue", "catalogue-items", "movielens-als", "smollm2")


def written(folder: Path, items: int, queries: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    for name, count in (("items", items), ("queries", queries)):
        rows = pa.array(rng.standard_normal((count, DIM), np.float32).reshape(-1))
        parquet.write_table(pa.table({"e": pa.FixedSizeListArray.from_arrays(rows, DIM)}), folder / f"{name}.parquet")


def ours(folder: Path, threads: int) -> Any:
    from headlong.truth import truth

    return truth(folder / "items.parquet", folder / "queries.parquet", K, metric="l2", threads=threads).ids


def flat(folder: Path, threads: int) -> Any:
    import faiss

    from headlong.tables import files

    faiss.omp_set_num_threads(threads)
    items, queries = (files.whole(str(folder / f"{name}.parquet")) for name in ("items", "queries"))
    index = faiss.IndexFlatL2(DIM)
    index.add(items)
    return index.search(queries, K)[1]


WAYS = {"headlong truth": ours, "FAISS flat, float32": flat}


def one(way: str, folder: Path, threads: int) -> None:
    """In a process of its own: what it took, on stdout; the ids in a file."""
    started = time.perf_counter()
    ids = WAYS[way](folder, threads)
    took, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    np.save(folder / f"{way}.npy", ids)
    print(json.dumps({"wall": took, "processors": used.ru_utime + used.ru_stime, "bytes": used.ru_maxrss * 1024}))  # noqa: T201


def same(folder: Path) -> tuple[float, float]:
    """Of all rows: whose ids are the same, and whose are or differ only in distances that float32 cannot tell apart."""
    from headlong.tables import files

    items, queries = (files.whole(str(folder / f"{name}.parquet")) for name in ("items", "queries"))
    mine, theirs = (np.load(folder / f"{way}.npy") for way in WAYS)
    equal = (mine == theirs).all(axis=1)
    near = equal.copy()
    for row in np.flatnonzero(~equal):
        x = queries[row].astype(np.float64)
        first, second = (np.square(x - items[ids[row]].astype(np.float64)).sum(1) for ids in (mine, theirs))
        size = x @ x + np.square(items[mine[row]].astype(np.float64)).sum(1).max()
        near[row] = (np.abs(first - second) <= (DIM + 8) * 2.0**-24 * size).all()
    return float(equal.mean()), float(near.mean())


def truths(threads: int, items: int, queries: int) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        written(Path(folder), items, queries)
        for way in WAYS:
            command = [sys.executable, __file__, "one", "--way", way, "--folder", folder, "--threads", str(threads)]
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
            rows.append({"what": way, **json.loads(said)})
            print(rows[-1], flush=True)  # noqa: T201
        exact, near = same(Path(folder))
    return [row | {"same": exact, "but for ties": near} for row in rows]


def proofs(names: list[str], threads: int) -> list[dict[str, Any]]:
    import hnswlib

    import headlong as hl

    rows = []
    for name in names:
        layer = load(name)
        weight = np.asarray(layer.layer.weight, np.float32)
        index = hnswlib.Index(space="ip", dim=weight.shape[1])
        index.init_index(max_elements=len(weight), ef_construction=100, M=16, random_seed=0)
        index.set_num_threads(threads)
        index.add_items(weight)
        index.set_ef(100)
        engine = hl.compile(hl.Layer(weight), delta=0.0, log_probs=False, calibration=layer.train, threads=threads)
        for batch in (1, 64):
            count = min(len(layer.valid), 40 * batch) // batch
            blocks = np.split(layer.valid[: count * batch], count)
            calls = {
                "graph": partial(index.knn_query, k=10), "topk": partial(engine.topk, k=10), "least": partial(engine.topk, k=1),
            }  # fmt: skip
            times: dict[str, list[float]] = {way: [] for way in calls}
            for block in [*blocks[:3], *blocks]:
                for way, call in calls.items():
                    started = time.perf_counter()
                    call(block)
                    times[way].append((time.perf_counter() - started) / len(block))
            us = {way: 1e6 * float(np.median(values[3:])) for way, values in times.items()}
            rows.append({"what": name, "batch": batch, **us, "gain": us["topk"] / (us["graph"] + us["least"])})
            print(rows[-1], flush=True)  # noqa: T201
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("table", choices=("truth", "proof", "one"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--items", type=int, default=ITEMS)
    parser.add_argument("--queries", type=int, default=QUERIES)
    parser.add_argument("--layers", default=",".join(LAYERS))
    parser.add_argument("--way")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", help="the file of a page's results")
    asked = parser.parse_args()
    measure.claim_threads(asked.threads)
    if asked.table == "one":
        one(asked.way, asked.folder, asked.threads)
        return 0
    if asked.table == "truth":
        found = truths(asked.threads, asked.items, asked.queries)
        command, name = "python benchmarks/ground_truth.py truth", f"{asked.items:,} x {DIM}, {asked.queries:,} queries"
    else:
        found = proofs(asked.layers.split(","), asked.threads)
        command, name = f"python benchmarks/ground_truth.py proof --layers {asked.layers}", "proof"
    if asked.json:
        record = {"environment": measure.environment(asked.threads), "load": os.getloadavg()[0], "rows": found}
        measure.keep(asked.json, asked.table, record, name, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
