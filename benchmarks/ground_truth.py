"""The ground truth of a search beside FAISS's flat index, and the recall of indexes.

    python benchmarks/ground_truth.py truth --json results/tables.json
    python benchmarks/ground_truth.py recall --layer glove --json results/tables.json
    python benchmarks/ground_truth.py recall --layer sentences --json results/tables.json

"truth": the same Parquet files, each way in a process of its own; seconds by the clock and of all processors, the peak of
memory, and how many rows of ids are the same, or differ only where float32 cannot tell the distances apart.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from common.real_layers import load
from headlong.bench import measure

ITEMS, DIM, QUERIES, K = 1_000_000, 128, 10_000, 100


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
    peak = Path("/proc/self/status").read_text(encoding="utf-8").split("VmHWM:")[1].split()[0]  # of this program alone
    about = {"wall": took, "processors": used.ru_utime + used.ru_stime, "bytes": 1024 * int(peak)}
    print(json.dumps(about))  # noqa: T201


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
    return [row | {"alike": exact, "but for ties": near} for row in rows]


def processor_seconds(call: Callable[[Any], Any], queries: Any, batch: int) -> tuple[float, list[Any]]:
    """A query's, and the answers; of this thread's processor alone, which other programs change little."""
    call(queries[:batch])
    started = time.process_time()
    found = [call(queries[start : start + batch]) for start in range(0, len(queries), batch)]
    return (time.process_time() - started) / len(queries), found


def recalls(name: str) -> list[dict[str, Any]]:
    """In the form of ann-benchmarks: one thread, one query at a time; the recall of the proved ten, and queries a second."""
    import faiss
    import hnswlib

    import headlong as hl
    from headlong.truth import recall, truth

    layer = load(name)
    items, queries = np.asarray(layer.layer.weight, np.float32), layer.valid[:1000]
    faiss.omp_set_num_threads(1)
    true, rows = truth(items, queries, 10, threads=1), []

    def row(method: str, setting: str, build: float, call: Callable[[Any], Any]) -> None:
        seconds, found = processor_seconds(call, queries, 1)
        share = recall(true, np.concatenate([np.asarray(one).reshape(1, -1) for one in found]).astype(np.int64)).mean
        rows.append({"contestant": method, "setting": setting, "same": share, "per second": round(1 / seconds), "build": build})
        print(rows[-1], flush=True)  # noqa: T201

    def built(make: Callable[[], Any]) -> tuple[float, Any]:
        started = time.process_time()
        made = make()
        return time.process_time() - started, made

    flat_index = faiss.IndexFlatIP(items.shape[1])
    flat_index.add(items)
    for setting, options in (("not calibrated", {}), ("calibrated", {"calibration": layer.train})):
        build, engine = built(partial(hl.compile, layer.layer, delta=0.0, log_probs=False, threads=1, **options))
        row("headlong, proved", setting, build, lambda x, engine=engine: engine.topk(x, k=10).ids)
    row("FAISS flat", "", 0.0, lambda x: flat_index.search(x, 10)[1])
    quantizer = faiss.IndexFlatIP(items.shape[1])
    cells = 1 << round(math.log2(1.6 * math.sqrt(len(items))))
    ivf = faiss.IndexIVFFlat(quantizer, items.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
    build, _ = built(lambda: (ivf.train(items[:: max(1, len(items) // 50_000)]), ivf.add(items)))
    for probes in (1, cells // 128, cells // 16, cells // 4):
        ivf.nprobe = probes
        row(f"FAISS IVF{cells}", f"nprobe {probes}", build, lambda x: ivf.search(x, 10)[1])
    try:
        import scann

        leaves_of = round(math.sqrt(len(items)))
        maker = scann.scann_ops_pybind.builder(items, 10, "dot_product")
        maker = maker.tree(leaves_of, leaves_of // 20, training_sample_size=100_000)
        maker = maker.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(100)
        build, searcher = built(maker.build)
        for leaves in (leaves_of // 60, leaves_of // 12, leaves_of // 3):
            row("ScaNN", f"{leaves} leaves", build, lambda x, leaves=leaves: searcher.search(x[0], leaves_to_search=leaves)[0])
    except ImportError as error:
        print(f"no ScaNN: {error}")  # noqa: T201
    graph = hnswlib.Index(space="ip", dim=items.shape[1])
    graph.init_index(max_elements=len(items), ef_construction=100, M=16, random_seed=0)
    graph.set_num_threads(1)
    build, _ = built(lambda: graph.add_items(items, num_threads=1))
    for ef in (20, 100, 400, 1600):
        graph.set_ef(ef)
        row("hnswlib, M 16", f"ef {ef}", build, lambda x: graph.knn_query(x, k=10, num_threads=1)[0])
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("table", choices=("truth", "recall", "one"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--items", type=int, default=ITEMS)
    parser.add_argument("--queries", type=int, default=QUERIES)
    parser.add_argument("--layer", default="glove")
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
        found = recalls(asked.layer)
        command, name = f"python benchmarks/ground_truth.py recall --layer {asked.layer}", asked.layer
    if asked.json:
        record = {"environment": measure.environment(asked.threads), "load": os.getloadavg()[0], "rows": found}
        measure.keep(asked.json, asked.table, record, name, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
