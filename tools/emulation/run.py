"""Runs the tests of engines, kernels and files on each AArch64 level under emulation, and goes on where it was cut short.

    python tools/emulation/run.py results/emulated.json                                   all of it; hours
    python tools/emulation/run.py results/emulated.json --suites int8,svd --seconds 200   these alone, and no longer

Each level has a processor of its own, on which it is the best there is: what runs is that level. Tests that ended are
written down one by one in the cache folder, by a checksum of the native sources they ran on, and the record counts them. A
suite is whole once all have ended.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "arm.sh"
CACHE = Path(os.environ.get("HEADLONG_ARM_CACHE", Path.home() / ".cache" / "headlong-arm")) / "ended"


class Level(NamedTuple):
    processor: str  # of QEMU
    expected: str


LEVELS = {
    "neon": Level("cortex-a72", "neon"),
    "dotprod": Level("neoverse-n1", "neon,dotprod"),
    "i8mm": Level("max", "neon,dotprod,i8mm"),
}
# Short ones first. A suite is every tests/**/test_NAME.py.
SUITES = (
    "levels", "int8", "oracle", "saved", "contract", "batches", "masks", "nucleus", "promise", "svd", "store", "compile",
    "fuzz", "encode", "few_bits", "blocks", "changed", "kernels", "storm", "prefix", "engines", "reference", "adaptive",
)  # fmt: skip
LEFT_OUT = {  # an emulated program cannot start another of its kind
    "store": "not killed",
    "saved": "not process and not killed",
}
STORM = """import sys
sys.path[:0] = ["tests/storm", "tests/helpers"]
import storm
storm.PROCESSOR, storm.WALL = 3600, 7200  # emulation is slow, and no case may be cut off for that
sys.exit(storm.main())"""
STORM_CASES = 25


def sources() -> str:
    """A checksum of what the tests run on."""
    whole = hashlib.sha256()
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix in (".cpp", ".h", ".inl"):
            whole.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return whole.hexdigest()[:12]


def call(command: list[str], given: dict[str, str], seconds: float) -> tuple[int | None, str]:
    """The status, None where time ran out, and what was said."""
    out, here = subprocess.PIPE, os.environ | given
    process = subprocess.Popen(
        command, cwd=ROOT, env=here, stdout=out, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        text, _ = process.communicate(timeout=max(1.0, seconds))
        return process.returncode, text
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return None, ""


def tests(suite: str, level: Level, ended: Path, seconds: float) -> tuple[int | None, str]:
    files = sorted(map(str, (ROOT / "tests").rglob(f"test_{suite}.py")))
    if not files:
        raise SystemExit(f"tests/ has no test_{suite}.py")
    given = {"HEADLONG_ARM_CPU": level.processor, "HEADLONG_EXPECT": level.expected, "HEADLONG_ENDED": str(ended),
             "HEADLONG_ARM_PATH": str(Path(__file__).parent)}  # fmt: skip
    left_out = ["-k", LEFT_OUT[suite]] if suite in LEFT_OUT else []
    return call([str(SCRIPT), "test", "-p", "resume", *files, *left_out], given, seconds)


def storm(level: Level, ended: Path, seconds: float) -> tuple[int | None, str]:
    """Case after case, each an ended test."""
    record, text = ended.with_suffix(".storm.json"), ""
    first = json.loads(record.read_text())["next"] if record.exists() else 0
    end = time.monotonic() + seconds
    for number in range(first, STORM_CASES):
        command = [str(SCRIPT), "python", "-c", STORM, "--cases", "1", "--json", str(record)]
        start = time.monotonic()
        status, text = call(command, {"HEADLONG_ARM_CPU": level.processor}, end - start)
        if status is None:
            return None, text
        with ended.open("a") as file:
            took, how = round(time.monotonic() - start, 1), "failed" if status else "passed"
            file.write(json.dumps({"test": f"case {number}", "ended": how, "seconds": took}) + "\n")
    return 0, text


def counted(ended: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in ended.read_text().splitlines()] if ended.exists() else []
    last = {line["test"]: line for line in lines}
    counts = Counter(line["ended"] for line in last.values())
    seconds = round(sum(line["seconds"] for line in last.values()))
    return {**{word: counts[word] for word in ("passed", "failed", "skipped")}, "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path)
    parser.add_argument("--suites", default=",".join(SUITES))
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--seconds", type=float, default=1e9)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(given.json.read_text())["rows"] if given.json.exists() else []
    now, end = sources(), time.monotonic() + given.seconds
    folder = CACHE / now
    folder.mkdir(parents=True, exist_ok=True)
    for suite in given.suites.split(","):
        for name in given.levels.split(","):
            before = [row for row in rows if (row["suite"], row["level"]) == (suite, name)]
            if any(row["sources"] == now and row["whole"] and not row["failed"] for row in before) or time.monotonic() > end:
                continue
            ended, left = folder / f"{suite}-{name}.jsonl", end - time.monotonic()
            status, text = storm(LEVELS[name], ended, left) if suite == "storm" else tests(suite, LEVELS[name], ended, left)
            (folder / f"{suite}-{name}.log").write_text(text)
            counts = counted(ended)
            whole = status in (0, 1, 5)  # 5: nothing was left to run
            row = {"suite": suite, "level": name, "processor": LEVELS[name].processor, **counts, "whole": whole, "sources": now}
            sys.stdout.write(json.dumps(row) + ("" if whole or status is None else f" status {status}: {text[-600:]}") + "\n")
            sys.stdout.flush()
            rows = [kept for kept in rows if kept not in before] + [row]
            rows.sort(key=lambda one: (SUITES.index(one["suite"]), list(LEVELS).index(one["level"])))
            given.json.write_text(json.dumps({"emulator": emulator(), "rows": rows}, indent=1) + "\n")
    return int(any(row["failed"] for row in rows))


def emulator() -> str:
    said = subprocess.run(["qemu-aarch64", "--version"], capture_output=True, text=True, check=True).stdout
    return re.sub(r"\s*\(.*", "", said.splitlines()[0])


if __name__ == "__main__":
    sys.exit(main())
