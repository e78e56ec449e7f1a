"""What reading costs on this machine, in nanoseconds: measured, kept, and what the choice of a plan is made with.

    built_in       the numbers, those of the machine that the library was written on, and how measured ones are taken over
    measured       a few short trials of the native kernels
    repeated       measurements until two agree: others may have been at work meanwhile
    machine_load   what others take of the processors
    cache          one small file per user: what was measured before, or what ``HEADLONG_COSTS`` names
"""

from headlong.costs.built_in import BUILT_IN, TERMS, Costs, settled
from headlong.costs.cache import here

__all__ = ["BUILT_IN", "TERMS", "Costs", "here", "settled"]
