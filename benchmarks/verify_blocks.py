"""Holds searches by blocks against float64: every hidden vector and verb, every executor and instruction set, batches.

    python benchmarks/verify_blocks.py LAYER HIDDEN results/verify-blocks.json

LAYER and HIDDEN are the trained layer and its vectors; the layers that ``blocks.py`` makes are two more. An engine with blocks
is compiled once for each and read by every level from its file. The oracle is one float64 product over
all classes. Of each row it counts, by verb, what does not hold:

    topk, topk 1, topk 100, masked, without   logits of all ranks equal the oracle's largest among the classes that are there
    sample, top_k, top_p, min_p               the winner of the filtered keys of all classes under the same noise
    lse, log_prob                             within the error that was stated, which is no more than eps

Every row is asked for its ten best, some everything else, and slow executors a share of that; goes on where it ended. The exit
status is 1 where anything does not hold.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
from blocks import CALIBRATION, recommender, recurrent
from verify import SEED, Oracle, Truth, check_draw

import headlong as hl
from headlong import native
from headlong.bench import measure
from headlong.layers.matrix import Layer
from headlong.store import open_file

BLOCK, EPS = 128, 0.05
PIECES = (1, 3, 8, 17, 64, 35)
"""Queries at once, in turn: a block of rows."""
EVERY = {"numpy": 64, "portable": 4, "generic": 4}
"""One block of rows in so many, of executors that are slow."""
SOME, LARGE = (4, 32), 1 << 14
"""One block of rows in so many, of every question but the ten best; of layers of so many classes, the second."""
SAMPLES: dict[str, dict[str, Any]] = {
    "sample": {},
    "top_k": {"top_k": 40, "temperature": 1.3},
    "top_p": {"top_p": 0.9, "temperature": 0.8},
    "min_p": {"min_p": 0.05},
}
Verb = Callable[[Any, Any, int, Truth], int]


class Case:
    """One layer: its oracle, classes that are masked, classes that are gone."""

    def __init__(self, layer: Layer) -> None:
        rng = np.random.default_rng(SEED)
        self.layer, self.oracle = layer, Oracle(layer, min(100, layer.vocab))
        self.allowed = np.flatnonzero(rng.random(layer.vocab) < 0.5)
        self.gone = np.flatnonzero(rng.random(layer.vocab) < 0.01)


def wrong_ids(found: Any, logits: Any, rounding: Any) -> int:
    """Rows whose ids are not the best of ``logits [rows, vocab]``, rounding ties aside, or are not proved."""
    k = found.ids.shape[1]
    best = -np.sort(np.partition(-logits, k - 1, axis=1)[:, :k], axis=1)
    there = np.take_along_axis(logits, found.ids, axis=1)
    right = (np.abs(there - best) <= 2 * rounding[:, None]).all(axis=1) & found.proved
    distinct = (np.diff(np.sort(found.ids, axis=1), axis=1) > 0).all(axis=1)
    return int((~(right & distinct & (np.abs(there - found.logits) <= rounding[:, None]).all(axis=1))).sum())


def among(logits: Any, ids: Any) -> Any:
    """``logits`` of some classes; -inf elsewhere."""
    found = np.full_like(logits, -np.inf)
    found[:, ids] = logits[:, ids]
    return found


def verbs(case: Case) -> dict[str, Verb]:
    """Each counts the rows of a piece for which something does not hold."""
    stays = np.setdiff1d(np.arange(case.layer.vocab), case.gone)

    def drawn(engine: Any, hidden: Any, row: int, truth: Truth, how: dict[str, Any]) -> int:
        found, bad = engine.sample(hidden, seed=SEED, row0=row, **how), 0
        cut = (how.get("top_k", 0), how.get("top_p", 1.0), how.get("min_p", 0.0))
        for b in range(len(hidden)):
            keys = truth.exponents[b] / how.get("temperature", 1.0)
            try:
                check_draw(truth.logits[b], keys, truth.noise[b], cut, int(found.ids[b, 0]), float(found.score[b, 0]))
            except AssertionError:
                bad += 1
        return bad

    def lse(engine: Any, hidden: Any, row: int, truth: Truth) -> int:
        found = engine.lse(hidden, eps=EPS)
        held = (np.abs(found.lse - truth.lse) <= found.error + truth.slack) & (found.error <= EPS + truth.slack)
        return int((~held).sum())

    def log_prob(engine: Any, hidden: Any, row: int, truth: Truth) -> int:
        ids = np.random.default_rng([SEED, row]).integers(0, case.layer.vocab, (len(hidden), 2))
        found, log_p = engine.log_prob(hidden, ids, eps=EPS), np.take_along_axis(truth.exponents, ids, 1) - truth.lse[:, None]
        return int((~(np.abs(found.log_probs - log_p).max(axis=1) <= found.error + truth.slack)).sum())

    def best(k: int, ids: Any = None, without: bool = False) -> Verb:
        def count(engine: Any, hidden: Any, row: int, truth: Truth) -> int:
            how = {} if ids is None or without else {"allowed": ids}
            asked = engine.without(case.gone) if without else engine
            logits = truth.logits if ids is None else among(truth.logits, ids)
            return wrong_ids(asked.topk(hidden, k, **how), logits, truth.rounding)

        return count

    found: dict[str, Verb] = {"topk": best(10), "topk 1": best(1), "topk 100": best(100), "masked": best(10, case.allowed)}
    found |= {"without": best(10, stays, without=True), "lse": lse, "log_prob": log_prob}
    for name, how in SAMPLES.items():
        found[name] = lambda engine, hidden, row, truth, how=how: drawn(engine, hidden, row, truth, how)
    return found


def executors(layer: Layer, calibration: Any, folder: Path) -> Iterator[tuple[str, Any, str]]:
    """``name, engine, level`` of every way to read one plan."""
    best = native.isa()
    path = folder / "engine.safetensors"
    hl.compile(layer, "cascade", calibration=calibration, eps=math.inf, blocks=True).save(path)
    for level in native.levels():
        os.environ["HEADLONG_ISA"] = level
        yield level, hl.load(path, threads=2), level
    os.environ["HEADLONG_ISA"] = best


def verified(name: str, layer: Layer, vectors: Any) -> list[dict[str, Any]]:
    """A row for every executor and verb."""
    case, counts = Case(layer), dict[tuple[str, str], list[int]]()
    asked, some = verbs(case), SOME[layer.vocab >= LARGE]
    with tempfile.TemporaryDirectory() as folder:
        engines = list(executors(layer, vectors[:CALIBRATION].astype(np.float32), Path(folder)))
        for number, start in enumerate(range(0, len(vectors), BLOCK)):
            block = vectors[start : start + BLOCK].astype(np.float64)
            truth = case.oracle.truth(block, start, noise=number % some == 0)
            for level, engine, isa in engines:
                if number % EVERY.get(level, 1):
                    continue
                os.environ["HEADLONG_ISA"] = isa
                for verb in asked:
                    if verb != "topk" and number % some:
                        continue
                    sizes = PIECES
                    checked, wrong = pieces(asked[verb], engine, block, start, truth, sizes)
                    total = counts.setdefault((level, verb), [0, 0])
                    total[0], total[1] = total[0] + checked, total[1] + wrong
            bad = sum(count for _, count in counts.values())
            sys.stderr.write(f"\r{name}: {start + len(block)} of {len(vectors)} rows, {bad} wrong")
    sys.stderr.write("\n")
    return [{"layer": name, "executor": at, "verb": verb, "rows": n, "wrong": bad} for (at, verb), (n, bad) in counts.items()]


def pieces(verb: Verb, engine: Any, block: Any, row: int, truth: Truth, sizes: tuple[int, ...]) -> tuple[int, int]:
    """Rows that were checked, and those for which something did not hold."""
    first, wrong = 0, 0
    for size in sizes:
        part = slice(first, min(first + size, len(block)))
        if part.start < part.stop:
            wrong += verb(engine, block[part], row + first, Truth(*(side[part] for side in truth)))
        first += size
    return min(first, len(block)), wrong


def main() -> int:
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    out = Path(sys.argv[3])
    stored = open_file(sys.argv[2])
    hidden = np.concatenate([stored.read("train_hidden"), stored.read("valid_hidden")])
    layers = {"a recommender's, made": recommender(), "an LSTM's, made": recurrent()}
    layers |= {"WikiText-2, a trained GPT's": (hl.Layer.load(sys.argv[1], weight="weight", bias="bias"), hidden)}
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.exists() else []
    for name, (layer, vectors) in layers.items():
        if any(row["layer"] == name for row in rows):
            continue
        rows += verified(name, layer, vectors)
        record = {"environment": measure.environment(2), "pieces": PIECES, "rows": rows}
        out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
