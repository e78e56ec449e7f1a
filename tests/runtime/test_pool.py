"""The pool and the host's OpenMP team: no more threads than processors, every kind of caller, answers beside PyTorch."""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from children import program, said
from headlong import native

module = pytest.importorskip("headlong._native")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc as Linux has it")

COUNTED = """
import os, sys, time
import numpy as np
import headlong as hl

layer = hl.Layer(np.random.default_rng(0).standard_normal((20_000, 64)).astype(np.float32))
wide, narrow = (hl.compile(layer, "codes", threads=n) for n in (64, 2))
rows = np.random.default_rng(1).standard_normal((64, 64))

def threads():
    return set(os.listdir("/proc/self/task"))

def wakes():
    found = {}
    for task in threads():
        text = open(f"/proc/self/task/{task}/status").read()
        found[task] = int(text.split("voluntary_ctxt_switches:")[1].split()[0])
    return found

before = threads()
wide.topk(rows, 3)
grown = len(threads() - before)
time.sleep(0.2)
rest = wakes()
for _ in range(50):
    narrow.topk(rows, 3)
    time.sleep(0.002)
moved = sum(count > rest[task] for task, count in wakes().items() if task not in before)
time.sleep(0.1)
idle = time.process_time()
time.sleep(2)
print(grown, moved, time.process_time() - idle)
"""


@linux
def test_no_more_workers_than_processors_and_only_those_wake_that_are_asked_for() -> None:
    grown, moved, idle = map(float, said(COUNTED).split())
    assert grown <= module.processors() - 1
    assert moved <= 1, "two threads are the caller and one worker"
    assert idle < 0.2, "seconds of processor time in two seconds in which nobody asked"


def groups(root: Path, line: str, **files: str) -> int:
    """What the native reader says of a made-up file system: a line of /proc/self/cgroup, files with / written as __."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(line + "\n")
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("max", "cpu.max").replace("cfs", "cpu.cfs")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return int(module.processors_of_groups(str(root)))


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/", {}, 0),
        ("0::/", {"max": "max 100000"}, 0),
        ("0::/", {"max": "150000 100000"}, 2),
        ("0::/", {"max": "20000 100000"}, 1),
        ("0::/a/b", {"a__max": "300000 100000", "a__b__max": "max 100000"}, 3),
        ("0::/a/b", {"a__max": "300000 100000", "a__b__max": "200000 100000"}, 2),
        ("0::/not/seen/from/here", {"max": "400000 100000"}, 4),
        ("0::/../up", {}, 0),
        ("4:cpu,cpuacct:/job", {"cpu__job__cfs_quota_us": "250000", "cpu__job__cfs_period_us": "100000"}, 3),
        ("4:cpu,cpuacct:/job", {"cpu__job__cfs_quota_us": "-1", "cpu__job__cfs_period_us": "100000"}, 0),
        ("4:memory:/job", {"cpu__job__cfs_quota_us": "250000", "cpu__job__cfs_period_us": "100000"}, 0),
        ("nonsense", {}, 0),
        ("0::", {"max": "nonsense"}, 0),
    ],
)
def test_control_groups_are_read(tmp_path: Path, line: str, files: dict[str, str], expected: int) -> None:
    assert groups(tmp_path, line, **files) == expected


@linux
def test_the_default_is_what_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADLONG_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    pinned = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code = pinned + "from headlong import native; print(native.threads())"
    assert said(code) == "1"
    assert 1 <= module.processors() <= len(os.sched_getaffinity(0))
    assert native.threads(7) == 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("1,4", 1), ("100000", 0), ("4096", 0), ("2x", 0), ("", 0), ("-1", 0), (str(module.processors() + 5), 0)],
)
def test_a_scheduler_s_number_of_threads_is_kept(monkeypatch: pytest.MonkeyPatch, text: str, expected: int) -> None:
    """``OMP_NUM_THREADS``; 0 stands for the processors at hand, where it is no number or too large."""
    monkeypatch.delenv("HEADLONG_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert native.threads() == module.threads_at_hand() == (expected or module.processors())
    monkeypatch.setenv("HEADLONG_THREADS", "7")
    assert native.threads() == module.threads_at_hand() == 7


@linux
def test_the_first_failure_of_a_call_is_its_own(tmp_path: Path) -> None:
    found = subprocess.run([program(tmp_path, "first_failure.cpp", "-pthread")], capture_output=True, check=True, timeout=60)
    assert found.stdout == b"bad_alloc\n"


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
    return all(np.array_equal(a, b) for one, other in zip(found, expected) for a, b in zip(one, other))

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


@linux
@pytest.mark.parametrize("policy", ["active", "passive"])
@pytest.mark.parametrize("way", ["1", "-1"])
def test_answers_beside_pytorch(monkeypatch: pytest.MonkeyPatch, way: str, policy: str) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert said(BESIDE_PYTORCH, way) == "as expected"


def runtimes() -> list[str]:
    """What stands in for GNU's runtime: nothing, and others of this machine."""
    return ["", *filter(None, map(ctypes.util.find_library, ("omp5", "omp", "iomp5")))]


@linux
@pytest.mark.parametrize("runtime", runtimes())
def test_every_caller_and_the_faster_way(tmp_path: Path, runtime: str) -> None:
    known = os.environ | {"OMP_NUM_THREADS": "4"} | ({"LD_PRELOAD": runtime} if runtime else {})
    command = [program(tmp_path, "host_team.cpp", "-fopenmp")]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=known)
    assert found.stdout == "as expected\n"
