"""An attribute that is computed when it is first asked for, and kept; without a lock, which a forked child would find held.

``functools.cached_property`` has one lock for all instances of a class (until Python 3.12): while one thread computes, every
other waits, and in a child that was forked in the meantime for ever. Here two threads may both compute; either value is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Owner = TypeVar("Owner")
Value = TypeVar("Value")


class once(Generic[Owner, Value]):  # noqa: N801  # a decorator
    """The value of ``compute(instance)``, kept in the instance under the function's name."""

    def __init__(self, compute: Callable[[Owner], Value]) -> None:
        self.compute, self.name, self.__doc__ = compute, compute.__name__, compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type[Owner]) -> once[Owner, Value]: ...
    @overload
    def __get__(self, instance: Owner, owner: type[Owner]) -> Value: ...
    def __get__(self, instance: Any, owner: type[Owner]) -> Any:
        if instance is None:
            return self
        found = self.compute(instance)
        instance.__dict__[self.name] = found
        return found
