"""The package as a stranger gets it: an sdist, a wheel made of it with a C++ compiler, a fresh environment, an import.

    python tools/fresh_install.py results/packaging.json PYTHON [PYTHON ...] [--folder FOLDER]

For each interpreter: build the wheel from the sdist, install it into an empty environment with nothing but what it asks for,
list what came, and time ``import headlong`` in fresh processes. Before 3.12 a wheel is of one version; from 3.12 on it is
one wheel for all, which is installed into every later PYTHON. What FOLDER holds of an earlier run (the sdist, wheels,
environments) is used again, so that the imports can be timed by themselves on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from headlong.bench.measure import environment, write_run

STARTS = 21
HEAVY = ("torch", "matplotlib", "transformers", "scikit-learn", "scipy", "pandas")
TIMER = "import time; start = time.perf_counter(); import headlong; print(time.perf_counter() - start)"
COUNT = "import sys, headlong; print(len(sys.modules))"
USE = (
    "import numpy as np, headlong as hl, sys; e = hl.compile(hl.Layer(np.eye(300, 8, dtype=np.float32)));"
    "assert e.topk(np.ones((1, 8)), 3).ids.shape == (1, 3); assert 'torch' not in sys.modules"
)


def run(*command: str | Path) -> str:
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # a stranger has no checkout
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, env=bare)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def fresh(python: str, folder: Path, wheel: str | Path) -> dict[str, Any]:
    """The row of one interpreter: what its environment holds, and seconds of each first import."""
    inside = folder / "bin/python"
    if not folder.is_dir():
        run(python, "-m", "venv", folder)
        run(inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel)
    listed = json.loads(run(inside, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"))
    names = {part["name"].lower() for part in listed} - {"pip", "setuptools"}
    run(inside, "-c", USE)
    run(inside, "-c", TIMER)  # writes what Python compiles
    seconds = [float(run(inside, "-c", TIMER)) for _ in range(STARTS)]
    return {
        "packages": len(names), "heavy": ", ".join(sorted(names & set(HEAVY))) or "none",
        "import s": statistics.median(seconds),
        "modules": int(run(inside, "-c", COUNT)) - int(run(inside, "-c", "import sys; print(len(sys.modules))")),
        "installed": ", ".join(sorted(names)), "seconds": seconds,
    }  # fmt: skip


def built(python: str, place: Path, sdist: Path) -> tuple[Path, float]:
    """The wheel, and the seconds that processors worked on it, compiler and pip's own environment included."""
    note = place / "seconds"
    if not note.is_file():
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", place, sdist)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        note.write_text(str(end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime), encoding="utf-8")
    (wheel,) = place.glob("headlong-*.whl")
    return wheel, float(note.read_text(encoding="utf-8"))


def measured(folder: Path, pythons: list[str]) -> dict[str, Any]:
    """The facts of the sdist, and the row of each interpreter."""
    if not (folder / "sdist").is_dir():
        run(sys.executable, "-m", "build", "--sdist", "--outdir", folder / "sdist", Path(__file__).resolve().parent.parent)
    (sdist,) = (folder / "sdist").glob("*.tar.gz")
    rows, stable = [], None
    for number, python in enumerate(pythons):
        version = run(python, "-c", "import platform; print(platform.python_version())").strip()
        wheel, seconds = (stable, None) if stable else built(python, folder / f"wheel{number}", sdist)
        stable = wheel if "abi3" in wheel.name else None
        row = {"python": version, "wheel": wheel.name, "wheel bytes": wheel.stat().st_size, "build CPU s": seconds}
        rows.append(row | fresh(python, folder / f"venv{number}", wheel))
    return {"facts": {"sdist": sdist.name, "sdist bytes": sdist.stat().st_size}, "environment": environment(1), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("pythons", nargs="+")
    parser.add_argument("--folder", type=Path)
    settings = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        write_run(settings.out, measured(settings.folder or Path(name), settings.pythons))
    sys.stdout.write(settings.out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
