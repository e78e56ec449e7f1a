"""On how many threads a call runs: what it names, else ``HEADLONG_THREADS``, else ``OMP_NUM_THREADS``, else all processors."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from headlong.errors import OptionError
from headlong.native.load_module import module

MOST_THREADS = 1024


def threads(asked: int | None = None) -> int:
    """``asked``, else ``HEADLONG_THREADS``, else ``OMP_NUM_THREADS`` as far as there are processors, else the processors.

    Processors are those that this process may use: its affinity, and the share of time that control groups leave it.
    """
    if asked is not None:
        return _thread_number(asked, "threads")
    native = module()
    if native is None:  # NumPy's reference runs on NumPy's own threads
        return 1
    return int(native.threads_at_hand()) or _thread_number(os.environ.get("HEADLONG_THREADS"), "HEADLONG_THREADS")


def _thread_number(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= MOST_THREADS:
        raise OptionError(f"{name} is {value!r}; expected a whole number from 1 to {MOST_THREADS}")
    return int(value)
