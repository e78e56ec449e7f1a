"""scikit-learn's LogisticRegression on 2,185 labels of hashed text: ``predict_topk`` beside the dense answer.

    python benchmarks/many_classes.py --json results/sklearn.json

"dense" is what scikit-learn does: ``decision_function``, the k best by ``argpartition``, their softmax. "dense in blocks" does
the same for 256 rows at a time, so that it never holds the ``[n, classes]`` matrix either. ``bytes``: by how much one call
on all rows raises the peak of the process. ``same``: rows whose k labels are those of the dense answer, in that order.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headlong.bench import measure
from headlong.bench.measure import Contestant, Schedule

K, BLOCK, ROWS = 5, 256, 4096
MMAP_THRESHOLD = -3
"""Of glibc's ``mallopt``."""


def dense(model: Any, rows: Any) -> tuple[Any, Any]:
    """``(proba, labels) [n, k]`` from all decision values."""
    import numpy as np

    scores = model.decision_function(rows)
    best = np.argpartition(-scores, K - 1, axis=1)[:, :K]
    found = np.take_along_axis(scores, best, 1)
    order = np.argsort(-found, axis=1, kind="stable")
    found, best = np.take_along_axis(found, order, 1), np.take_along_axis(best, order, 1)
    scores -= found[:, :1]
    return np.exp(found - found[:, :1]) / np.exp(scores).sum(axis=1, keepdims=True), model.classes_[best]


def dense_in_blocks(model: Any, rows: Any) -> tuple[Any, Any]:
    import numpy as np

    parts = [dense(model, rows[start : start + BLOCK]) for start in range(0, len(rows), BLOCK)]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def rise(call: Callable[[Any], Any], rows: Any) -> int:
    """By how many bytes one call raises the peak of this process; no earlier call may have left memory for it."""

    def resident(name: str) -> int:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith(name)))

    call(rows[:64])
    library = ctypes.CDLL(None)
    library.mallopt(MMAP_THRESHOLD, 1 << 16)  # what is larger goes back to the system at once
    library.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts again from here
    before = resident("VmRSS")
    call(rows)
    return max(0, resident("VmHWM") - before)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="at most about so many for each batch size")
    parser.add_argument("--json", help="the file of a page's results")
    asked = parser.parse_args()
    measure.claim_threads(asked.threads)
    from common.real_layers import fitted_labels
    from headlong.integrations.sklearn import TopKClassifier

    model, _, valid = fitted_labels()
    ours = TopKClassifier.of(model)
    ways: dict[str, Callable[[Any], tuple[Any, Any]]] = {
        "dense": lambda rows: dense(model, rows), "dense in blocks": lambda rows: dense_in_blocks(model, rows),
        "predict_topk": lambda rows: ours.predict_topk(rows, K),
    }  # fmt: skip
    found, right = [], dense(model, valid)[1]
    with measure.pinned(asked.threads):
        for batch in (1, 64, ROWS):
            field = [Contestant(way, call) for way, call in ways.items()]
            schedule = Schedule(rounds=7, settle=1, calls=1 if batch == ROWS else 5, seconds=asked.seconds)
            timings = measure.contest(field, valid, batch, schedule)
            medians = {one.contestant: 1e6 * statistics.median(one.seconds) / batch for one in timings}
            for way, us in medians.items():
                row = {"way": way, "batch": batch, "us": round(us, 2), "x": round(medians["dense"] / us, 3)}
                row["same"] = float((ways[way](valid)[1] == right).all(axis=1).mean())
                found.append(row)
    for row in found:
        if row["batch"] == ROWS:  # after all that is timed: memory is asked for in another way from here on
            row["bytes"] = rise(ways[row["way"]], valid)
        sys.stdout.write(f"{row}\n")
    if asked.json:
        layer = {"about": "LogisticRegression on hashed text", "vocab": len(model.classes_), "dim": valid.shape[1]}
        record = {"environment": measure.environment(asked.threads), "layer": layer, "rows": found}
        measure.keep(asked.json, "many classes", record, "hashed-labels", "python benchmarks/many_classes.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
