"""What tests start or load: children of this Python with limits or in a group, programs in C++, scripts outside the package."""

from __future__ import annotations

import functools
import importlib.util
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def python(code: str, *arguments: object, timeout: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
    """How a child ended that ran ``code``, and what it said; ``environment`` is added to this process's own."""
    command = [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)]
    path = os.pathsep.join([str(ROOT / "tests/helpers"), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": path, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=variables, check=False)


def said(code: str, *arguments: object, **environment: str) -> str:
    """What a child printed that has to end well."""
    done = python(code, *arguments, **environment)
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def program(folder: Path, source: str, *flags: str) -> str:
    """A program of ``tests/runtime/source``, compiled into ``folder`` with the pool; skips where there is no compiler."""
    compiler, made = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++"), folder / Path(source).stem
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no C++ compiler for Linux")
    files = [str(ROOT / "tests/runtime" / source), *([] if "-shared" in flags else [str(ROOT / "csrc/runtime/pool.cpp")])]
    command = [compiler, "-std=c++17", *flags, f"-I{ROOT / 'csrc'}", *files, "-ldl", "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "gomp" in done.stderr or "omp.h" in done.stderr:
        pytest.skip("the compiler comes without OpenMP")
    assert done.returncode == 0, done.stderr
    return str(made)


def script(path: str) -> ModuleType:
    """The script at ``path`` of the project as a module."""
    sys.path.append(str((ROOT / path).parent))  # as where it is run: what it shares with its neighbours
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GIBI = 1 << 30


def in_limits(work: Callable[..., Any], *arguments: Any, seconds: float = 60.0, memory: int = 4 * GIBI) -> Any:
    """``work(*arguments)``; an AssertionError where it took more than ``seconds`` or ``memory`` bytes of address space."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_in_limits, args=(there, memory, work, arguments), daemon=True)
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


def _in_limits(there: Connection, memory: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        there.send((True, work(*arguments)))
    except BaseException:
        there.send((False, traceback.format_exc()))


def in_processes(work: Callable[..., Any], size: int, *arguments: Any, seconds: float = 120.0) -> list[Any]:
    """``[work(rank, *arguments) for rank in range(size)]``, run at once; None for a process that died."""
    context = _context()
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        queue = context.Queue()
        processes = [
            context.Process(target=_in_group, args=(work, rank, size, meeting, queue, arguments), daemon=True)
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(seconds)
        late = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            process.kill()
        found: dict[int, Any] = {}
        while not queue.empty():
            rank, good, value = queue.get()
            if not good:
                raise AssertionError(f"rank {rank}:\n{value}")
            found[rank] = value
    assert not late, f"ranks {late} did not end within {seconds} s"
    return [found.get(rank) for rank in range(size)]


@functools.cache
def _context() -> Any:
    """Processes are forks of one that has imported what all of them need: a second each, where each would take its own."""
    if not sys.platform.startswith("linux"):
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed.tensor", "headlong.integrations.parallel_loss", "pytest"])
    return context


def _in_group(work: Callable[..., Any], rank: int, size: int, meeting: str, queue: Any, arguments: tuple[Any, ...]) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch.distributed as dist

    try:
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
        queue.put((rank, True, work(rank, *arguments)))
    except BaseException:
        queue.put((rank, False, traceback.format_exc()))
    finally:
        queue.close()
        queue.join_thread()
        os._exit(0)  # no farewell to the group: another rank may be gone
