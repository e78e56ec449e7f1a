"""How a plan is built: what every method of reading one matrix has in common.

::

    plan    = method.plan(Making(layer, calibration, threads, wanted))
    promise = method.promise(wanted, plan)                  what it keeps of what was asked for

A method is a frozen dataclass of options with their defaults. It says what it promises and builds the plan; the rest has
defaults here. Methods are registered by name, and the contract's tests run over all of them.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from headlong import native
from headlong.dtypes import Doubles, Floats
from headlong.layers.matrix import Layer
from headlong.layers.written_to import WrittenTo
from headlong.plan import Plan
from headlong.promise import Promise


class Running(NamedTuple):
    """How an engine runs: the threads of every call (None: those at hand), the seed of its bets, why it is this engine; and of
    borrowed arrays their stamp and who sees writes to them, since its plan was made."""

    threads: int | None = None
    seed: int = 0
    reason: str = "asked for"
    stamp: str | None = None
    watch: WrittenTo | None = None


PLAIN = Running()


class Making(NamedTuple):
    """What a plan is made of: ``calibration`` [n, dim] hidden vectors, or None; the ``threads`` that make it."""

    layer: Layer
    calibration: Doubles | None
    threads: int
    wanted: Promise


class EngineParts(NamedTuple):
    """What an engine hands to a method that reads in a way of its own: its parts, and the reader of all rows for what the
    method's reader does not do itself."""

    layer: Layer
    plan: Plan
    norms: Floats
    promise: Promise
    running: Running
    rows: native.Reader


@dataclass(frozen=True)
class Method(ABC):
    """A way to read a layer, and its options."""

    name: ClassVar[str]
    filled_in: ClassVar[frozenset[str]] = frozenset()
    """Fields that no user sets: ``compile`` fills them in, and files keep them."""

    @abstractmethod
    def plan(self, making: Making) -> Plan:
        """What the engine reads, in which order, to keep what is wanted."""

    @abstractmethod
    def promise(self, wanted: Promise, plan: Plan) -> Promise:
        """What is kept by ``plan`` where ``wanted`` was asked for."""

    def aimed(self, wanted: Promise) -> Method:
        """The method with the promise that was asked for, which it has to keep where it promises less."""
        return self

    def reader(self, engine: EngineParts) -> native.Reader | None:
        """What answers instead of the reader of the plan; None: that one does."""
        return None


def option_names(record: Any) -> list[str]:
    """What a user can set of a method, or of the options of a kind of structured layer."""
    filled_in = getattr(record, "filled_in", ())
    return [field.name for field in dataclasses.fields(record) if field.name not in filled_in]


METHODS: dict[str, type[Any]] = {}
"""Every method by name."""

Registered = TypeVar("Registered", bound=type[Method])


def register(method: Registered) -> Registered:
    METHODS[method.name] = method
    return method
