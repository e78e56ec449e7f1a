"""What compiling costs in two builds of the library, in processor seconds of one thread, in turns.

    python benchmarks/two_compiles.py OTHER_TREE LAYER HIDDEN results/two-compiles.json [--this TREE]

OTHER_TREE is a checkout of another commit whose native module is built, and so is TREE, which stands in for this one. Processor
seconds say what is computed, so a busy machine changes them little; the least of ``ROUNDS`` is kept. ``peak_mib``: by how much
the process is larger at most while it compiles (Linux). ``module_bytes``: the native modules. Costs of the machine are the
built-in ones in both.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

CALIBRATION, ROUNDS = 4096, 6
CASES: dict[str, tuple[bool, dict[str, Any]]] = {
    "default promise": (True, {}),
    "ids only": (True, {"eps": math.inf}),
    "eps 0.2 proved": (True, {"eps": 0.2, "delta": 0.0}),
    "no calibration, default promise": (False, {}),
    "no calibration, ids only": (False, {"eps": math.inf}),
    "no calibration, eps 0.2 proved": (False, {"eps": 0.2, "delta": 0.0}),
}


def compiled(layer_path: str, hidden_path: str) -> None:
    """The child: one case and one set of options a line, answered with processor seconds."""
    import headlong as hl
    from headlong.store import open_file

    layer = hl.Layer.load(layer_path, weight="weight", bias="bias")
    hidden = np.asarray(open_file(hidden_path).read("train_hidden")[:CALIBRATION], np.float32)
    for line in sys.stdin:
        name, more = json.loads(line)
        given, options = CASES[name]
        resident("VmHWM", forget=True)
        before = resident("VmRSS")
        start = time.process_time()
        engine = hl.compile(layer, "cascade", calibration=hidden if given else None, threads=1, **options, **more)
        seconds = time.process_time() - start
        sys.stdout.write(json.dumps([seconds, resident("VmHWM") - before]) + "\n")
        sys.stdout.flush()
        del engine


def resident(what: str, forget: bool = False) -> float:
    """MiB of this process: now, ``VmRSS``, or at most since the last time that ``forget`` was asked, ``VmHWM``."""
    if forget:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what calls before gave back would be used again
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(what)).split()[1]) / 1024


def module_bytes(tree: Path) -> int:
    return next((tree / "src" / "headlong").glob("_native*")).stat().st_size


def child(tree: Path, layer: str, hidden: str) -> subprocess.Popen[str]:
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    own = {**os.environ, **single, "PYTHONPATH": str(tree / "src"), "HEADLONG_COSTS": "default"}
    orders = [sys.executable, __file__, "--child", layer, hidden]
    return subprocess.Popen(orders, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=own)


def asked(process: subprocess.Popen[str], *order: Any) -> tuple[float, float]:
    """Seconds, and MiB."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    seconds, peak = json.loads(process.stdout.readline())
    return float(seconds), float(peak)


def commit(tree: Path) -> str:
    found = subprocess.run(["git", "-C", str(tree), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    return found.stdout.strip()


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        compiled(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    for name in ("layer", "hidden"):
        parser.add_argument(name)
    parser.add_argument("out", type=Path)
    parser.add_argument("--this", type=Path, help="another commit in place of this tree, of which no blocks are left out")
    options = parser.parse_args()
    from headlong.bench import measure

    trees = [options.other.resolve(), (options.this or Path(__file__).parents[1]).resolve()]
    other, this = (child(tree, options.layer, options.hidden) for tree in trees)
    rows = []
    for name in CASES:
        turns: dict[str, tuple[Any, dict[str, Any]]] = {"other": (other, {}), "this": (this, {})}
        if options.this is None:
            turns["this without blocks"] = this, {"blocks": False}
        taken: dict[str, list[tuple[float, float]]] = {who: [] for who in turns}
        for _ in range(ROUNDS):
            for who, (process, more) in turns.items():
                taken[who].append(asked(process, name, more))
        least = {who: min(seconds for seconds, _ in each) for who, each in taken.items()}
        peaks = {who: max(peak for _, peak in each) for who, each in taken.items()}
        row = {"case": name, "rounds": ROUNDS, **least, "peak_mib": peaks}
        sys.stderr.write(f"{row}\n")
        rows.append(row)
        sizes = {"other": module_bytes(trees[0]), "this": module_bytes(trees[1])}
        commits = {"other": commit(trees[0]), "this": commit(trees[1])}
        record = {"environment": measure.environment(1), **commits, "module_bytes": sizes, "rows": rows}
        options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
