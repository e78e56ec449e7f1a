"""A function in each of several processes of one gloo group on this machine; what goes wrong in one comes back."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def in_processes(work: Callable[..., Any], size: int, *arguments: Any, seconds: float = 120.0) -> list[Any]:
    """``[work(rank, *arguments) for rank in range(size)]``, run at once; None for a process that died."""
    context = _context()
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        queue = context.Queue()
        processes = [
            context.Process(target=_run, args=(work, rank, size, meeting, queue, arguments), daemon=True)
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


def _run(work: Callable[..., Any], rank: int, size: int, meeting: str, queue: Any, arguments: tuple[Any, ...]) -> None:
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
