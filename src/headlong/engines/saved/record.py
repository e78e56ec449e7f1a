"""The JSON record of a saved engine, over a matrix or a structured layer: how it is opened, and which numbers are believed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from headlong.errors import HeadlongError, KernelError, MalformedFileError, MissingPackageError, StoreError
from headlong.promise import Promise
from headlong.store import TensorFile, check_version, json_object, open_file

Kept = TypeVar("Kept")


class Opening(NamedTuple):
    """How a file is read: whether it is compared with its checksum first, whether it is mapped, and by how many threads."""

    verify: bool
    mapped: bool
    threads: int


def read_record(
    path: str | os.PathLike[str], form: str, version: int, kept: Callable[[dict[str, Any], TensorFile], Kept], how: Opening
) -> Kept:
    """``kept(record, file)``. A record is JSON of any shape: whatever it trips a reader over is a :class:`StoreError`, the file
    being at fault."""
    file = open_file(path, how.mapped)
    check_version(file.metadata, form, version, file.name)
    if how.verify:
        file.verify(how.threads)
    record = json_object(file.metadata.get("engine", "").encode(), f"{file.name}: the engine")
    with blamed(file.name):
        return kept(record, file)


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """What trips a reader of the file ``name``, or a maker of what it holds, is a :class:`StoreError`: the file is at fault."""
    try:
        yield
    except (StoreError, KernelError, MissingPackageError):
        raise
    except (HeadlongError, KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError) as error:
        raise MalformedFileError(f"{name}: its record contradicts itself or its tensors: {error}") from error


def plain(value: Any) -> Any:
    """JSON has no infinity."""
    return "inf" if value == math.inf else value


def promise_of(record: dict[str, Any]) -> Promise:
    eps, delta = (math.inf if value == "inf" else length_of(value) for value in record["promise"])
    if not (eps > 0 and delta <= 1):
        raise ValueError(f"{eps, delta} is not a promise")
    return Promise(eps, delta)


def length_of(value: Any) -> float:
    if type(value) in (int, float) and math.isfinite(value) and value >= 0:
        return float(value)
    raise ValueError(f"{value!r} is not a number from 0")


def count_of(value: Any, high: int) -> int:
    if type(value) is int and 0 <= value <= high:
        return value
    raise ValueError(f"{value!r} is not a whole number from 0 to {high}")
