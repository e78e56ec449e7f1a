"""Memory that runs out inside native code is a MemoryError, on whatever thread, and the engine answers afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from thinned import every

HERE = Path(__file__).parent
LIMITED = """
import resource, sys, threading
import numpy as np
import headlong as hl

rng = np.random.default_rng(0)
engine = hl.compile(hl.Layer(rng.standard_normal((8_000, 64)).astype(np.float32)), "codes", threads=2)
rows = rng.standard_normal((1_500, 64))
expected = engine.topk(rows[:8], 3)
engine.topk(rows[:200], 3)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
seen = []

def ask():
    for _ in range(2):
        try:
            engine.topk(rows, 3_000)  # answers of 110 MB
            seen.append("answered")
        except MemoryError:
            seen.append("MemoryError")

resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20), resource.RLIM_INFINITY))
threads = [threading.Thread(target=ask) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert seen == ["MemoryError"] * 6, seen
found = engine.topk(rows[:8], 3)
assert (found.ids == expected.ids).all() and (found.logits == expected.logits).all()
print("well")
"""


def run(*command: str, **variables: str) -> str:
    result = subprocess.run(
        [sys.executable, *command], env={**os.environ, **variables}, capture_output=True, text=True, timeout=600, check=False
    )
    assert result.returncode == 0, f"exit status {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="session")
def allocator(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library of failing_new.cpp."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if not sys.platform.startswith("linux") or compiler is None:
        pytest.skip("a failing allocator needs LD_PRELOAD and a C++ compiler")
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("the address sanitizer has an allocator of its own")
    library = tmp_path_factory.mktemp("allocator") / "failing_new.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", str(HERE / "failing_new.cpp"), "-o", str(library)], check=True)
    return str(library)


@pytest.mark.parametrize("family", every(3, ["calibrated", "full", "codes", "tree", "adaptive", "experts"]))
def test_every_failing_allocation_is_a_memory_error(allocator: str, family: str) -> None:
    said = run(str(HERE / "every_failure.py"), family, "2", LD_PRELOAD=allocator)
    assert said.count("came as MemoryError") >= 10, said


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS as Linux has it")
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer needs more memory than that")
def test_a_limit_on_memory_is_a_memory_error_on_every_thread() -> None:
    assert run("-c", LIMITED).strip() == "well"
