"""What answers questions natively: executors of a plan, the search over blocks, gates, columns and trees.

Each function binds arrays that Python owns to a native object with the verbs of :class:`Executor`, or with those that its
docstring names.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array, bits, large_empty
from headlong.dtypes import Doubles, Floats
from headlong.native.answers import FoundDraws, FoundLse, FoundTopK
from headlong.native.arguments import Mask
from headlong.native.load_module import loaded, module
from headlong.packed_rows import stored_as
from headlong.plan import NEIGHBOURS, Plan

STRIP, TILE = 32, 64
"""Columns of a rotation, and of its codes, that lie side by side: ``csrc/blocks/rotated_query.cpp``, ``looks.h`` rely on it."""


class Executor(Protocol):
    """Answers questions from a plan, for whole batches; both executors have these verbs.

    ``hidden [batch, dim]`` float64; ``mask [1 or batch, vocab]`` uint8 or None.
    """

    @property
    def isa(self) -> str: ...

    def topk(
        self, hidden: Doubles, k: int, eps: float, mask: Mask, threads: int, delta: float = 0.0, seed: int = 0
    ) -> FoundTopK: ...

    def lse(
        self, hidden: Doubles, eps: float, mask: Mask, threads: int, delta: float = 0.0, seed: int = 0
    ) -> FoundLse: ...

    def logits(self, hidden: Doubles, ids: NDArray[np.int64], threads: int) -> Doubles:
        """``[batch, m]``, exact"""

    def sample(
        self,
        hidden: Doubles,
        n: int,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        seed: int,
        row0: int,
        mask: Mask,
        threads: int,
        class0: int = 0,
        delta: float = 0.0,
        chance: int = 0,
    ) -> FoundDraws:
        """A nucleus may be decided by rows that the seed ``chance`` draws, wrong with probability ``delta``; its draws are then
        not proved."""


def executor(
    weight: Array, bias: Floats | None, norms: Floats, link: tuple[Any, ...], plan: Plan, level: str
) -> Executor:
    """The native reader of a layer's rows alone, at ``level``; ``link`` as the link's ``lowered()`` gives it."""
    preview = None if plan.preview is None else tuple(plan.preview)
    return reader(loaded().Executor(*stored_as(weight), bias, norms, link, preview, level))


def reader(rows: Any, codes: Any = None, search: Any = None, blocks: Any = None, every: bool = True) -> Executor:
    """What answers from ``rows``, an :func:`executor`, from their ``codes``, a :func:`code_reader`, and ``search``, which
    :func:`blocks` gives for the ``headlong.plan.Blocks`` ``blocks``; see ``csrc/reader/reader.h``."""
    asked = (0, 0, 0, False)
    if blocks is not None:
        asked = blocks.max_batch, blocks.max_k, blocks.max_k_of_batches, blocks.samples
    native: Executor = loaded().Reader(rows, codes, search, asked, every)
    return native


def code_reader(executor: Any, plan: Any, level: str) -> Any:
    """A ``headlong.plan.Codes`` as native code reads it; ``executor`` reads the layer's own rows."""
    segments = [(*segment, *map(float, bounds)) for segment, bounds in zip(plan.segments, plan.bounds, strict=True)]
    return loaded().Codes(
        executor, plan.tiles, plan.mean, plan.centre, plan.rotation, segments, plan.lost, plan.most_base, level
    )


def is_native(executor: Any) -> bool:
    """Whether this is a native reader, rather than one in Python."""
    native = module()
    return native is not None and isinstance(executor, native.Reader)


def direct_call(*parts: Any) -> Any:
    """The verbs of an engine as one native call each; see ``csrc/bind/direct_call.cpp`` for the parts."""
    return loaded().DirectCall(*parts)


def blocks(weight: Array, bias: Floats | None, plan: Any, share: float, level: str, most_norm: float = 0.0) -> Any:
    """The native search over the blocks of a ``headlong.plan.Blocks``; without the largest norm of a row, logits that differ by
    less than their roundings are compared as they are."""
    back = None if plan.back is None else bits(plan.back)
    rest = None if plan.rest is None else side_by_side(plan.rest, TILE, NEIGHBOURS)
    turns = (side_by_side(bits(plan.head).T, STRIP), back, rest, plan.rest_scale, plan.rest_lost)
    levels = [(one.records, (one.codes, one.lengths)) for one in plan.levels]
    closer = None
    if plan.closer is not None:
        width = len(plan.head)
        first = plan.edges.index(width)
        closer = (plan.closer, (width - plan.look, len(plan.edges) - first), first)
    return loaded().Blocks(
        *stored_as(weight), bias, plan.mean, plan.centre, turns, plan.look, list(plan.edges), plan.order, levels,
        closer, (plan.shared, plan.closer_shared), share, level, plan.trial, most_norm,
    )  # fmt: skip


def side_by_side(matrix: Array, columns: int, rest: int = 0) -> Array:
    """``matrix [n, m]`` as ``[m / columns][n][columns]``, flat: what is read in one go is read sooner than pieces of rows.

    Columns that are left at the end lie ``rest`` by ``rest``, or (0) with the last ones.
    """
    width = matrix.shape[1]
    many = max(0, width // columns - (0 if rest else 1)) * columns
    ends = [*range(0, many, columns), *(range(many, width, rest) if rest else [many]), width]
    out, at = large_empty((matrix.size,), matrix.dtype), 0
    for first, last in itertools.pairwise(ends):
        stop = at + len(matrix) * (last - first)
        out[at:stop].reshape(len(matrix), last - first)[...] = matrix[:, first:last]
        at = stop
    return out


def neighbours(features: Floats, thread_count: int = 1) -> NDArray[np.int32]:
    """An order of the rows of ``features [n, width]`` in which neighbours are alike: see ``csrc/blocks/class_order.cpp``."""
    order: NDArray[np.int32] = loaded().neighbours(features, thread_count)
    return order


def experts(
    gate: Floats, ids: Array, starts: Array, executors: list[Executor], constant: bool, scaled: bool
) -> Any:
    """A gate ``[experts, width]`` over native executors, one for each expert, whose classes are a run of ``ids``."""
    return loaded().Experts(gate, ids, starts, executors, constant, scaled)


def adaptive(
    weight: Array, kind: str, bias: Floats | None, columns: Array, column_weight: Array, link: tuple[float, float], level: str
) -> Any:
    """The native search over coordinates; ``columns`` and ``column_weight`` as ``engines/methods/adaptive.py`` makes them."""
    return loaded().Adaptive(weight, kind, bias, columns, column_weight, link, level)


def descent(dim: int, parts: Sequence[tuple[Array, Floats | None, Array | None]], nodes: Sequence[Any], level: str) -> Any:
    """The native descent at ``level``: ``parts`` of weight, bias, projection; ``nodes`` as in ``reference/descent.py``."""
    named = [
        (bits(weight), weight.dtype.name, bias, *((None, "") if turn is None else (bits(turn), turn.dtype.name)))
        for weight, bias, turn in parts
    ]
    return loaded().Descent(dim, named, *nodes, level)
