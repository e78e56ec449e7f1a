"""Plants faults, one after the other, and asks the default run of the tests whether it notices each.

    python tools/plant_faults.py                    the faults in Python
    python tools/plant_faults.py --build "COMMAND"  those in C++, too: the command builds the native module of this tree

A fault is one line of the library written otherwise (``tools/faults.toml``). The tests of the room that it is in are run until
one fails; a fault that no test notices ends with exit status 1. Files are put back as they were, and after faults in C++ the
module is built once more.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Fault(NamedTuple):
    """``old`` in ``file`` becomes ``new``; ``tests`` are those of its room."""

    what: str
    file: str
    old: str
    new: str
    tests: str

    @property
    def native(self) -> bool:
        return self.file.startswith("csrc/")


FAULTS = tuple(Fault(**one) for one in tomllib.loads((ROOT / "tools/faults.toml").read_text(encoding="utf-8"))["fault"])


def noticed(fault: Fault, build: str) -> tuple[bool, str]:
    """Whether a test failed, and its name."""
    file = ROOT / fault.file
    text = file.read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        raise SystemExit(f"{fault.what}: {fault.file} has its line {text.count(fault.old)} times, not once")
    file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        if fault.native:
            subprocess.run(build, shell=True, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *fault.tests.split()]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        file.write_text(text, encoding="utf-8")
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode == 1 and bool(failed), failed[0] if failed else done.stdout[-300:]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--build", default="", help="a command that builds the native module of this tree")
    parser.add_argument("--only", default="", help="a part of the name of the file: faults there")
    asked = parser.parse_args()
    missed = 0
    for fault in (one for one in FAULTS if asked.only in one.file and (asked.build or not one.native)):
        start = time.monotonic()
        seen, said = noticed(fault, asked.build)
        missed += not seen
        sys.stdout.write(f"{'noticed' if seen else 'MISSED'}  {fault.what}: {said} ({time.monotonic() - start:.0f} s)\n")
        sys.stdout.flush()
    if asked.build:
        subprocess.run(asked.build, shell=True, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
