"""What llama.cpp says while it loads: nothing on the screen unless it is asked for, its last line where it fails."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def listening(verbose: bool) -> Iterator[Callable[[], str]]:
    """What llama-cpp-python writes to ``sys.stderr`` meanwhile is kept, unless ``verbose``; the last line of it."""
    said = io.StringIO()
    with contextlib.redirect_stderr(sys.stderr if verbose else said):
        yield lambda: (said.getvalue().strip().splitlines() or [""])[-1]
