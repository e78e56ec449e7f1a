"""Calls as a decoder makes them: after other work has emptied the caches, and after its threads have gone to sleep.

::

    for turn in rounds:  for one in contestants, in a fresh order:  work() for a while ; seconds += wall(one.call, block)

``work`` multiplies more megabytes of other weights by a vector than the largest cache holds, as the layers before the output
layer do: in PyTorch where a contestant has loaded it, in NumPy elsewhere. :func:`headlong.bench.measure.contest` times calls in
a loop of nothing but themselves instead. Both are true; a user of a decoder meets this one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headlong.bench import measure
from headlong.bench.measure import Contestant, Progress, Schedule, Timing, wall

LAYERS = 6
LEAST, MOST = 96, 512
"""Megabytes that go through the caches between two calls."""
AWAKE = 0.04
"""Seconds of such work, at least: OpenBLAS's threads look out for work for 2^26 cycles after a product, on the processors
that the next contestant needs. A pause instead would let PyTorch's team fall asleep, too."""
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def megabytes() -> int:
    """Twice the largest cache, as far as the system tells of it."""
    try:
        sizes = [_size(file.read_text(encoding="ascii")) for file in CACHES.glob("index*/size")]
    except OSError:
        sizes = []
    return min(max([LEAST, *(2 * size for size in sizes)]), MOST)


def _size(text: str) -> int:
    """``"32768K\\n" -> 32``"""
    digits = text.strip().rstrip("KM")
    return int(digits) // (1024 if text.strip().endswith("K") else 1) if digits.isdigit() else 0


class OtherLayers:
    """``x = weight @ x`` over a few square weights; ``made`` says what does it."""

    def __init__(self, size: int) -> None:
        width = int((size * 1e6 / 4 / LAYERS) ** 0.5)
        self.torch: Any = sys.modules.get("torch")
        self.made = f"{size} MB of other weights, multiplied by {'PyTorch' if self.torch else 'NumPy'}"
        rng = np.random.default_rng(0)
        weights = [rng.standard_normal((width, width), np.float32) / np.float32(width**0.5) for _ in range(LAYERS)]
        self._weights = [self.torch.from_numpy(weight) for weight in weights] if self.torch else weights
        self._x = self._weights[0][0]

    def __call__(self) -> None:
        x = self._x
        for weight in self._weights:
            x = weight @ x


def contest(
    contestants: Sequence[Contestant], queries: Any, batch: int, schedule: Schedule, work: Callable[[], None],
    progress: Progress | None = None,
) -> list[Timing]:  # fmt: skip
    """:func:`headlong.bench.measure.contest` with one timed call a turn, after ``work``; of a ``schedule`` its
    rounds, seconds and seed."""

    def clock(call: Callable[[Any], Any], block: Any) -> float:
        begun = time.perf_counter()
        while time.perf_counter() - begun < AWAKE:
            work()
        return wall(call, block)

    for one in contestants:
        wall(one.call, one.prepare(queries[-batch:]))  # what only a first call does: threads start, memory is claimed
    schedule = replace(schedule, settle=0, calls=1, pause=0.0)
    return measure.contest(contestants, queries, batch, schedule, progress, clock)
