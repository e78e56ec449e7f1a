"""A function in a process of its own, with limits on its time and memory: what runs away there takes nothing else along."""

from __future__ import annotations

import multiprocessing
import resource
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

GIBI = 1 << 30


def in_limits(work: Callable[..., Any], *arguments: Any, seconds: float = 60.0, memory: int = 4 * GIBI) -> Any:
    """``work(*arguments)``; an AssertionError where it took more than ``seconds`` or ``memory`` bytes of address space."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(there, memory, work, arguments), daemon=True)
    process.start()
    there.close()
    try:
        assert here.poll(seconds), f"no answer within {seconds} s"
        good, value = here.recv()
    except EOFError:
        process.join()
        raise AssertionError(f"the process ended with status {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
    assert good, value
    return value


def _run(there: Connection, memory: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        there.send((True, work(*arguments)))
    except BaseException:
        there.send((False, traceback.format_exc()))
