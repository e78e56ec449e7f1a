"""The threads of llama.cpp while ours read the head.

llama.cpp's layers run in an OpenMP team, whose threads look for more work for milliseconds before they sleep, on the processors
that the head needs. Where the team is GNU's, it is dismissed after each step and gathered again by the next.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

SOFT = 1
"""``omp_pause_soft``: threads go, what they know stays."""


def dismissal() -> Callable[[int], int] | None:
    """What sends the team of the calling thread home; None where llama.cpp has no such team, or cannot be told."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return None
    try:
        library = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD)
        found: Callable[[int], int] = library.omp_pause_resource_all
    except (OSError, AttributeError):
        return None
    return found
