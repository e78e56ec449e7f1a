"""On how many threads a call runs: what it names, else ``HEADLONG_THREADS``, else all processors this process may run on."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from headlong.errors import OptionError
from headlong.native.load_module import module

MOST_THREADS = 1024


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
