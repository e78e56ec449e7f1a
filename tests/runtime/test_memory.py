"""Memory that runs out in native code is a MemoryError on whatever thread; locks of other threads are free in a fork."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from children import program, said
from headlong.cached_attribute import once
from headlong.engines.adapting import OwnLock
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
seen = []

ready, go = threading.Barrier(4), threading.Event()

def ask():
    engine.topk(rows[:200], 3)  # the C library ends a process that has no memory left for a new thread's own data
    ready.wait()
    go.wait()
    for _ in range(2):
        try:
            engine.topk(rows, 3_000)  # answers of 110 MB
            seen.append("answered")
        except MemoryError:
            seen.append("MemoryError")

threads = [threading.Thread(target=ask) for _ in range(3)]
for thread in threads:
    thread.start()
ready.wait()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20), resource.RLIM_INFINITY))
go.set()
for thread in threads:
    thread.join()
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert seen == ["MemoryError"] * 6, seen
found = engine.topk(rows[:8], 3)
assert (found.ids == expected.ids).all() and (found.logits == expected.logits).all()
print("well")
"""


@pytest.fixture(scope="session")
def allocator(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library of failing_new.cpp."""
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("the address sanitizer has an allocator of its own")
    return program(tmp_path_factory.mktemp("allocator"), "failing_new.cpp", "-O1", "-shared", "-fPIC")


@pytest.mark.parametrize("family", every(3, ["calibrated", "full", "codes", "tree", "adaptive", "experts"]))
def test_every_failing_allocation_is_a_memory_error(allocator: str, family: str) -> None:
    code = f"import runpy; runpy.run_path({str(HERE / 'every_failure.py')!r}, run_name='__main__')"
    found = said(code, family, "2", LD_PRELOAD=allocator)
    assert found.count("came as MemoryError") >= 10, found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS as Linux has it")
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer needs more memory than that")
def test_a_limit_on_memory_is_a_memory_error_on_every_thread() -> None:
    assert said(LIMITED) == "well"


pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
    pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning"),
]


def ends(work: Callable[[], object], seconds: float = 60.0) -> bool:
    """Whether a forked child does its work, and within the time."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status == 0
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


class Slow:
    """Its value is ready when it may be."""

    def __init__(self) -> None:
        self.begun, self.may = threading.Event(), threading.Event()

    @once
    def value(self) -> int:
        self.begun.set()
        self.may.wait(60)
        return 7


def test_an_attribute_that_another_thread_computes_is_computed_in_the_child() -> None:
    slow, other = Slow(), Slow()
    other.may.set()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    slow.begun.wait(60)
    assert ends(lambda: other.value, 5)
    assert other.value == 7  # nor does it keep other threads of this process
    slow.may.set()
    thread.join()
    assert slow.value == 7 and isinstance(Slow.value, once)


def test_a_lock_that_another_thread_held_is_free_in_a_child() -> None:
    lock, found = OwnLock(), list[bool]()

    def taken() -> None:
        with lock.own():
            pass

    with lock.own():
        child = threading.Thread(target=lambda: found.append(ends(taken, 5)))
        child.start()
        child.join()
    assert found == [True]
    taken()
