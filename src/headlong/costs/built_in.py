"""The numbers that the choice of a plan is made with, and how measured ones are taken over.

    taken = built in * 2^round(believed * log2(measured / built in))      for a ratio within 1/16 and 16, else as built in

``believed`` is 1, and :data:`HALF` of what was measured while the machine was busy: another program doubles times easily. In
doublings: a machine that is busy at the moment, or somewhat faster than another, chooses the same plans. A ratio beyond the
range is a fault of the clock or of the trial, and is not believed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple


class Costs(NamedTuple):
    """Nanoseconds, of all threads together.

    ``memory``    a byte of a scan that comes from memory
    ``cache``     a byte of a scan that is in the caches
    ``product``   a byte of int8 codes whose products are made for one query more of a batch
    ``bounded``   a class whose interval is made and compared for one query more of a batch
    ``unpacked``  a byte of codes of two bits, whose four products are made for one query
    ``row``       a row that is read alone, beside its bytes
    ``gathered``  a byte of such a row
    ``narrowed``  a class in the passes that prove a normaliser: intervals, exponentials, sums
    ``level``     threads that start and end a pass together
    ``call``      a call that reads next to nothing
    ``source``    where the numbers are from, in words
    ``threads``   how many those are: a search that is one thread's takes so many times as long
    """

    memory: float
    cache: float
    product: float
    bounded: float
    unpacked: float
    row: float
    gathered: float
    narrowed: float
    level: float
    call: float
    source: str = "built in"
    threads: int = 2


TERMS = Costs._fields[:-2]
BUILT_IN = Costs(0.033, 0.0095, 0.0045, 0.8, 0.03, 22.0, 0.095, 2.0, 2500.0, 6900.0)
"""Two cores of an AMD EPYC of 2022, threads included."""
RANGE, HALF = 16.0, 0.5
"""How far from the built-in number one is believed, and how much of that where others were at work meanwhile."""


def settled(measured: Mapping[str, float], source: str, threads: int = BUILT_IN.threads, believed: float = 1.0) -> Costs:
    """The costs that trials by ``threads`` speak for: those of their terms that can be believed, in steps."""
    found: dict[str, float] = {}
    for name in TERMS:
        usual, value = getattr(BUILT_IN, name), measured.get(name, math.nan)
        if not (isinstance(value, (int, float)) and 1 / RANGE <= value / usual <= RANGE):
            continue
        found[name] = usual * 2.0 ** round(believed * math.log2(value / usual))
    left = [name for name in TERMS if name not in found]
    if not found:
        return BUILT_IN
    said = f"{source}; {', '.join(left)} built in: the measured value is not plausible" if left else source
    return BUILT_IN._replace(**found, source=said, threads=threads)
