"""What long work says of itself while it is done: stages with names, how much of each is done, about how long the rest takes.

::

    with shown(stage): Model("model.gguf")     stage(label) gives a callback (done, total), as the bars of the commands are
    logging.basicConfig(level=logging.INFO)    where nobody is shown them: lines of the logger "headlong"

A callback may raise, KeyboardInterrupt too: nothing is left half-written.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Move = Callable[[int, int], None]
Stage = Callable[[str], Move]
LOGGER = logging.getLogger("headlong")
EVERY = 5.0
"""Seconds between two lines of a stage."""
_shown: ContextVar[Stage | None] = ContextVar("stage", default=None)


@contextmanager
def shown(stage: Stage, otherwise: bool = False) -> Iterator[None]:
    """Stages that this thread begins in the block are given to ``stage``; ``otherwise``: where nobody else is given them."""
    token = _shown.set((_shown.get() or stage) if otherwise else stage)
    try:
        yield
    finally:
        _shown.reset(token)


def stage(label: str) -> Move:
    """A stage begins; its callback is told how much is done."""
    own = _shown.get()
    return _logged(label) if own is None else own(label)


def _logged(label: str) -> Move:
    start = last = time.monotonic()
    LOGGER.info("%s", label)

    def move(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done < total and now - last < EVERY:
            return
        last, took = now, now - start
        if done >= total:
            LOGGER.info("%s: done in %.1f s", label, took)
        elif done:
            LOGGER.info("%s: %d %%, about %.0f s left", label, 100 * done // total, took / done * (total - done))

    return move
