"""What headlong costs before and beside a call: the wheel, the import, compiling, saving, loading, memory.

    python benchmarks/files_and_memory.py --layer smollm2 --json results/index.json
    python benchmarks/files_and_memory.py --layer smollm2 --wheel WHEEL.whl --json results/index.json

Seconds are medians. What runs in a process of its own says by how many bytes the process has grown at its peak.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common.real_layers import LAYERS, load
from headlong.bench import measure

IMPORT = "import time; start = time.perf_counter(); import headlong; print(time.perf_counter() - start)"
LOAD = (
    "import sys, time, numpy as np, headlong as hl; hl.Layer, hl.load; start = time.perf_counter();"
    "engine = hl.load(sys.argv[1]); engine.topk(np.ones((1, engine.layer.dim), np.float32), 1);"
    "print(time.perf_counter() - start)"
)
ROUNDS = 5


def alone(code: str, *words: str) -> float:
    """Seconds that a fresh process prints."""
    where = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, env=where)
    return float(done.stdout)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    seconds, made = [], None
    for _ in range(ROUNDS):
        start = time.perf_counter()
        made = work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), made


def peak() -> int:
    """The most memory that this process has had, since :func:`reset`."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def reset() -> int:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return peak()


def rows(name: str, wheel: str | None, threads: int) -> Iterator[dict[str, Any]]:
    import headlong as hl

    if wheel:
        yield {"what": "the wheel", "setting": "installed with NumPy, ml_dtypes, Typer, Rich", "bytes": os.path.getsize(wheel)}
    yield {
        "what": "import headlong",
        "setting": "first in a process",
        "seconds": statistics.median(alone(IMPORT) for _ in range(9)),
    }
    one = load(name)
    dense = one.layer.vocab * one.layer.dim * 4
    yield {"what": "the layer", "setting": f"{name}, {one.layer.vocab:,} x {one.layer.dim}, float32", "bytes": dense}
    for setting, options in (("without calibration", {}), ("calibrated", {"calibration": one.train})):
        before = reset()
        seconds, engine = timed(lambda options=options: hl.compile(one.layer, threads=threads, **options))  # type: ignore[misc]
        yield {"what": "compile", "setting": setting, "seconds": seconds, "bytes": max(0, peak() - before)}
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "engine.safetensors"))
            saving, _ = timed(lambda: engine.save(path, layer=False))  # noqa: B023 - called at once
            yield {"what": "save, the layer left out", "setting": setting, "seconds": saving, "bytes": os.path.getsize(path)}
            engine.save(path)
            loading = statistics.median(alone(LOAD, path) for _ in range(ROUNDS))
            yield {"what": "load and answer one query", "setting": setting, "seconds": loading, "bytes": os.path.getsize(path)}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--layer", default="smollm2", help=f"{', '.join(LAYERS)}, or a folder of 'headlong harvest'")
    parser.add_argument("--wheel", help="its size is a row")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="the file of a page's results")
    asked = parser.parse_args()
    measure.claim_threads(asked.threads)
    found = []
    for row in rows(asked.layer, asked.wheel, asked.threads):
        found.append(row)
        sys.stdout.write(f"{row}\n")
    if asked.json:
        command = f"python benchmarks/files_and_memory.py --layer {asked.layer}"
        record = {"environment": measure.environment(asked.threads), "rows": found}
        measure.keep(asked.json, "files and memory", record, asked.layer, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
