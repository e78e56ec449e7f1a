"""Writes down a wheel that was built and tested here: its name, its bytes, where it ran, and what pytest counted.

    python tools/wheels.py wheels.json WHEEL "where its tests ran" LOG [LOG ...]

tools/arm.sh and tools/wheel_without_containers.sh call it once every test has ended; LOG is what pytest printed. A record
without a single passed test, or with one that failed, is refused. The row takes the place of the one for the same interpreter
and processor.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORDS = ("passed", "failed", "error", "skipped")


def counted(log: str) -> dict[str, int]:
    """Of pytest's last line: how many tests ended how."""
    summaries = [line for line in log.splitlines() if re.search(r"\b(passed|failed|errors?)\b.* in \d", line)]
    if not summaries:
        raise SystemExit("no line of pytest says how its tests ended")
    return {word: sum(map(int, re.findall(rf"(\d+) {word}", summaries[-1]))) for word in WORDS}


def kept_apart(name: str) -> tuple[str, ...]:
    """``headlong-0.1.0-cp311-cp311-manylinux_2_35_aarch64.whl``: interpreter, and processor with its C library"""
    _, _, python, _, platform = name.removesuffix(".whl").split("-")
    library, processor = re.findall(r"(manylinux|musllinux|linux|win|macosx)\w*?_(x86_64|aarch64|arm64|amd64)", platform)[0]
    return python, library, processor


def commit() -> str:
    """Of the sources that the wheel is of, marked where the tree differs from it."""
    said = [subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for command in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", "csrc", "src"])]  # fmt: skip
    return said[0] + "+" * bool(said[1])


def main() -> None:
    if len(sys.argv) < 5:
        raise SystemExit(__doc__)
    file, wheel, where = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    counts = [counted(Path(log).read_text()) for log in sys.argv[4:]]
    total = {word: sum(one[word] for one in counts) for word in WORDS}
    if not total["passed"] or total["failed"] or total["error"]:
        raise SystemExit(f"{wheel.name}: {total}: only a wheel whose tests passed is written down")
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    row = {"wheel": wheel.name, "bytes": wheel.stat().st_size, "commit": commit(), "ran on": where,
           "passed": total["passed"], "skipped": total["skipped"]}  # fmt: skip
    rows = [one for one in rows if kept_apart(one["wheel"]) != kept_apart(wheel.name)] + [row]
    rows.sort(key=lambda one: str(one["wheel"]))
    file.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
