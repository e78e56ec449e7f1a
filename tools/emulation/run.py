"""Runs the tests of engines, kernels and files on each AArch64 level under emulation, and goes on where it was cut short.

    python tools/emulation/run.py emulated.json                                   all of it; hours
    python tools/emulation/run.py emulated.json --suites int8,svd --seconds 200   these alone, and no longer
    python tools/emulation/run.py emulated.json --levels neon                     one level; another may run beside it

Each level has a processor of its own, on which it is the best there is: what runs is that level. Tests that ended are
written down one by one in the cache folder, by a checksum of the sources they ran on, and the record counts them. A suite is
whole once all have ended. Each commit has rows of its own.
"""

from __future__ import annotations

import argparse
import fcntl
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
# What answers rest on first: "engines" holds every engine against float64, by helpers that "oracle" tests. A suite is every
# tests/**/test_NAME.py, but for "answers", which is tools/emulation/answers.py, and "storm", the first cases of the storm that
# are no larger than STORM_LARGEST.
SUITES = (
    "contract", "engines", "oracle", "promise", "saved", "store", "damage", "answers", "levels", "kernels", "few_bits",
    "largest_sums", "encode", "int8", "svd", "storm", "promise_adversarial", "promise_kinds", "nucleus", "batches", "masks",
    "compile", "fuzz", "blocks", "block_draws", "draws", "direct", "changed", "prefix", "reference", "adaptive",
)  # fmt: skip
STORM_CASES, STORM_LARGEST = 25, 100_000  # numbers of a layer: emulation is slow
STORM = f"""import itertools, sys
sys.path[:0] = ["tests/storm", "tests/helpers"]
import storm
from headlong.previews.blocks import rays
rays.ROUNDS = 1  # as resume.py says
storm.PROCESSOR, storm.WALL = 3600, 7200  # emulation is slow, and no case may be cut off for that
draw = storm.draw
small = (case for case in map(draw, itertools.count()) if case.vocab * case.dim <= {STORM_LARGEST})
storm.draw = list(itertools.islice(small, {STORM_CASES})).__getitem__
add = storm.Record.add
storm.Record.add = lambda record, *came: (add(record, *came), record.write())  # whenever it is cut short
sys.exit(storm.main())"""


def sources() -> str:
    """A checksum of what the tests run on."""
    whole = hashlib.sha256()
    for path in sorted([*(ROOT / "csrc").rglob("*"), *(ROOT / "src").rglob("*.py")]):
        if path.suffix in (".cpp", ".h", ".inl", ".py"):
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


def tests(suites: list[str], level: str, folder: Path, seconds: float) -> tuple[int | None, str]:
    """All in one process: what tests import takes longer to be loaded than many a suite to run."""
    files = []
    for suite in suites:
        found = sorted(map(str, (ROOT / "tests").rglob(f"test_{suite}.py")))
        if not found:
            raise SystemExit(f"tests/ has no test_{suite}.py")
        files += found
    given = {"HEADLONG_ARM_CPU": LEVELS[level].processor, "HEADLONG_EXPECT": LEVELS[level].expected,
             "HEADLONG_ENDED": str(folder), "HEADLONG_ENDED_LEVEL": level,
             "HEADLONG_ARM_PATH": str(Path(__file__).parent)}  # fmt: skip
    patience = ["--timeout", "14400"]  # beside other work
    return call([str(SCRIPT), "test", "-p", "resume", *patience, *files], given, seconds)


def storm(level: str, ended: Path, seconds: float) -> tuple[int | None, str]:
    """Case after case, each an ended test."""
    record = ended.with_suffix(".storm.json")

    def kept() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {"next": 0, "seconds": 0.0}
        return found

    before = kept()
    left = ["--cases", str(max(0, STORM_CASES - before["next"])), "--json", str(record)]
    status, text = call([str(SCRIPT), "python", "-c", STORM, *left], {"HEADLONG_ARM_CPU": LEVELS[level].processor}, seconds)
    after, first = kept(), len(ended.read_text().splitlines()) if ended.exists() else 0  # whoever was killed wrote no lines
    troubled = {one["number"] for one in after.get("trouble", ())}
    took = after["seconds"] / max(1, after["next"])
    for number in range(first, after["next"]):
        how = "failed" if number in troubled else "passed"
        with ended.open("a") as file:
            file.write(json.dumps({"test": f"case {number}", "ended": how, "seconds": round(took, 1)}) + "\n")
    return 0 if after["next"] >= STORM_CASES else status, text


def answered_here(script: Path, folder: Path) -> tuple[int | None, str]:
    """The best level of this machine writes its answers, and every other one has to give the same."""
    here = {"PYTHONPATH": str(ROOT / "src")}
    status, said = call([sys.executable, "-c", "from headlong import native; print(*native.levels()[1:])"], here, 60)
    for number, isa in enumerate(reversed(said.split()) if status == 0 else ()):
        what = ["compare" if number else "write", str(folder)]
        status, said = call([sys.executable, str(script), *what], here | {"HEADLONG_ISA": isa}, 900)
        if status != 0:
            return status, f"{isa}: {said}"
    return status, said


def answers(level: str, ended: Path, seconds: float) -> tuple[int | None, str]:
    """Engines that this machine saves and asks, asked again; each is an ended test."""
    folder, script = ended.parent / "answers", Path(__file__).with_name("answers.py")
    if not (folder / "done").exists():
        status, text = answered_here(script, folder)
        if status != 0:
            return status, text
        (folder / "done").touch()
    given = {"HEADLONG_ARM_CPU": LEVELS[level].processor}
    return call([str(SCRIPT), "python", str(script), "compare", str(folder), "--ended", str(ended)], given, seconds)


def commit() -> str:
    """Of the sources that are tested, marked where the tree differs from it."""
    parts = ["csrc", "src", "tests"]
    said = [subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for command in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", *parts])]  # fmt: skip
    return said[0] + "+" * bool(said[1])


def counted(ended: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in ended.read_text().splitlines()] if ended.exists() else []
    last = {line["test"]: line for line in lines}
    counts = Counter(line["ended"] for line in last.values())
    seconds = round(sum(line["seconds"] for line in last.values()))
    return {**{word: counts[word] for word in ("passed", "failed", "skipped")}, "seconds": seconds}


def expected(suite: str, ended: Path) -> int:
    """How many tests the suite has, as far as is known."""
    if suite == "storm":
        return STORM_CASES
    if suite == "answers":
        return sum(1 for _ in (ended.parent / "answers").glob("*/"))
    known = ended.with_suffix(".tests")
    return int(known.read_text()) if known.exists() else 0


def read(file: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    return rows


def write(file: Path, row: dict[str, Any]) -> None:
    """Puts a row in the place of the one before; runs of other levels write to the same record."""
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        key = ("suite", "level", "commit")
        rows = [kept for kept in read(file) if any(kept[name] != row[name] for name in key)] + [row]
        rows.sort(key=lambda one: (SUITES.index(one["suite"]), one["commit"], list(LEVELS).index(one["level"])))
        file.write_text(json.dumps({"emulator": emulator(), "rows": rows}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path)
    parser.add_argument("--suites", default=",".join(SUITES))
    parser.add_argument("--levels", default=",".join(LEVELS))
    parser.add_argument("--seconds", type=float, default=1e6)
    given = parser.parse_args()
    now, end = sources(), time.monotonic() + given.seconds
    (CACHE / now).mkdir(parents=True, exist_ok=True)
    for level in given.levels.split(","):
        whole = {row["suite"] for row in read(given.json)
                 if (row["level"], row["sources"]) == (level, now) and row["whole"] and not row["failed"]}  # fmt: skip
        run([suite for suite in given.suites.split(",") if suite not in whole], level, given.json, end)
    return int(any(row["failed"] for row in read(given.json)))


def run(suites: list[str], level: str, record: Path, end: float) -> None:
    """One process for all suites of tests, one each for the others, while there is time."""
    own, now = {"storm": storm, "answers": answers}, sources()
    groups = [["answers"], [suite for suite in suites if suite not in own], ["storm"]]
    for group in groups:
        if not group or not set(group) <= set(suites):
            continue
        left, ended = end - time.monotonic(), CACHE / now / f"{group[0]}-{level}.jsonl"
        if left < 0:
            return
        special = own.get(group[0])
        status, text = special(level, ended, left) if special else tests(group, level, ended.parent, left)
        ended.with_suffix(".log").write_text(text)
        if status not in (0, None):
            sys.stdout.write(f"{', '.join(group)} on {level}: status {status}: {text[-1500:]}\n")
        for suite in group:
            ended = CACHE / now / f"{suite}-{level}.jsonl"
            counts = counted(ended)
            row = {"suite": suite, "level": level, "processor": LEVELS[level].processor, **counts}
            row |= {"sources": now, "commit": commit()}
            row["whole"] = 0 < expected(suite, ended) <= sum(counts[word] for word in ("passed", "failed", "skipped"))
            if row["whole"] or any(counts.values()):
                sys.stdout.write(json.dumps(row) + "\n")
                write(record, row)
        sys.stdout.flush()


def emulator() -> str:
    said = subprocess.run(["qemu-aarch64", "--version"], capture_output=True, text=True, check=True).stdout
    return re.sub(r"\s*\(.*", "", said.splitlines()[0])


if __name__ == "__main__":
    sys.exit(main())
