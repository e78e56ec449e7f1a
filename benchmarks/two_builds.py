"""Two builds of the library against each other, in turns in one run: what a change costs or saves where it is felt.

    python benchmarks/two_builds.py OTHER_TREE LAYER HIDDEN results/two-builds.json [--this TREE]

OTHER_TREE is a checkout of another commit whose native module is built; this tree, or TREE, is the second build. Each lives in
a process of its own and answers one query a turn, the same one: in a loop, after other weights have emptied the caches, after a
torch product on all cores, and after a pause. ``floor``: the bytes that a query reads, at the speed at which the same run reads
memory on the same threads. ``--ask sample``: plain samples in place of the ten best classes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MEGABYTES, ROUNDS, K, CALIBRATION = 96, 150, 10, 4096
PROMISES: dict[str, tuple[bool, dict[str, Any]]] = {
    "ids proved": (True, {"eps": math.inf}),
    "default promise": (True, {}),
    "no calibration, default promise": (False, {}),
    "no calibration, eps 0.2 proved": (False, {"eps": 0.2, "delta": 0.0}),
}
BEFORE = ("nothing", "cold caches", "torch on all cores", "a pause of 5 ms")
BATCHES = (8, 64)


ASKS: dict[str, Callable[[Any, Any, int], Any]] = {
    "topk": lambda engine, rows, turn: engine.topk(rows, K),
    "sample": lambda engine, rows, turn: engine.sample(rows, seed=turn),
}


def answer(layer_path: str, hidden_path: str, threads: int, what: str) -> None:
    """The child: compiles, then answers one order a line with microseconds."""
    import torch

    import headlong as hl
    from headlong.layers.matrix import Layer

    torch.set_num_threads(threads)
    layer = Layer.load(layer_path, weight="weight", bias="bias")
    hidden = np.load(hidden_path)
    calibration, asked = hidden[:CALIBRATION], hidden[CALIBRATION:]
    engines = {
        name: hl.compile(layer, "cascade", calibration=calibration if given else None, threads=threads, **options)
        for name, (given, options) in PROMISES.items()
    }
    other = np.ones(MEGABYTES * 250_000, np.float32)
    square = torch.ones(2048, 2048)
    before = {
        "nothing": lambda: None,
        "cold caches": other.sum,
        "torch on all cores": lambda: torch.nn.functional.linear(square[:1], square),
        "a pause of 5 ms": lambda: time.sleep(0.005),
    }
    say({"ready": True})
    for line in sys.stdin:
        name, state, batch, turn = json.loads(line)
        rows = np.ascontiguousarray(asked[turn * batch % (len(asked) - batch) :][:batch])
        engine, ask = engines[name], ASKS[what]
        if state == "nothing":
            for _ in range(3):
                ask(engine, rows, turn)
        before[state]()
        start = time.perf_counter()
        found = ask(engine, rows, turn)
        taken = time.perf_counter() - start
        say({"us": 1e6 * taken / batch, "bytes": float(found.cost.bytes.mean()), "ids": found.ids.tolist()})


def say(value: Any) -> None:
    """A line for the parent."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


class Build:
    """One tree in a process of its own."""

    def __init__(self, tree: Path, layer: str, hidden: str, threads: int, what: str) -> None:
        own = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": str(threads), "HEADLONG_THREADS": str(threads)}
        orders = [sys.executable, __file__, "--answer", layer, hidden, "-", "--threads", str(threads), "--ask", what]
        self.process = subprocess.Popen(orders, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=own)
        self.commit = subprocess.run(
            ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        self.read()

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a build ended before it answered; run it with --answer to see why")
        return json.loads(line)

    def ask(self, *order: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.read()


def compared(builds: list[Build], name: str, state: str, batch: int, rounds: int) -> dict[str, Any]:
    """Medians and quartiles of both, turn by turn; the first turns are not counted."""
    taken: list[list[float]] = [[], []]
    read = [0.0, 0.0]
    differ = 0
    for turn in range(rounds + 3):
        answers: list[Any] = [None, None]
        for which in (0, 1) if turn % 2 else (1, 0):
            answers[which] = builds[which].ask(name, state, batch, turn)
        differ += answers[0]["ids"] != answers[1]["ids"]
        for which in (0, 1):
            if turn >= 3:
                taken[which].append(answers[which]["us"])
                read[which] += answers[which]["bytes"] / rounds
    quartiles = [statistics.quantiles(each, n=4) for each in taken]
    return {
        "promise": name, "before": state, "batch": batch, "rounds": rounds, "other_us": quartiles[0], "this_us": quartiles[1],
        "ratio": quartiles[1][1] / quartiles[0][1],
        "ratio_of_pairs": statistics.median(b / a for a, b in zip(*taken, strict=True)),
        "other_bytes": read[0], "this_bytes": read[1], "answers_that_differ": differ,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", nargs="*", default=list(PROMISES), help="promises to compare")
    parser.add_argument("--states", nargs="*", default=list(BEFORE), help="what comes before a call")
    parser.add_argument("--ask", choices=list(ASKS), default="topk", help="what is asked")
    if "--answer" in sys.argv:
        parser.add_argument("layer")
        parser.add_argument("hidden")
        parser.add_argument("out")
        options = parser.parse_args()
        answer(options.layer, options.hidden, options.threads, options.ask)
        return
    parser.add_argument("other", type=Path)
    parser.add_argument("layer")
    parser.add_argument("hidden")
    parser.add_argument("out", type=Path)
    parser.add_argument("--this", type=Path, default=Path(__file__).resolve().parents[1], help="the second build's tree")
    options = parser.parse_args()
    from headlong import __version__, native
    from headlong.bench import measure
    from headlong.store import open_file

    file = open_file(options.hidden)
    vectors = np.concatenate([file.read("train_hidden"), file.read("valid_hidden")]).astype(np.float32)
    kept = Path(os.environ.get("TMPDIR", "/tmp")) / f"two-builds-{os.getpid()}.npy"
    np.save(kept, vectors)
    try:
        builds = [
            Build(tree, str(Path(options.layer).resolve()), str(kept), options.threads, options.ask)
            for tree in (options.other.resolve(), options.this.resolve())
        ]
        bandwidth = native.bandwidth(MEGABYTES << 20, options.threads, 5)
        rows = []
        for name in options.only:
            for state in options.states:
                for batch in (1, *BATCHES) if state in ("nothing", "cold caches") else (1,):
                    row = compared(builds, name, state, batch, options.rounds if batch < 64 else options.rounds // 4)
                    row["floor_us"] = row["this_bytes"] / (bandwidth * 1e3)
                    rows.append(row)
                    times = f"{row['other_us'][1]:.0f} -> {row['this_us'][1]:.0f} us, floor {row['floor_us']:.0f}"
                    ratios = f"{row['ratio']:.2f}, {row['ratio_of_pairs']:.2f} of pairs"
                    sys.stderr.write(f"{name}, {state}, {batch}: {times}; {ratios}\n")
    finally:
        kept.unlink(missing_ok=True)
    record = {
        "version": __version__, "environment": measure.environment(options.threads),
        "asked": options.ask, "other": builds[0].commit, "this": builds[1].commit,
        "megabytes between": MEGABYTES, "GB/s": bandwidth, "rows": rows,
    }  # fmt: skip
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
