"""A storm of random layers and calls, each case in a process with limits on time and memory; its record goes on where it ended.

::

    python tests/storm/storm.py --cases 2000 --json storm.json      (`just storm 2000`)

A case that ends by a signal is an abort, one that uses up its processor time a hang; what is proved and wrong is a fault.
How often answers broke what was promised of them is compared with the promise: a storm fails where Clopper and Pearson's
lower end of a rate, at 1e-6, lies above what was promised.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import select
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "helpers")]

from cases import draw  # noqa: E402
from checks import run  # noqa: E402

import headlong as hl  # noqa: E402

PROCESSOR, WALL, MEMORY = 90, 900, 6 << 30
"""Seconds of processor time, seconds by the clock (the machine may be busy), bytes of address space: of one case."""
SURE = 1e-6
SANITIZED = "san.so" in os.environ.get("LD_PRELOAD", "")
"""A sanitizer needs terabytes of addresses and many times the time."""


class Running:
    """A case in a child of this process, forked from its only thread: a lock that another one held would stay held there."""

    def __init__(self, number: int) -> None:
        self.number, self.text, self.end = number, b"", time.monotonic() + WALL
        self.reader, writer = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.close(self.reader)
            _child(number, writer)
        os.close(writer)

    def read(self) -> bool:
        """Whether all that the child has to say has come."""
        piece = os.read(self.reader, 1 << 16)
        self.text += piece
        return not piece

    def came(self) -> dict[str, Any]:
        """What came of the case; a child that is not done by now never will be."""
        os.close(self.reader)
        if time.monotonic() >= self.end:
            os.kill(self.child, signal.SIGKILL)
        _, status, usage = os.wait4(self.child, 0)
        spent = {"seconds": round(usage.ru_utime + usage.ru_stime, 3), "megabytes": usage.ru_maxrss >> 10}
        if os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            return spent | {"ended": "hang" if name in ("SIGXCPU", "SIGKILL") else "abort", "by": name}
        if not self.text:
            return spent | {"ended": "abort", "by": f"exit {os.waitstatus_to_exitcode(status)}"}
        return spent | json.loads(self.text)


def _child(number: int, writer: int) -> None:
    if not SANITIZED:
        resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        found = run(draw(number))
        said: dict[str, Any] = {
            "ended": "well", "rows": found.rows, "faults": found.faults, "refused": found.refused, "chances": found.chances,
            "trials": found.trials, "failures": found.failures, "ratio": found.ratio,
        }  # fmt: skip
    except BaseException as error:
        said = {"ended": "raised", "by": _where(error)}
    with os.fdopen(writer, "w") as pipe:
        json.dump(said, pipe)
    os._exit(0)


def _where(error: BaseException) -> str:
    """The error and the calls that led to it, files without their folders: a record names no machine."""
    calls = [f"{Path(call.filename).name}:{call.lineno} {call.name}" for call in traceback.extract_tb(error.__traceback__)]
    return f"{type(error).__name__}: {error} ({' > '.join(calls)})"[:1500]


def in_turn(numbers: Iterable[int], jobs: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """``(number, what came of it)`` in the order of the numbers, so that a record is whole up to its last; ``jobs`` at once."""
    left, running, done = iter(numbers), deque[Running](), {}
    while True:
        while len(running) < 4 * jobs and len(running) - len(done) < jobs and (number := next(left, None)) is not None:
            running.append(Running(number))
        if not running:
            return
        busy = [one for one in running if one.number not in done]
        ready = select.select([one.reader for one in busy], [], [], 1.0)[0]
        for one in busy:
            if time.monotonic() >= one.end or (one.reader in ready and one.read()):
                done[one.number] = one.came()
        while running and running[0].number in done:
            number = running.popleft().number
            yield number, done.pop(number)


class Record:
    """The storm so far, as it is kept in a file."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.data: dict[str, Any] = {
            "next": 0, "cases": 0, "rows": 0, "seconds": 0.0, "most megabytes": 0, "ended": {}, "refused": {}, "methods": {},
            "trials": {}, "failures": {}, "chi-square": {"tests": 0, "least": 1.0}, "batches": {"measured": 0, "worst": []},
            "trouble": [],
        }  # fmt: skip
        if path is not None and path.exists():
            self.data = json.loads(path.read_text())

    def add(self, number: int, came: dict[str, Any]) -> None:
        data, case = self.data, draw(number)
        data["next"], data["cases"] = number + 1, data["cases"] + 1
        data["seconds"] = round(data["seconds"] + came["seconds"], 3)
        data["most megabytes"] = max(data["most megabytes"], came["megabytes"])
        _count(data["ended"], {came["ended"]: 1})
        _count(data["methods"], {case.method: 1})
        if came["ended"] != "well":
            data["trouble"].append({"number": number, "ended": came["ended"], "by": came["by"], "case": asdict(case)})
            return
        data["rows"] += came["rows"]
        if came["refused"]:
            _count(data["refused"], {came["refused"].split(":")[0]: 1})
        if came["faults"]:
            data["trouble"].append({"number": number, "ended": "fault", "by": came["faults"][:5], "case": asdict(case)})
        _count(data["trials"], came["trials"])
        _count(data["failures"], came["failures"])
        data["chi-square"]["tests"] += len(came["chances"])
        data["chi-square"]["least"] = min([data["chi-square"]["least"], *came["chances"]])
        if came["ratio"] is not None:
            worst = data["batches"]["worst"]
            data["batches"]["measured"] += 1
            worst.append({"ratio": round(came["ratio"], 3)} | asdict(case))
            data["batches"]["worst"] = sorted(worst, key=lambda one: -one["ratio"])[:12]

    def broken(self) -> list[str]:
        """Promises that failed more often than they may."""
        from scipy.stats import beta

        found = []
        for kind, trials in self.data["trials"].items():
            failures, words = self.data["failures"].get(kind, 0), kind.split()
            lower = float(beta.ppf(SURE, failures, trials - failures + 1)) if failures else 0.0
            if lower > float(words[-1]):
                found.append(f"{kind}: {failures} of {trials}")
        return found

    def write(self) -> None:
        if self.path is not None:
            about = {"version": hl.__version__, "machine": platform.machine(), "python": platform.python_version(),
                     "limits": {"seconds": PROCESSOR, "gibibytes": MEMORY >> 30}, "promises broken": self.broken()}  # fmt: skip
            self.path.write_text(json.dumps(about | self.data | {k: about[k] for k in about}, indent=1) + "\n")


def _count(to: dict[str, int], more: dict[str, int]) -> None:
    for name, number in more.items():
        to[name] = to.get(name, 0) + number


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=1e9, help="by the clock")
    parser.add_argument("--first", type=int, help="the first case's number; default: where the record ended")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    record, end = Record(given.json), time.monotonic() + given.seconds
    first, before = given.first if given.first is not None else record.data["next"], len(record.data["trouble"])
    numbers = itertools.takewhile(lambda _: time.monotonic() < end, range(first, first + given.cases))
    for number, came in in_turn(numbers, given.jobs):
        record.add(number, came)
        for trouble in record.data["trouble"][before:]:
            print(json.dumps(trouble), flush=True)
        before = len(record.data["trouble"])
        if number % 20 == 0:
            record.write()
    record.write()
    broken = record.broken()
    said = record.data
    print(f"{said['cases']} cases, {said['rows']} rows, ended {said['ended']}; promises broken: {broken or 'none'}")
    return 1 if record.data["trouble"] or broken else 0


if __name__ == "__main__":
    sys.exit(main())
