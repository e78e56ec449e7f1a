"""Ten million classes of 128 dimensions from a mapped file: memory of the build, proved ids, time beside FAISS.

    python benchmarks/ten_million.py make FOLDER                  the file of rows, queries, and the float64 truth (17 GB free)
    python benchmarks/ten_million.py CONTESTANT FOLDER OUT.json   one of headlong, calibrated, flat, sq8: adds its row
    python benchmarks/ten_million.py hnsw-build FOLDER            the graph over the first million, to a file (minutes)
    python benchmarks/ten_million.py million FOLDER OUT.json      graph and headlong over the first million

Each contestant runs in a process of its own, so one index is in memory at a time.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headlong.bench.measure import Contestant, Schedule, claim_threads, contest, environment, pinned, write_run

VOCAB, DIM, MILLION, QUERIES, K, THREADS = 10_000_000, 128, 1_000_000, 32, 10, 2
EF_CONSTRUCTION, EF_SEARCH, LINKS = 100, (64, 256), 16


def make(folder: Path, vocab: int) -> None:
    """Rows and queries of the law in headlong/bench/synthetic.py, logit energy falling as j^-1."""
    import numpy as np

    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0].astype(np.float32)
    rotated = (np.arange(1, DIM + 1, dtype=np.float32) ** np.float32(-0.25))[:, None] * turn.T
    folder.mkdir(parents=True, exist_ok=True)
    entry = {"dtype": "F32", "shape": [vocab, DIM], "data_offsets": [0, 4 * vocab * DIM]}
    header = json.dumps({"lm_head.weight": entry}).encode()
    header += b" " * (-len(header) % 64)
    queries = (rng.standard_normal((QUERIES + 4096, DIM), np.float32) @ rotated).astype(np.float32)
    first = min(MILLION, vocab)
    best: dict[int, Any] = {first: None, vocab: None}
    found = np.empty((QUERIES, 0)), np.empty((QUERIES, 0), np.int64)
    with (folder / "rows.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for start in range(0, vocab, 50_000):
            rows = rng.standard_normal((min(50_000, vocab - start), DIM), np.float32) @ rotated
            file.write(rows.tobytes())
            z = queries[:QUERIES].astype(np.float64) @ rows.astype(np.float64).T
            ids = np.argpartition(-z, K, axis=1)[:, : K + 1]
            logits = np.concatenate([found[0], np.take_along_axis(z, ids, 1)], 1)
            order = np.argsort(-logits, axis=1)[:, : K + 1]
            both = np.concatenate([found[1], ids + start], 1)
            found = np.take_along_axis(logits, order, 1), np.take_along_axis(both, order, 1)
            if start + len(rows) in best:
                best[start + len(rows)] = found[1][:, :K]
    np.savez(folder / "asked.npz", queries=queries, truth=best[vocab], truth_million=best[first])


class Peak:
    """``with Peak() as peak``: the most anonymous memory, and the most memory of all kinds (mapped pages too), in bytes."""

    def __enter__(self) -> Peak:
        self.anonymous, self._over = self._now("RssAnon"), threading.Event()
        self._before, self._thread = self.anonymous, threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self.anonymous, self.resident = self.anonymous - self._before, self._now("VmHWM")

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.anonymous = max(self.anonymous, self._now("RssAnon"))

    @staticmethod
    def _now(field: str) -> int:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith(field)))


def headlong_engine(folder: Path, queries: Any, count: int, calibrated: bool) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    """Over the mapped rows; every answer has to be proved."""
    import headlong as hl

    layer = hl.Layer.load(folder / "rows.safetensors")
    layer = layer if count == layer.vocab else hl.Layer(layer.weight[:count])
    learning = queries[QUERIES:] if calibrated else None
    engine = hl.compile(layer, "cascade", eps=float("inf"), delta=0.0, calibration=learning, threads=THREADS)
    top = engine.topk(queries[:QUERIES], K)
    about = {"engine": repr(engine), "proved": float(top.proved.mean()), "rows scored": float(top.cost.rows.mean())}
    about["bytes a query"] = float(engine.topk(queries[:1], K).cost.bytes[0])
    about["index bytes"] = sum(part.nbytes for level in engine.plan.levels for part in (level.codes, level.scale, level.slack))
    return lambda x: engine.topk(x, K).ids, about


def faiss_index(folder: Path, count: int, codes: bool) -> tuple[Callable[[Any], Any], dict[str, Any]]:
    """Filled from the file piece by piece, so that nothing is held twice."""
    import faiss

    import headlong as hl

    faiss.omp_set_num_threads(THREADS)
    rows = hl.Layer.load(folder / "rows.safetensors").weight[:count]
    index: Any = faiss.IndexFlatIP(DIM)
    if codes:
        coarse = faiss.IndexScalarQuantizer(DIM, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
        index = faiss.IndexRefineFlat(coarse)
        index.k_factor = 4
        index.train(rows[:100_000])
    for start in range(0, count, 100_000):
        index.add(rows[start : start + 100_000])
    about = {"index bytes": count * DIM * (5 if codes else 4)}
    return lambda x: index.search(x, K)[1], about


def measured(name: str, made: Callable[[], Any], queries: Any, truth: Any) -> dict[str, Any]:
    """Build with its peaks, recall, and times at batch 1 and 16."""
    start, cpu = time.perf_counter(), time.process_time()
    with Peak() as peak:
        call, about = made()
    row: dict[str, Any] = {"contestant": name, "build s": time.perf_counter() - start, "build CPU s": time.process_time() - cpu}
    row |= {"build peak, anonymous": peak.anonymous, "build peak, with mapped pages": peak.resident, **about}
    return row | timed(name, call, queries, truth)


def timed(name: str, call: Callable[[Any], Any], queries: Any, truth: Any) -> dict[str, Any]:
    import statistics

    import numpy as np

    ids = np.asarray(call(queries[:QUERIES]))
    row: dict[str, Any] = {"recall": float(np.mean([len(set(a) & set(b)) / K for a, b in zip(ids, truth, strict=True)]))}
    row["same ids in order"] = int((ids == truth).all(axis=1).sum())
    for batch in (1, 16):
        one = Contestant(name, call)
        seconds = contest([one], queries[:QUERIES], batch, Schedule(rounds=8, settle=1, calls=4, seconds=12.0))[0].seconds
        row |= {f"ms, batch {batch}": 1e3 * statistics.median(seconds) / batch, f"seconds, batch {batch}": seconds}
    return row


def build_graph(folder: Path) -> None:
    import faiss

    import headlong as hl

    rows, cpu = hl.Layer.load(folder / "rows.safetensors").weight[:MILLION], time.process_time()
    index = faiss.IndexHNSWFlat(DIM, LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = EF_CONSTRUCTION
    index.add(rows)
    faiss.write_index(index, str(folder / "hnsw.index"))
    (folder / "hnsw.json").write_text(json.dumps({"build CPU s": time.process_time() - cpu}))


def graphs(folder: Path, queries: Any, truth: Any) -> list[dict[str, Any]]:
    """HNSW at each width of its search."""
    import faiss

    faiss.omp_set_num_threads(THREADS)
    index = faiss.read_index(str(folder / "hnsw.index"))
    about = {**json.loads((folder / "hnsw.json").read_text()), "index bytes": (folder / "hnsw.index").stat().st_size}
    rows = []
    for width in EF_SEARCH:
        index.hnsw.efSearch = width
        name = f"faiss HNSW, M = {LINKS}, efConstruction = {EF_CONSTRUCTION}, efSearch = {width}"
        rows.append({"contestant": name, **about, **timed(name, lambda x: index.search(x, K)[1], queries, truth)})
    return rows


def run(what: str, folder: Path) -> list[dict[str, Any]]:
    import numpy as np

    asked = np.load(folder / "asked.npz")
    queries, truth, million = asked["queries"], asked["truth"], asked["truth_million"]
    count = (folder / "rows.safetensors").stat().st_size // (4 * DIM)
    if what == "million":
        found = [
            measured(name, lambda on=on: headlong_engine(folder, queries, MILLION, on), queries, million)
            for name, on in (("headlong", False), ("headlong, calibrated", True))
        ]
        return [row | {"classes": MILLION} for row in [*found, *graphs(folder, queries, million)]]
    made: dict[str, tuple[str, Callable[[], Any]]] = {
        "headlong": ("headlong", lambda: headlong_engine(folder, queries, count, False)),
        "calibrated": ("headlong, calibrated", lambda: headlong_engine(folder, queries, count, True)),
        "flat": ("faiss Flat", lambda: faiss_index(folder, count, False)),
        "sq8": ("faiss SQ8 + Refine, k_factor = 4", lambda: faiss_index(folder, count, True)),
    }
    return [measured(*made[what], queries, truth) | {"classes": count}]


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    claim_threads(THREADS)
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "make":
        make(folder, int(sys.argv[3]) if len(sys.argv) > 3 else VOCAB)
    elif what == "hnsw-build":
        build_graph(folder)
    else:
        out = Path(sys.argv[3])
        with pinned(THREADS):
            found = run(what, folder)
        old = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.is_file() else []
        names = {(row["contestant"], row["classes"]) for row in found}
        rows = [row for row in old if (row["contestant"], row["classes"]) not in names] + found
        facts = {"dim": DIM, "dtype": "float32", "k": K, "queries": QUERIES, "logit energy of direction j": "falls as 1/j"}
        write_run(out, {"facts": facts, "environment": environment(THREADS), "rows": rows})
        for row in found:
            sys.stdout.write(json.dumps({key: value for key, value in row.items() if "seconds" not in key}, indent=1) + "\n")


if __name__ == "__main__":
    main()
