"""What this machine and the level in use are capable of: bytes read in a second, products of codes beside those of rows."""

from __future__ import annotations

from headlong.native.instruction_level import REFERENCE, isa
from headlong.native.load_module import loaded
from headlong.plan import Dense


def bandwidth(size: int, thread_count: int, repeats: int) -> float:
    """GB/s of a plain read of ``size`` bytes: what a scan can at best reach."""
    speed: float = loaded().bandwidth(size, thread_count, repeats, isa())
    return speed


def code_product() -> float:
    """What an 8-bit code's product with both planes of a query costs beside one of a row, in a batch, on the level in use."""
    cost: float = Dense().code_product if isa() == REFERENCE else loaded().code_product(isa())
    return cost
