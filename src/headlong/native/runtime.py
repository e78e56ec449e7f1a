"""Which level of the instruction set runs, on how many threads, and the native module itself.

``HEADLONG_ISA``      forces a level; ``numpy`` is the readable reference in this package. A level that is not there is
                      refused with the list of those that are; nothing falls back silently.
``HEADLONG_THREADS``  the threads of calls that name none; without it, all processors this process may run on.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

from headlong.errors import KernelError, OptionError

REFERENCE = "numpy"
MOST_THREADS = 1024


def levels() -> list[str]:
    """What can run here, the best last: the reference, then the native levels that this CPU has."""
    native = module()
    return [REFERENCE, *([] if native is None else native.levels())]


def isa() -> str:
    """The level in use: the best native one, or what ``HEADLONG_ISA`` names."""
    asked = os.environ.get("HEADLONG_ISA", "")
    here = levels()
    if asked and asked not in here:
        raise KernelError(f"HEADLONG_ISA is {asked!r}, which is not available here; choose from {', '.join(here)}")
    if not asked and here == [REFERENCE]:
        raise KernelError(
            "headlong._native is not installed; build it with `pip install .`, "
            "or set HEADLONG_ISA=numpy for the slow reference in NumPy"
        )
    return asked or here[-1]


def threads(asked: int | None = None) -> int:
    """The number of threads of one call: ``asked``, else ``HEADLONG_THREADS``, else the processors at hand."""
    if asked is not None:
        return _thread_number(asked, "threads")
    text = os.environ.get("HEADLONG_THREADS", "")
    if text:
        return _thread_number(int(text) if text.isascii() and text.isdigit() else text, "HEADLONG_THREADS")
    native = module()
    if native is not None:
        return min(int(native.processors()), MOST_THREADS)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _thread_number(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= MOST_THREADS:
        raise OptionError(f"{name} is {value!r}; expected a whole number from 1 to {MOST_THREADS}")
    return int(value)


def bandwidth(size: int, thread_count: int, repeats: int) -> float:
    """GB/s of a plain read of ``size`` bytes: what a scan can at best reach."""
    speed: float = loaded().bandwidth(size, thread_count, repeats, isa())
    return speed


def code_product() -> float:
    """What an 8-bit code's product with both planes of a query costs beside one of a row, in a batch, on the level in use."""
    cost: float = loaded().code_product(isa()) if isa() != REFERENCE else 0.5
    return cost


def module() -> Any:
    """The native module, or None where it was not built. A module that is there but broken raises."""
    try:
        return importlib.import_module("headlong._native")
    except ModuleNotFoundError as error:
        if error.name != "headlong._native":
            raise
        return None


def loaded() -> Any:
    native = module()
    if native is None:
        raise KernelError("headlong._native is not installed; build it with `pip install .`")
    return native
