"""Two builds of headlong beside each other: the same calls in turns, one process each, on every level that both have.

    python benchmarks/kernels/x86_speeds.py OLD/src NEW/src LAYER --hidden FILE:TENSOR results/x86-speeds.json

OLD, NEW: trees with their native modules built in place. Every round asks one process and then the other for the same call,
the order changing from round to round, and a pair's figure for a case is the median over rounds of NEW's time over OLD's. Two
processes of one build differ, too, by the memory pages that each got: so there are several pairs, and the median over them
counts. With --more, the pairs join those of the record: a machine is rarely quiet for long.
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


def cases(levels: str, layer_file: str, hidden_file: str) -> dict[str, Callable[[], Any]]:
    """Calls by name; runs in a child, where `headlong` is one of the two."""
    import numpy as np

    import headlong as hl
    from headlong.store import open_file

    path, tensor = hidden_file.rsplit(":", 1)
    hidden = np.asarray(open_file(path).read(tensor)[:4096], np.float32)
    layer, found = hl.Layer.load(layer_file, weight="weight"), dict[str, Callable[[], Any]]()
    for level in levels.split(","):
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


def serve(levels: str, layer: str, hidden: str) -> None:
    """A child: names of the cases, then a line of seconds a call for each line that names one."""
    calls = cases(levels, layer, hidden)
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


def timed(both: tuple[Child, Child], rounds: int) -> Times:
    """What a pair of processes takes for every call, round by round; the first round warms up."""
    times: Times = {}
    for turn in range(rounds + 1):
        for name in both[0].names:
            for which in (0, 1) if turn % 2 else (1, 0):
                took = both[which].seconds(name)
                if turn:
                    times.setdefault(name, ([], []))[which].append(took)
    return times


def joined(rows: list[dict[str, Any]], times: Times) -> list[dict[str, Any]]:
    """The record's rows with one pair of processes more."""
    before = {row["case"]: row for row in rows}
    after = []
    for name, (old, new) in times.items():
        row = before.get(name, {"old_us": float("inf"), "new_us": float("inf"), "pairs": []})
        ratio = statistics.median(b / a for a, b in zip(old, new, strict=True))
        pairs = [*row["pairs"], round(ratio, 4)]
        least = {key: min(row[key], round(min(found) * 1e6, 1)) for key, found in (("old_us", old), ("new_us", new))}
        after.append({"case": name, **least, "ratio": round(statistics.median(pairs), 4), "pairs": pairs})
    return after


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
    parser.add_argument("--levels", default="avx2,avx512vnni", help="that this machine has")
    parser.add_argument("--names", default="old,new", help="how the record calls the two")
    parser.add_argument("--more", action="store_true", help="add to the pairs of the record")
    given = parser.parse_args()
    rows = json.loads(given.json.read_text())["rows"] if given.more else []
    for _ in range(given.pairs):
        arguments = [given.levels, given.layer, given.hidden]
        both = Child(given.old, arguments), Child(given.new, arguments)
        rows = joined(rows, timed(both, given.rounds))
        for one in both:
            one.process.kill()
    for row in rows:
        say(f"{row['case']:<34} {row['old_us']:>10} {row['new_us']:>10} us  {row['ratio']:.3f}  {row['pairs']}")
    about = {
        "rounds": given.rounds,
        "pairs": len(rows[0]["pairs"]),
        "builds": dict(zip(("old", "new"), given.names.split(","), strict=True)),
    }
    given.json.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
