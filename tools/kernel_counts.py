"""Counts the instructions of every kind of kernel as they are run under QEMU: set-up, loops and ends of a whole call.

    python tools/kernel_counts.py --x86 BUILD --arm "$(tools/arm.sh where)" --root ROOT --json results/kernel-counts.json

BUILD: folders of CMake builds with -DHEADLONG_KERNEL_CHECK=ON, which makes kernel_counts (tests/native/kernel_counts.cpp).
ROOT: arm64's libraries. QEMU logs the address of each instruction that it runs; what lies between two calls of the mark is a
kernel's. QEMU 7.2 knows AVX2, but neither AVX-VNNI nor AVX-512, so these are not here. Instructions say nothing of time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ARM = ("neon", "dotprod", "i8mm")
STARTS = re.compile(rb"^Trace [^[]*\[[0-9a-f]*/([0-9a-f]+)/")


def run(command: list[str]) -> tuple[str, list[int]]:
    """What the program says, and how many instructions it ran before the first mark, from there to the second, and so on."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        os.mkfifo(log)
        emulator, *rest = command
        asked = [emulator, "-singlestep", "-d", "nochain,exec", "-D", str(log), *rest]
        process = subprocess.Popen(asked, stdout=subprocess.PIPE, text=True)
        every: dict[bytes, int] = {}
        with log.open("rb") as lines:  # the address of the mark is known at the end
            places = [every.setdefault(found[1], len(every)) for found in map(STARTS.match, lines) if found]
        said = process.communicate()[0]
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(asked)}: status {process.returncode}")
    mark = every.get(b"%016x" % int(said.split("\n", 1)[0], 16))
    marks = [at for at, place in enumerate(places) if place == mark]
    return said, [after - before for before, after in zip([0, *marks], marks, strict=False)]


def count(command: list[str], level: str) -> list[dict[str, Any]]:
    said, between = run([*command, level])
    lines = [line.split("\t") for line in said.splitlines()[1:]]
    kernels = between[1::2]
    if len(kernels) != len(lines):
        raise SystemExit(f"{level}: {len(lines)} calls and {len(kernels)} counts")
    rows = []
    for (what, each, many, read), n in zip(lines, kernels, strict=True):
        share = {"instructions": round(n / int(many), 3), "bytes": round(int(read) / int(many), 3)}
        rows.append({"level": level, "kernel": what, "each": each, **share})
    return rows


def commit() -> str:
    """Of the sources that are counted, marked where the tree differs from it."""
    said = [subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for command in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", "csrc"])]  # fmt: skip
    return said[0] + "+" * bool(said[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--x86", type=Path)
    parser.add_argument("--arm", type=Path)
    parser.add_argument("--root", type=Path, help="arm64's libraries")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if given.x86:
        rows += count(["qemu-x86_64", "-cpu", "max", str(given.x86 / "kernel_counts")], "avx2")
    for level in ARM if given.arm else ():
        rows += count(["qemu-aarch64", "-cpu", "max", "-L", str(given.root), str(given.arm / "kernel_counts")], level)
    for row in rows:
        counted = f"{row['instructions']:>10.2f} instructions{row['bytes']:>9.2f} bytes for each {row['each']}"
        sys.stdout.write(f"{row['level']:<9}{counted}: {row['kernel']}\n")
    if given.json:
        version = subprocess.run(["qemu-aarch64", "--version"], check=True, capture_output=True, text=True).stdout
        record = {"emulator": re.sub(r"\s*\(.*", "", version.splitlines()[0]), "commit": commit(), "rows": rows}
        given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
