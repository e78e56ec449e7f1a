"""What AVX-512 machines leave unused: VBMI and GFNI for codes of a few bits, vdpbf16ps for bfloat16 rows.

    python benchmarks/kernels/avx512_extras.py results/avx512-extras.json

Compiles ``avx512_extras.cpp`` beside this file, runs it, and adds what `--rounds` rounds of every case, in turns, took at the
median. ``error`` is against plain arithmetic: for scans in whole numbers, for rows in units of 2^-24 times both lengths.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

NEEDED = ("avx512vbmi", "avx512_bf16", "gfni", "avx512_vnni")
SETS = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512vbmi", "avx512bf16", "gfni", "fma")
FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", *(f"-m{name}" for name in SETS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    lacking = [name for name in NEEDED if name not in info.split()]
    if lacking:
        raise SystemExit(f"this processor lacks {', '.join(lacking)}: nothing is measured")
    with tempfile.TemporaryDirectory() as folder:
        made = str(Path(folder) / "extras")
        subprocess.run(["g++", *FLAGS, str(Path(__file__).with_suffix(".cpp")), "-o", made], check=True)
        text = subprocess.run([made, str(given.rounds)], check=True, capture_output=True, text=True).stdout
    rows = []
    for line in text.splitlines():
        what, way, size, median, least, error = line.split(";")
        rows.append({"what": what, "way": way, "size": size, "ns": float(median), "least": float(least), "error": float(error)})
    model = next(line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name"))
    flags = next(line for line in info.splitlines() if line.startswith("flags")).split()
    about = {"processor": model, "python": platform.python_version(), "rounds": given.rounds,
             "absent": [name for name in ("avx512_fp16", "amx_int8", "amx_bf16") if name not in flags]}  # fmt: skip
    given.json.write_text(json.dumps({"environment": about, "rows": rows}, indent=1) + "\n")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
