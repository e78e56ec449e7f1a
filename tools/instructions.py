"""Counts the instructions of the scans' inner loops: no time is claimed for a processor that nobody timed.

    python tools/instructions.py --x86 BUILD --arm BUILD --json results/instructions.json

BUILD: folders of CMake builds with ``compile_commands.json``. For each level and number of queries, a file that includes the
level's kernels and calls its scan with that number is compiled as CMake compiles the kernels, and the innermost loop that
multiplies bytes is read from its disassembly. A class of `dim` coordinates takes 2 * dim products a query (two planes); SDOT
makes 16 at once, and that count is what `of_sdot` measures the whole loop by.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

DIM = 512  # of the class that counts are given for
QUERIES = (1, 2, 4, 6, 8)
BITS = (8, 4, 2, 1)  # of the codes


class Level(NamedTuple):
    source: str
    scan: str  # the function of its table
    products: dict[str, int]  # made by one instruction, of those that multiply codes
    few: dict[str, int] | None = None  # of fewer than 8 bits, where others multiply those
    queries: tuple[int, ...] = QUERIES


LEVELS = {
    # Both planes of a query are one number of 16 bits there, so each of 16 products is two.
    "avx2": Level("avx2.cpp", "scan_u8", {"vpmaddwd": 32}, {"vpmaddubsw": 32}),
    "avxvnni": Level("avxvnni.cpp", "scan_u8", {"vpdpbusd": 32}),
    "avx512vnni": Level("avx512.cpp", "scan_u8", {"vpdpbusd": 64}),
    "neon": Level("neon.cpp", "scan_u8", {"smull": 8, "smull2": 8, "umull": 8, "umull2": 8}),
    "dotprod": Level("dotprod.cpp", "scan_u8", {"sdot": 16, "udot": 16}),
    "i8mm": Level("i8mm.cpp", "scan_pairs", {"usdot": 16, "usmmla": 32}),
    "usmmla": Level("i8mm.cpp", "by_usmmla", {"usmmla": 32}, queries=(1,)),  # what i8mm might do for one query, and does not
}
INCLUDED = """#include "kernels/{source}"
"""
BY_USMMLA = """namespace headlong {
void by_usmmla(const uint8_t* block, int64_t words, int bits, const int32_t*, const int8_t* planes, const int32_t* offset,
    const float* step, const float* scale, const float* base, const float* add, int, float* est, int64_t stride) {
    const auto few = bits == 4 ? pairs_across<4, 1, 4> : bits == 2 ? pairs_across<2, 1, 4> : pairs_across<1, 1, 4>;
    const auto scan = bits == 8 ? pairs_across<8, 1, 4> : few;
    scan(block, words, planes, offset, step, scale, base, add, est, stride);
}
}
"""
PROBE = """namespace headlong {{
__attribute__((flatten)) void probe_{bits}_{queries}(
    const uint8_t* block, int64_t words, const int32_t* sums, const int8_t* planes, const int32_t* offset, const float* step,
    const float* scale, const float* base, const float* add, float* est) {{
    {scan}(block, words, {bits}, sums, planes, offset, step, scale, base, add, {queries}, est, 64);
}}
}}
"""


class Loop(NamedTuple):
    instructions: int
    products: int


def command_of(build: Path, source: str) -> list[str]:
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"].endswith(f"csrc/kernels/{source}"):
            words = shlex.split(entry["command"])
            return [word for word in words[: words.index("-o")] if "ccache" not in word]
    raise SystemExit(f"{build}: no command compiles {source}; configure with -DCMAKE_EXPORT_COMPILE_COMMANDS=ON")


def disassembly(command: list[str], level: Level, folder: Path, build: Path) -> dict[str, str]:
    """Every function of the level and of its probes."""
    probe, made, linked = folder / "probe.cpp", folder / "probe.o", folder / "probe.so"
    asked = itertools.product(BITS, level.queries)
    probes = [PROBE.format(scan=level.scan, bits=bits, queries=n) for bits, n in asked]
    more = BY_USMMLA if level.scan == "by_usmmla" else ""
    probe.write_text(INCLUDED.format(source=level.source) + more + "".join(probes))
    subprocess.run([*command, "-o", str(made), "-c", str(probe)], check=True, cwd=build)
    subprocess.run([command[0], "-shared", "-nostdlib", "-o", str(linked), str(made)], check=True)  # calls get their targets
    objdump = re.sub(r"(g|c|clang)\+\+[-\d]*$", "objdump", command[0])
    text = subprocess.run([objdump, "-d", "--no-show-raw-insn", str(linked)], check=True, capture_output=True, text=True).stdout
    parts = re.split(r"(?m)^(?=[0-9a-f]+ <)", text)
    return {match[1]: part for part in parts if (match := re.match(r"[0-9a-f]+ <(.*?)>:", part))}


def reached(functions: dict[str, str], probe: str) -> list[str]:
    """The probe and what it calls."""
    todo, seen = [name for name in functions if probe in name], dict[str, str]()
    while todo:
        name = todo.pop()
        if name in functions and name not in seen:
            seen[name] = functions[name]
            todo += re.findall(r"\b(?:call|bl|b|jmp)\s+[0-9a-f]+ <([^>+]*)", functions[name])
    return list(seen.values())


def innermost(functions: list[str], products: dict[str, int]) -> list[Loop]:
    """The innermost loops that multiply codes."""
    loops = []
    for body in functions:
        lines = [(int(at, 16), what) for at, what in re.findall(r"^\s*([0-9a-f]+):\t(.*)$", body, re.MULTILINE)]
        spans = []
        for at, what in lines:
            jump = re.match(r"(?:b\S*|cbn?z|tbn?z|j\w+)\s.*?\b([0-9a-f]+) <", what)
            if jump and lines[0][0] <= int(jump[1], 16) < at:
                spans.append((int(jump[1], 16), at))
        for first, last in spans:
            if any(first <= low and high <= last and (low, high) != (first, last) for low, high in spans):
                continue
            inside = [what.removeprefix("{vex} ").split()[0] for at, what in lines if first <= at <= last]
            made = sum(products.get(name, 0) for name in inside)
            if made >= 64:
                loops.append(Loop(len(inside), made))
    return loops


def count(build: Path, name: str, folder: Path) -> list[dict[str, Any]]:
    level = LEVELS[name]
    command = command_of(build, level.source)
    functions, rows = disassembly(command, level, folder, build), []
    for bits, queries in itertools.product(BITS, level.queries):
        products = level.products if bits == 8 or level.few is None else level.few
        loops = innermost(reached(functions, f"probe_{bits}_{queries}E"), products)
        if not loops:
            raise SystemExit(f"{name}: no loop that multiplies {bits}-bit codes was found for {queries} queries")
        # the loop that runs most of the time is the one that makes the most products at once
        loop = max(loops, key=lambda one: (one.products, -one.instructions))
        each = loop.instructions / loop.products
        rows.append({
            "level": name, "bits": bits, "queries": queries, "instructions": loop.instructions, "products": loop.products,
            "of_sdot": round(16 * each, 3), "per_class_and_query": round(2 * DIM * each, 1),
            "bytes_per_class_and_query": round(DIM * bits / 8 / queries, 1),
        })  # fmt: skip
    return rows


def kept(file: Path | None, without: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """What the record says of other levels."""
    record = json.loads(file.read_text()) if file is not None and file.exists() else {"rows": [], "compilers": {}}
    return [row for row in record["rows"] if row["level"] != without], record["compilers"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--x86", type=Path)
    parser.add_argument("--arm", type=Path)
    parser.add_argument("--json", type=Path)
    chosen, names = parser.parse_args(), list(LEVELS)
    for name in reversed(names):
        build = chosen.x86 if name in names[:3] else chosen.arm
        if build is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            mine = count(build, name, Path(folder))
        for row in mine:
            sys.stdout.write(f"{name:<11}{row['bits']} bits{row['queries']:>3} queries {row['of_sdot']:>7} of SDOT\n")
        sys.stdout.flush()
        if chosen.json:
            rows, compilers = kept(chosen.json, name)
            compiler = command_of(build, LEVELS[name].source)[0]
            version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout
            rows = sorted(rows + mine, key=lambda row: names.index(row["level"]))
            record = {"dim": DIM, "compilers": compilers | {name: version.splitlines()[0]}, "rows": rows}
            chosen.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
