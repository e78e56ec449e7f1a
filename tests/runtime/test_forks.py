"""Forks while another thread is inside: no lock that it held then is waited for in the child."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from headlong.cached_attribute import once
from headlong.engines.adapting import OwnLock

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
