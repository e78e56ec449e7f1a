"""A function of numbers on a Ray cluster, as ``map`` calls it here.

::

    truth(("items.parquet", "embedding"), queries, parts=16, run=on_ray)      each part on some machine that sees the file
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from headlong.errors import MissingPackageError

Answer = TypeVar("Answer")


def on_ray(function: Callable[[int], Answer], numbers: Iterable[int]) -> list[Answer]:
    """``[function(number) for number in numbers]``, each a task of the cluster that runs, or of one that is started here."""
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError("parts are spread by Ray, which is not installed: pip install ray") from error
    if not ray.is_initialized():
        ray.init()

    def one(number: int) -> Answer:
        return function(number)

    task = ray.remote(one)
    found: list[Answer] = ray.get([task.remote(number) for number in numbers])
    return found
