"""Two builds of headlong beside each other: the same calls in turns, one process each, on every level that both have.

    python benchmarks/kernels/in_turns.py OLD/src NEW/src LAYER --hidden FILE:TENSOR results/x86-speeds.json

OLD, NEW: trees with their native modules built in place. Every round asks one process and then the other for the same call,
the order changing from round to round, and a case's figure is the median over rounds of NEW's time over OLD's. Two processes of
one build differ, too, by the memory pages that each got: so rounds are shared out among several pairs of processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCHES = (1, 8, 64)
LEAST = 0.02  # seconds of a measurement


def cases(layer_file: str, hidden_file: str) -> dict[str, Callable[[], Any]]:
    """Calls by name; runs in a child, where `headlong` is one of the two."""
    import numpy as np

    import headlong as hl
    from headlong.store import open_file

    path, tensor = hidden_file.rsplit(":", 1)
    hidden = np.asarray(open_file(path).read(tensor)[:4096], np.float32)
    layer, found = hl.Layer.load(layer_file, weight="weight"), dict[str, Callable[[], Any]]()
    for level in ("avx2", "avx512vnni"):
        os.environ["HEADLONG_ISA"] = level
        engines = {
            "int8": hl.compile(layer, "cascade", width=0, threads=1),
            "prefix": hl.compile(layer, "cascade", calibration=hidden[1024:], threads=1),
            "few bits": hl.compile(layer, "cascade", bits=3.4, threads=1),
            "rows": hl.compile(layer, "full", threads=1),
        }
        for name, engine in engines.items():
            for batch in BATCHES:
                found[f"{level}, {name}, batch {batch}"] = lambda e=engine, b=batch: e.topk(hidden[:b], 10)
    return found


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def serve(layer: str, hidden: str) -> None:
    """A child: names of the cases, then a line of seconds a call for each line that names one."""
    calls = cases(layer, hidden)
    say(json.dumps(list(calls)))
    for line in sys.stdin:
        call = calls[line.strip()]
        times, start = 0, time.perf_counter()
        while (took := time.perf_counter() - start) < LEAST:
            call()
            times += 1
        say(str(took / times))


class Child:
    """A process that runs calls with one of the two builds."""

    def __init__(self, src: str, arguments: list[str]) -> None:
        given, pipe = os.environ | {"PYTHONPATH": src, "OMP_NUM_THREADS": "1"}, subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", *arguments], env=given, stdin=pipe, stdout=pipe, text=True
        )
        self.names: list[str] = json.loads(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def seconds(self, name: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        return float(self._line())


Times = dict[str, tuple[list[float], list[float]]]


def timed(both: tuple[Child, Child], rounds: int, times: Times) -> None:
    """Adds what a pair of processes takes for every call, round by round; the first round warms up."""
    for turn in range(rounds + 1):
        for name in both[0].names:
            for which in (0, 1) if turn % 2 else (1, 0):
                took = both[which].seconds(name)
                if turn:
                    times.setdefault(name, ([], []))[which].append(took)


def compared(times: Times) -> list[dict[str, Any]]:
    rows = []
    for name, (old, new) in times.items():
        ratio = statistics.median(b / a for a, b in zip(old, new, strict=True))
        least = [round(min(found) * 1e6, 1) for found in (old, new)]
        rows.append({"case": name, "old_us": least[0], "new_us": least[1], "ratio": round(ratio, 4)})
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("old", "new", "layer"):
        parser.add_argument(name)
    parser.add_argument("json", type=Path)
    parser.add_argument("--hidden", required=True)
    parser.add_argument("--rounds", type=int, default=5, help="of each pair of processes")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--names", default="old,new", help="how the record calls the two")
    given = parser.parse_args()
    times: Times = {}
    for _ in range(given.pairs):
        both = Child(given.old, [given.layer, given.hidden]), Child(given.new, [given.layer, given.hidden])
        timed(both, given.rounds, times)
        for one in both:
            one.process.kill()
    rows = compared(times)
    for row in rows:
        say(f"{row['case']:<34} {row['old_us']:>10} {row['new_us']:>10} us  {row['ratio']:.3f}")
    about = {
        "rounds": given.rounds * given.pairs,
        "pairs": given.pairs,
        "builds": dict(zip(("old", "new"), given.names.split(","), strict=True)),
    }
    given.json.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
