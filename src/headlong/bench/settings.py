"""What a benchmark asks of everyone, and how the clock is read."""

from __future__ import annotations

from dataclasses import dataclass

from headlong.engines.arguments import checked_eps
from headlong.errors import OptionError
from headlong.number_checks import real, whole

WAYS = ("cold", "loop")
"""How calls are timed: each after other work has emptied the caches, or in a loop of nothing but such calls."""
MOST = 1 << 31


@dataclass(frozen=True)
class Settings:
    """What was asked of everyone, how the clock was read, and what speed-ups are over (empty: the fastest dense product)."""

    k: int = 10
    batches: tuple[int, ...] = (1, 8, 64)
    eps: float = 0.2
    delta: float = 0.0
    threads: int = 1
    queries: int = 256
    rounds: int = 15
    calls: int = 5
    seconds: float = 20.0
    seed: int = 0
    baseline: str = ""
    ways: tuple[str, ...] = WAYS

    def __post_init__(self) -> None:
        whole(self.queries, "queries", 1, MOST)
        whole(self.rounds, "rounds", 1, MOST)
        whole(self.calls, "calls", 1, MOST)
        whole(self.seed, "seed", 0, 2**64 - 1)
        real(self.delta, "delta", 0.0, 1.0)
        checked_eps(self.eps)
        if not self.ways or not set(self.ways) <= set(WAYS):
            raise OptionError(f"way is {', '.join(self.ways) or 'empty'}; expected {' or '.join(WAYS)}, or both")


def batches(text: str) -> tuple[int, ...]:
    """``"1,8,64" -> (1, 8, 64)``"""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise OptionError(f"batch sizes {text!r}; expected whole numbers from 1 with commas between, such as 1,8,64")
    return found
