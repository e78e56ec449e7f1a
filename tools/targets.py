"""Compiles for the systems that are not at hand, by Zig's Clang, which brings their headers and libraries.

    pip install ziglang
    python tools/targets.py --x86 BUILD --arm BUILD --json targets.json [--targets x86_64-linux-musl,...]

BUILD: folders of CMake builds of this tree for Linux, whose ``compile_commands.json`` say which flags each file takes. All
sources but csrc/bind, which wants the target's Python, are compiled for each target. What this machine can run, natively or
under QEMU, is linked with tests/native into the target's ``kernel_check``, every kernel against the reference, to the bit,
and run; the rest is only looked at by the compiler, without optimisation.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGETS: dict[str, list[str] | None] = {  # and what runs its programs here
    "x86_64-linux-musl": [],
    "aarch64-linux-musl": ["qemu-aarch64", "-cpu", "max"],
    "aarch64-macos": None,
    "x86_64-macos": None,
    "x86_64-windows-gnu": None,
    "aarch64-windows-gnu": None,
}
KEPT = re.compile(r"-(std=|O\d|m|f|W|DHEADLONG)")  # of a command's words
OTHERWISE = ["-Wno-unknown-warning-option", "-Wno-unused-command-line-argument"]  # flags of GCC's alone


def commands(build: Path) -> dict[Path, list[str]]:
    """Flags of every file that knows nothing of Python, and of the check of kernels."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["file"])
        inside = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
        if inside.startswith(("csrc/", "tests/native/")) and "/bind/" not in inside and "evex" not in inside:
            words = shlex.split(entry["command"])
            found[path] = [word for word in words if KEPT.match(word) and not word.startswith("-DHEADLONG_EVEX")]
    if not found:
        raise SystemExit(f"{build}: no commands for files of {ROOT}; configure this tree with -DHEADLONG_KERNEL_CHECK=ON")
    return found


def compiled(target: str, build: Path, folder: Path) -> tuple[list[str], int]:
    """The objects, and how many warnings were said."""
    objects, refused, warnings = list[str](), list[str](), 0
    for number, (path, flags) in enumerate(commands(build).items()):
        made_of = folder / f"{number}.o"
        if TARGETS[target] is None:
            flags = [flag for flag in flags if not flag.startswith("-O")]
        flags = [flag.replace("-march=armv8.2-a", "-mcpu=generic+v8_2a") for flag in flags]  # Zig's way to say it
        given = [*flags, *OTHERWISE, f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests'}"]
        done = zig(target, *given, "-c", str(path), "-o", str(made_of))
        if done.stderr:
            sys.stdout.write(f"{target}: {path.name}\n{done.stderr[:3000]}\n")
        warnings += len(re.findall(r"\bwarning:", done.stderr))
        refused += [path.name] if done.returncode else []
        objects.append(str(made_of))
    if refused:
        raise SystemExit(f"{target}: {', '.join(refused)} did not compile")
    return objects, warnings


def zig(target: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ziglang", "c++", "-target", target, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def check(target: str, build: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        objects, warnings = compiled(target, build, Path(folder))
        row: dict[str, Any] = {"target": target, "files": len(objects), "warnings": warnings, "ran": []}
        runner = TARGETS[target]
        if runner is not None:
            program = Path(folder) / "kernel_check"
            linked = zig(target, "-O3", "-static", *objects, "-o", str(program))
            if linked.returncode:
                raise SystemExit(f"{target}: does not link\n{linked.stderr[:3000]}")
            done = subprocess.run([*runner, str(program), "3"], capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{target}: kernel_check says\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            row["ran"] = re.findall(r"^(\w+) +against portable", done.stdout, re.MULTILINE)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--x86", type=Path, required=True)
    parser.add_argument("--arm", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--targets", default=",".join(TARGETS))
    given = parser.parse_args()
    for target in given.targets.split(","):
        row = check(target, given.x86 if target.startswith("x86") else given.arm)
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
        if given.json:
            rows = json.loads(given.json.read_text())["rows"] if given.json.exists() else []
            rows = [one for one in rows if one["target"] != target] + [row]
            rows.sort(key=lambda one: list(TARGETS).index(one["target"]))
            version = subprocess.run([sys.executable, "-m", "ziglang", "version"], capture_output=True, text=True, check=True)
            given.json.write_text(json.dumps({"zig": version.stdout.strip(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
