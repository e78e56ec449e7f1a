"""The threads of llama.cpp while ours read the head.

llama.cpp's layers run in an OpenMP team, whose threads look for more work for milliseconds before they sleep, on the processors
that the head needs. Where the team is GNU's, our engines work in it, as they do in PyTorch's. Where they cannot, it is
dismissed after each step and gathered again by the next.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

from headlong import native

SOFT = 1
"""``omp_pause_soft``: threads go, what they know stays."""
TEAM, AS_THEY_FIND = 1, -1
"""Where engines work: in the host's team, or where trials find it faster. Here the team is awake, and the next step waits for
each of its threads in any case."""


class Team:
    """The threads of a context. ``with team: ...``: engines are asked, after a step and before the next."""

    def __init__(self, threads: int) -> None:
        library = _library() if threads > 1 else None
        self._tell = native.loaded().tell_way
        self._shared = library is not None and _shared(library, threads)
        self._dismiss: Callable[[int], int] | None = getattr(library, "omp_pause_resource_all", None)

    @property
    def _joined(self) -> bool:
        """Engines join the team of the main thread alone."""
        return self._shared and threading.get_ident() == threading.main_thread().ident

    def __enter__(self) -> None:
        if self._joined:
            self._tell(TEAM)
        elif self._dismiss is not None:
            self._dismiss(SOFT)

    def __exit__(self, *_: object) -> None:
        if self._joined:
            self._tell(AS_THEY_FIND)


def _library() -> ctypes.CDLL | None:
    """The runtime of llama.cpp, visible to the whole process from now on; None where it has another, or none."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return None
    try:
        return ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD | os.RTLD_GLOBAL)
    except OSError:
        return None


def _shared(library: ctypes.CDLL, threads: int) -> bool:
    """Whether engines find this runtime and not another copy (PyTorch has one), with a team of just so many threads."""

    def entry(owner: ctypes.CDLL) -> int | None:
        return ctypes.cast(owner.GOMP_parallel, ctypes.c_void_p).value

    return entry(ctypes.CDLL(None)) == entry(library) and library.omp_get_max_threads() == threads
