"""Calls in the OpenMP team of the host process: every kind of caller, answers beside PyTorch, and the faster way."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

module = pytest.importorskip("headlong._native")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc and forks as Linux has them")

BESIDE_PYTORCH = """
import os, sys, threading
import numpy as np
import torch
import headlong as hl
from headlong import native

module = native.loaded()
module.tell_way(0)  # before compile, which works in the team on an idle machine
layer = hl.Layer(np.random.default_rng(0).standard_normal((20_000, 64)).astype(np.float32))
engine = hl.compile(layer, "codes", threads=2)
rows = np.random.default_rng(1).standard_normal((40, 1, 64))
weight = torch.ones(500, 500)

def answers():
    found = []
    for row in rows:
        weight @ weight[0]
        found += [engine.topk(row, 3), engine.lse(row), engine.sample(row, 3, seed=5)]
    return found

def same(found):
    return all(np.array_equal(a, b) for one, other in zip(found, expected) for a, b in zip(one[:2], other[:2]))

expected = answers()
assert module.team_rounds() == 0
module.tell_way(int(sys.argv[1]))
for count in (2, 1, 3, 2):
    torch.set_num_threads(count)
    before = module.team_rounds()
    assert same(answers())
    assert torch.get_num_threads() == count
    if sys.argv[1] == "1" and module.processors() > 1:
        assert (module.team_rounds() > before) == (count > 1)
found = []
threads = [threading.Thread(target=lambda: found.append(answers())) for _ in range(2)]
for thread in threads:
    thread.start()
assert same(answers())
for thread in threads:
    thread.join()
assert all(map(same, found)) and len(found) == 2
child = os.fork()
if child == 0:
    before = module.team_rounds()
    os._exit(0 if [engine.topk(row, 3).ids.tolist() for row in rows] == [one.ids.tolist() for one in expected[::3]]
             and before == module.team_rounds() == 0 else 1)
assert os.waitpid(child, 0)[1] == 0
print("as expected")
"""


@pytest.mark.parametrize("policy", ["active", "passive"])
@pytest.mark.parametrize("way", ["1", "-1"])
def test_answers_beside_pytorch(monkeypatch: pytest.MonkeyPatch, way: str, policy: str) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BESIDE_PYTORCH, way], capture_output=True, text=True, timeout=300, check=False
    )
    assert (found.returncode, found.stdout) == (0, "as expected\n"), found.stderr


def runtimes() -> list[str]:
    """What stands in for GNU's runtime: nothing, and others of this machine."""
    return ["", *filter(None, map(ctypes.util.find_library, ("omp5", "omp", "iomp5")))]


@pytest.mark.parametrize("runtime", runtimes())
def test_every_caller_and_the_faster_way(tmp_path: Path, runtime: str) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    here, csrc, program = Path(__file__).parent, Path(__file__).parents[2] / "csrc", tmp_path / "host_team"
    sources = [str(here / "host_team.cpp"), str(csrc / "runtime" / "pool.cpp")]
    command = [compiler, "-std=c++17", "-fopenmp", f"-I{csrc}", *sources, "-ldl", "-o", str(program)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if "gomp" in made.stderr or "omp.h" in made.stderr:
        pytest.skip("the compiler comes without OpenMP")
    assert made.returncode == 0, made.stderr
    known = os.environ | {"OMP_NUM_THREADS": "4"} | ({"LD_PRELOAD": runtime} if runtime else {})
    said = subprocess.run([program], capture_output=True, text=True, check=False, timeout=120, env=known)
    assert said.stdout == "as expected\n"
