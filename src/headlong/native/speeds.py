"""What this machine and the level in use are capable of: bytes read in a second."""

from __future__ import annotations

from headlong.native.instruction_level import isa
from headlong.native.load_module import loaded


def bandwidth(size: int, thread_count: int, repeats: int) -> float:
    """GB/s of a plain read of ``size`` bytes: what a scan can at best reach."""
    speed: float = loaded().bandwidth(size, thread_count, repeats, isa())
    return speed
