"""The blocks of a plan in an engine's file: arrays by name, numbers in the JSON record, all of it checked on the way back."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from headlong.arrays import Array
from headlong.engines.saved.record import count_of, length_of
from headlong.plan import NEIGHBOURS, Blocks, BoxLevel

MOST_LEVELS, MOST_EDGES, MOST_BATCH = 8, 15, 2**31
NAME = "plan.blocks."
ARRAYS = ("mean", "centre", "leading", "back", "rest", "rest_scale", "rest_lost", "order", "closer")


class TensorReader(Protocol):
    """What reads one tensor: its name, type and shape; None where it is absent and may be."""

    def __call__(self, name: str, dtype: Any, shape: tuple[int | None, ...], missing: bool = False) -> Any: ...


def tensors_of(blocks: Blocks) -> dict[str, Array | None]:
    """Every array by its name in the file."""
    named: dict[str, Array | None] = {NAME + name: getattr(blocks, name) for name in ARRAYS}
    return named | {f"{NAME}levels.{depth}": level.records for depth, level in enumerate(blocks.levels)}


def record_of(blocks: Blocks) -> dict[str, Any]:
    """The numbers."""
    return {
        "boxed": blocks.boxed,
        "edges": list(blocks.edges),
        "levels": [[level.codes, level.lengths] for level in blocks.levels],
        "shared": list(blocks.shared),
        "closer_shared": list(blocks.closer_shared),
        "max_batch": blocks.max_batch,
        "max_k": blocks.max_k,
        "max_k_of_batches": blocks.max_k_of_batches,
        **({"samples": True} if blocks.samples else {}),
        **({"trial": blocks.trial} if math.isfinite(blocks.trial) else {}),
    }


def read_blocks(record: Any, tensor: TensorReader, half: bool, vocab: int, dim: int) -> Blocks:
    """What :func:`tensors_of` and :func:`record_of` said. ``half``: whether the rotation is float16. Else a ValueError."""
    boxed, edges = count_of(record["boxed"], dim), tuple(count_of(edge, dim) for edge in record["edges"])
    if not 1 <= len(edges) <= MOST_EDGES or edges[0] != boxed or edges[-1] != dim or list(edges) != sorted(set(edges)):
        raise ValueError(f"blocks have the edges {edges}")
    turn = np.float16 if half else np.float32
    leading = _sound(tensor(NAME + "leading", turn, (None, dim)), "leading")
    width = len(leading)
    behind = sum(edge >= width for edge in edges[:-1])
    rest = -(-(dim - width) // NEIGHBOURS) * NEIGHBOURS
    more: dict[str, Any] = dict.fromkeys(("back", "rest", "rest_scale", "rest_lost"))
    if width < dim:
        more = {
            "back": _sound(tensor(NAME + "back", turn, (width, dim)), "back"),
            "rest": tensor(NAME + "rest", np.int8, (dim, rest)),
            "rest_scale": _sound(tensor(NAME + "rest_scale", np.float32, (rest,)), "rest_scale", least=0.0),
            "rest_lost": _sound(tensor(NAME + "rest_lost", np.float64, (behind, 3)), "rest_lost", least=0.0),
        }
    order = tensor(NAME + "order", np.int32, (-(-vocab // NEIGHBOURS) * NEIGHBOURS,))
    _check_order(order, vocab)
    levels = _levels(record["levels"], tensor, order)
    closer = None
    if width > boxed:
        lengths = sum(edge >= width for edge in edges)
        closer = tensor(NAME + "closer", np.uint8, (len(order), width - boxed + lengths + 8))
        _check_numbers(closer[:, -8:], "closer")
    mean, centre = (_sound(tensor(NAME + name, np.float64, (dim,)), name) for name in ("mean", "centre"))
    return Blocks(
        mean, centre, leading, boxed=boxed, edges=edges, order=order, levels=levels, closer=closer,
        shared=_factors(record["shared"]), closer_shared=_factors(record["closer_shared"]),
        max_batch=count_of(record["max_batch"], MOST_BATCH), max_k=count_of(record["max_k"], vocab),
        max_k_of_batches=count_of(record["max_k_of_batches"], vocab),
        samples=record.get("samples") is True,
        trial=length_of(record.get("trial", 0.0)) or math.inf, **more,
    )  # fmt: skip


def _levels(entries: Any, tensor: TensorReader, order: Array) -> tuple[BoxLevel, ...]:
    if not isinstance(entries, list) or not 1 <= len(entries) <= MOST_LEVELS:
        raise ValueError(f"blocks have from 1 to {MOST_LEVELS} levels")
    levels: list[BoxLevel] = []
    there = order >= 0
    for depth in reversed(range(len(entries))):
        count, lengths = (count_of(value, 2**16) for value in entries[depth])
        groups = -(-len(there) // NEIGHBOURS)
        records = tensor(f"{NAME}levels.{depth}", np.uint8, (groups, (count + lengths + 12) * NEIGHBOURS))
        _check_numbers(records[:, -12 * NEIGHBOURS : -4 * NEIGHBOURS], f"level {depth}")
        _check_bases(records[:, -4 * NEIGHBOURS :], np.pad(there, (0, -len(there) % NEIGHBOURS)), f"level {depth}")
        levels.insert(0, BoxLevel(records, count, lengths))
        there = np.ones(groups, bool)
    return tuple(levels)


def _check_order(order: Array, vocab: int) -> None:
    """Every class once; only the end is padded."""
    if not (np.all(order[vocab:] == -1) and np.all(order[:vocab] >= 0) and np.all(order[:vocab] < vocab)):
        raise ValueError("the block order contains invalid ids")
    found = np.zeros(vocab, bool)  # of ten million classes a count of each would take most of the time of opening their file
    found[order[:vocab]] = True
    if not found.all():
        raise ValueError("the order of blocks leaves a class out")


def _check_numbers(part: Array, name: str) -> None:
    """Scales and units: finite, none below 0."""
    numbers = np.ascontiguousarray(part).view(np.float32)
    if not (np.all(numbers >= 0) and np.all(numbers < np.inf)):
        raise ValueError(f"{name} of blocks holds a negative scale, infinity or NaN")


def _check_bases(part: Array, there: Array, name: str) -> None:
    """Finite, and -inf where there is nothing."""
    bases = np.ascontiguousarray(part).view(np.float32).reshape(-1)
    if not np.where(there, np.isfinite(bases), bases == -np.inf).all():
        raise ValueError(f"{name} of blocks holds a base that is not finite, or has one where there is no class")


def _sound(array: Array, name: str, least: float = -math.inf) -> Array:
    if array.size and not (np.isfinite(array).all() and array.min() >= least):
        raise ValueError(f"{name} of blocks holds infinity, NaN or a negative length")
    return array


def _factors(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or len(values) != 4:
        raise ValueError("blocks share four factors")
    return tuple(length_of(value) for value in values)
