"""Which level of the instruction set runs: the best one that this processor has, or what ``HEADLONG_ISA`` names.

``numpy`` is the readable reference in this package. A level that is not there is refused with the list of those that are;
nothing falls back silently. What each native level has, and what it asks of the processor, is csrc/kernels/levels.cpp.
"""

from __future__ import annotations

import os

from headlong.errors import KernelError
from headlong.native.load_module import module

REFERENCE = "numpy"


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
