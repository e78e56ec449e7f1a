"""What an engine hands to a method that reads in a way of its own."""

from __future__ import annotations

from typing import NamedTuple

from headlong import native
from headlong.layers.matrix import Layer
from headlong.native import Floats
from headlong.plan import Plan
from headlong.promise import Promise


class EngineParts(NamedTuple):
    """The engine's parts, and the plain executor for all that the method's reader does not do itself."""

    layer: Layer
    plan: Plan
    norms: Floats
    promise: Promise
    seed: int
    rows: native.Executor
