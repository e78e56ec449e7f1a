"""What two calls cost whose worst case decides how they are: loading a verified engine, and a nucleus among equal logits.

    python tests/storm/worst_calls.py worst-calls.json

Files are in the page cache; times are medians on two threads.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headlong.bench.measure import claim_threads, environment

THREADS, TURNS = 2, 9
SIZES = ((33_278, 512), (12_103, 64))
TIED = 160_000


def timed(call: Callable[[], Any], turns: int = TURNS) -> float:
    """Median milliseconds, after one call that is not counted."""
    call()
    found = []
    for _ in range(turns):
        start = time.perf_counter()
        call()
        found.append(1e3 * (time.perf_counter() - start))
    return round(statistics.median(found), 3)


def loading(vocab: int, dim: int, folder: Path) -> dict[str, Any]:
    """Milliseconds until an engine of this layer is ready, and its bytes."""
    import numpy as np

    import headlong as hl

    rng = np.random.default_rng(0)
    path = folder / f"{vocab}.safetensors"
    hl.compile(hl.Layer(rng.standard_normal((vocab, dim), np.float32)), "codes", threads=THREADS).save(path)
    ways: dict[str, dict[str, Any]] = {
        "verified": {}, "not verified": {"verify": False}, "verified, in memory": {"mapped": False},
        "verified, one thread": {"threads": 1},
    }  # fmt: skip
    spent = {name: timed(lambda way=way: hl.load(path, **({"threads": THREADS} | way))) for name, way in ways.items()}
    return {"classes": vocab, "dimensions": dim, "mebibytes": round(path.stat().st_size / 2**20, 1), "milliseconds": spent}


def among_ties() -> dict[str, Any]:
    """Milliseconds of one draw from the nucleus of classes that are all alike, and of a top 10 over the same rows."""
    import numpy as np

    import headlong as hl

    rng = np.random.default_rng(1)
    rows = np.tile(rng.standard_normal((1, 32)).astype(np.float32), (TIED, 1))
    hidden = rng.standard_normal((1, 32))
    found: dict[str, Any] = {"classes": TIED, "dimensions": 32}
    for method in ("codes", "full"):
        engine = hl.compile(hl.Layer(rows), method, threads=THREADS)
        found[method] = {
            "draw": timed(lambda engine=engine: engine.sample(hidden, top_p=0.9, seed=1)),
            "top 10": timed(lambda engine=engine: engine.topk(hidden, 10)),
        }
    return found


def main(out: Path) -> None:
    claim_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder:
        record = {"loading": [loading(*size, Path(folder)) for size in SIZES], "ties": among_ties()}
    out.write_text(json.dumps({"environment": environment(THREADS), **record}, indent=1) + "\n")
    sys.stdout.write(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
