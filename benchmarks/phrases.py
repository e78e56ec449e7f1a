"""A class for every phrase of WikiText-2: what proved ids read and take as classes grow to a million, and what changes cost.

    python benchmarks/phrases.py make FOLDER [DIM]               rows and hidden vectors from real text (HEADLONG_DATA)
    python benchmarks/phrases.py make-characters FOLDER          the same of ten million runs of twenty characters (7 GB)
    python benchmarks/phrases.py count FOLDER OUT.json [CLASSES ...]   bytes, rows, memory of building, what changes cost
    python benchmarks/phrases.py time FOLDER OUT.json CLASSES        the same engines in turns, batch 1 (cold, too) and 64

`plain` is the cascade without blocks, `without vectors` what the layer alone leads to. Every number of classes runs in a
process of its own; ids of all queries are compared with float64. The first classes are the most frequent phrases.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import headlong as hl
from headlong.bench.measure import commit
from headlong.engines.base import Engine

MOST, RUNS, K, QUERIES, CALIBRATION, CHANGED = 1 << 20, 10_000_000, 10, 64, 4096, 0.01
SIZES = (1 << 14, 1 << 16, 1 << 18, 1 << 20)
WAYS: dict[str, dict[str, Any]] = {"blocks": {"blocks": True}, "plain": {"blocks": False}}
ALONE = "without vectors"
"""What ``compile`` makes of the layer alone."""


def make_characters(folder: Path) -> None:
    """As :func:`make`, with a class for every run of characters."""
    from studies.data.files import data_root
    from studies.models.characters import characters

    home = data_root() / "wikitext-2"
    train, valid, test = ((home / f"{name}.txt").read_text(encoding="utf-8") for name in ("train", "valid", "test"))
    keep(folder, characters(train, (valid, test), RUNS))


def make(folder: Path, dim: int = 64) -> None:
    """Trigrams of the training text, hidden vectors of the validation text (calibration) and of the test text (queries)."""
    from studies.data.files import data_root
    from studies.data.text import load_plain
    from studies.models.phrases import phrases

    corpus = load_plain(data_root() / "wikitext-2")
    keep(folder, phrases(corpus.train, (corpus.valid, corpus.test), len(corpus.vocabulary), MOST, dim=dim))


def keep(folder: Path, found: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in found._asdict().items():
        np.save(folder / f"{name}.npy", array)


def read(folder: Path, vocab: int) -> tuple[hl.Layer, Any, Any]:
    """The layer of the first classes, calibration vectors and queries."""
    weight, bias = (np.load(folder / f"{name}.npy", mmap_mode="r")[:vocab] for name in ("weight", "bias"))
    calibration, queries = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("calibration", "queries"))
    rng = np.random.default_rng(0)
    some = calibration[rng.choice(len(calibration), CALIBRATION, replace=False)]
    return hl.Layer(weight, np.array(bias)), some, queries[rng.choice(len(queries), QUERIES, replace=False)]


class Peak:
    """``with Peak() as peak``: the most anonymous memory beyond what there was, in bytes."""

    def __enter__(self) -> Peak:
        self.most = self._before = self._now()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self.most -= self._before

    def _watch(self) -> None:
        while not self._over.wait(0.005):
            self.most = max(self.most, self._now())

    @staticmethod
    def _now() -> int:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))


def kept_bytes(engine: Engine) -> int:
    """All arrays that the engine keeps beside the layer."""
    plan, total = engine.plan, engine.norms.nbytes
    arrays = [plan.rotation, plan.base, *(part for level in plan.levels for part in (level.codes, level.scale, level.slack))]
    if plan.blocks is not None:
        arrays += [getattr(plan.blocks, name) for name in ("head", "back", "rest", "order", "closer")]
        arrays += [level.records for level in plan.blocks.levels]
    return total + sum(array.nbytes for array in arrays if array is not None)


def wrong(layer: hl.Layer, hidden: Any, ids: Any) -> int:
    """Queries whose ids are not float64's, ties aside."""
    missed, best = 0, np.full((len(hidden), 0), 0.0)
    for start in range(0, layer.vocab, 1 << 17):
        part = slice(start, start + (1 << 17))
        logits = hidden.astype(np.float64) @ layer.weight[part].astype(np.float64).T
        logits += 0.0 if layer.bias is None else layer.bias[part]
        best = -np.sort(np.partition(-np.concatenate([best, logits], axis=1), K - 1, axis=1)[:, :K], axis=1)
    for row, chosen, top in zip(hidden.astype(np.float64), ids, best, strict=True):
        found = layer.weight[chosen].astype(np.float64) @ row + (0.0 if layer.bias is None else layer.bias[chosen])
        missed += not bool(np.all(found >= top[-1] - 1e-9 * (1 + abs(top[-1])))) or len(set(chosen.tolist())) < K
    return missed


def off(layer: hl.Layer, hidden: Any, lse: Any) -> float:
    """The largest distance of a normaliser from float64's."""
    exact = np.full(len(hidden), -np.inf)
    for start in range(0, layer.vocab, 1 << 17):
        part = slice(start, start + (1 << 17))
        logits = hidden.astype(np.float64) @ layer.weight[part].astype(np.float64).T
        logits += 0.0 if layer.bias is None else layer.bias[part]
        exact = np.logaddexp(exact, np.logaddexp.reduce(logits, axis=1))
    return float(np.abs(lse - exact).max())


def compiled(layer: hl.Layer, calibration: Any, way: str) -> Engine:
    how: dict[str, Any] = {} if way == ALONE else {"calibration": calibration, **WAYS[way]}
    engine = hl.compile(layer, "cascade", eps=math.inf, **how)
    assert isinstance(engine, Engine)
    return engine


def of_each(engine: Any, queries: Any, eps: float = math.inf) -> dict[str, float]:
    """What one query reads, each alone."""
    tops = [engine.topk(row[None], K, eps=eps) for row in queries]
    assert all((top.error <= eps).all() for top in tops)
    assert all(top.proved.all() for top in tops)
    read_, rows = ([float(getattr(top.cost, name)[0]) for top in tops] for name in ("bytes", "rows"))
    return {"bytes": statistics.mean(read_), "p90 bytes": float(np.percentile(read_, 90)), "rows": statistics.mean(rows)}


def changed(engine: Engine, layer: hl.Layer) -> Any:
    """One class in two hundred gone, and as many rows beside."""
    rng, count = np.random.default_rng(1), int(CHANGED * layer.vocab / 2)
    ids = rng.choice(layer.vocab, 2 * count, replace=False)
    return engine.without(ids[:count]).with_rows(layer.weight[ids[count:]], layer.bias[ids[count:]], ids=ids[count:])  # type: ignore[index]


def counted(folder: Path, vocab: int, way: str) -> dict[str, Any]:
    layer, calibration, queries = read(folder, vocab)
    start = time.process_time()
    with Peak() as peak:
        engine = compiled(layer, calibration, way)
    built = time.process_time() - start
    found: dict[str, Any] = {"classes": vocab, "way": way, "build CPU s": built, "build peak": peak.most}
    found |= {"kept": kept_bytes(engine), "commit": commit()}
    found |= of_each(engine, queries)
    found["log-probabilities within 0.01"] = of_each(engine, queries, 0.01)
    found["off"] = off(layer, queries, engine.lse(queries, eps=0.01).lse)
    found["wrong"] = wrong(layer, queries, np.concatenate([engine.topk(row[None], K).ids for row in queries]))
    if way == "blocks":
        found["changed"] = of_each(changed(engine, layer), queries)
        assert engine.plan.blocks is not None
        found["levels"] = [len(level.records) for level in engine.plan.blocks.levels]
    return found


def timed(folder: Path, vocab: int) -> dict[str, Any]:
    """Milliseconds a query, in turns and in both orders: each engine's median over rounds of the same queries.

    "cold": after a sum over 96 MB. Alone, a query is asked twice and the second answer is timed: "in a loop".
    """
    layer, calibration, queries = read(folder, vocab)
    engines: dict[str, Any] = {way: compiled(layer, calibration, way) for way in (*WAYS, ALONE)}
    engines["blocks, 1 % changed"] = changed(engines["blocks"], layer)
    found: dict[str, Any] = {"classes": vocab, "commit": commit()}
    other = np.zeros(12_000_000)
    for way, batch, rounds in (("in a loop", 1, 128), ("cold", 1, 64), ("in a loop", 64, 24)):
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for turn in range(-1, rounds):
            rows = queries if batch > 1 else queries[turn % QUERIES][None]
            for name in list(engines)[:: 1 if turn % 2 else -1]:
                if way == "cold":
                    other.sum()
                else:
                    engines[name].topk(rows, K)
                start = time.perf_counter()
                engines[name].topk(rows, K)
                if turn >= 0:
                    seconds[name].append(time.perf_counter() - start)
        found[f"ms, batch {batch}, {way}"] = {name: 1e3 * statistics.median(all_) / batch for name, all_ in seconds.items()}
    return found


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "make":
        make(folder, *map(int, sys.argv[3:]))
        return
    if what == "make-characters":
        make_characters(folder)
        return
    if what == "one":
        sys.stdout.write(json.dumps(counted(folder, int(sys.argv[3]), sys.argv[4])) + "\n")
        return
    out, sizes = Path(sys.argv[3]), [int(text) for text in sys.argv[4:]] or list(SIZES)
    run = json.loads(out.read_text()) if out.exists() else {"k": K, "queries": QUERIES, "counted": [], "timed": []}
    for vocab in sizes:
        if what == "time":
            run["timed"] = [row for row in run["timed"] if row["classes"] != vocab] + [timed(folder, vocab)]
            continue
        for way in (*WAYS, ALONE):
            if any((old["classes"], old["way"]) == (vocab, way) for old in run["counted"]):
                continue  # it goes on where it ended
            command = [sys.executable, __file__, "one", str(folder), str(vocab), way]
            row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            run["counted"].append(row)
            sys.stdout.write(f"{row}\n")
            out.write_text(json.dumps(run, indent=1) + "\n")
    out.write_text(json.dumps(run, indent=1) + "\n")


if __name__ == "__main__":
    main()
