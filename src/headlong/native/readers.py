"""What answers questions natively: the reader of a layer, the search over blocks, gates, columns and trees.

Each function binds arrays that Python owns to a native object with the verbs that its docstring names.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headlong.answers import Answer, Cost, Entropy, LogProb, Lse, Sample, Shown, TopK
from headlong.arrays import Array, answer_like, as_numpy, bits, large_empty
from headlong.dtypes import BFLOAT16, Doubles, Floats
from headlong.errors import KernelError
from headlong.links import Link
from headlong.native.load_module import loaded
from headlong.packed_rows import stored_as
from headlong.plan import NEIGHBOURS, Blocks, Codes, Plan
from headlong.question import FLOAT32_ROOM, RANGES, About, Question

STRIP, SPREAD = 32, 64
"""Columns of a rotation, and of its codes, that lie side by side: ``csrc/blocks/rotated_query.cpp``, ``looks.h`` rely on it."""


class Reader(Protocol):
    """Answers questions about a layer; ``hidden [batch, dim]`` float64, questions that were checked."""

    @property
    def isa(self) -> str: ...

    def ask(self, hidden: Doubles, question: Question) -> Answer: ...


class Show(Protocol):
    """``reader.show(hidden, question, view)``: the answer in the kind and precision of the caller's array, as a verb shows it.
    None: this reader has none, or Python is to look at the arguments, which nobody has checked."""

    def __call__(self, hidden: Any, question: Question, view: type[Shown], /) -> Shown | None: ...


class NativeReader:
    """The native reader of a layer's rows, of their codes and blocks: ``csrc/reader/reader.h`` says which of them answers."""

    def __init__(
        self, rows: Any, about: About, codes: Any = None, search: Any = None, blocks: Blocks | None = None, every: bool = True
    ) -> None:
        limits = (0, 0, 0, False)
        if blocks is not None:
            limits = blocks.max_batch, blocks.max_k, blocks.max_k_of_batches, blocks.samples
        self.rows, self.about, self.every = rows, about, every
        self._bound = loaded().Reader(_records(), rows, codes, search, limits, every, about)
        self.show: Show = self._bound.ask
        self.isa: str = self._bound.isa

    @property
    def capsule(self) -> Any:
        """The executor of its rows, for native code."""
        return self._bound.capsule

    def estimates(self, hidden: Doubles, kappa: float, seed: int) -> tuple[Floats, Floats]:
        """The estimates of all classes by the codes, and how far off they are."""
        found: tuple[Floats, Floats] = self._bound.estimates(hidden, kappa, seed)
        return found

    def ask(self, hidden: Doubles, question: Question) -> Answer:
        found = self.show(hidden, question, Answer)
        if found is None:
            raise KernelError(f"this reader has no answer to a question about {question.verb!r}; report it")
        return found


@functools.cache
def _records() -> Any:
    """What native code has to know of Python's records."""
    ranges = RANGES | {"float32 room": FLOAT32_ROOM}
    return loaded().Records((TopK, Lse, LogProb, Sample, Entropy, Answer), Cost, BFLOAT16, ranges, as_numpy, answer_like)


def rows_of(weight: Array, bias: Floats | None, norms: Floats, link: Link, plan: Plan, level: str) -> Any:
    """A layer's rows, bound at ``level``: what :class:`NativeReader` reads."""
    preview = None if plan.preview is None else tuple(plan.preview)
    return loaded().Executor(*stored_as(weight), bias, norms, link.lowered(), preview, level)


def code_reader(rows: Any, plan: Codes, level: str) -> Any:
    """A ``headlong.plan.Codes`` as native code reads it; ``rows`` are the layer's own."""
    segments = [(*segment, *map(float, bounds)) for segment, bounds in zip(plan.segments, plan.bounds, strict=True)]
    # They hold float32, too, which a file may have put at any byte.
    tiles = plan.tiles if plan.tiles.ctypes.data % np.float32().itemsize == 0 else plan.tiles.copy()
    return loaded().Codes(rows, tiles, plan.mean, plan.centre, plan.rotation, segments, plan.lost, plan.most_base, level)


def blocks(weight: Array, bias: Floats | None, plan: Blocks, share: float, level: str, most_norm: float = 0.0) -> Any:
    """The native search over the blocks of a ``headlong.plan.Blocks``; without the largest norm of a row, logits that differ by
    less than their roundings are compared as they are."""
    back = None if plan.back is None else bits(plan.back)
    rest = None if plan.rest is None else side_by_side(plan.rest, SPREAD, NEIGHBOURS)
    turns = (side_by_side(bits(plan.leading).T, STRIP), back, rest, plan.rest_scale, plan.rest_lost)
    levels = [(one.records, (one.codes, one.lengths)) for one in plan.levels]
    closer = None
    if plan.closer is not None:
        width = len(plan.leading)
        first = plan.edges.index(width)
        closer = (plan.closer, (width - plan.boxed, len(plan.edges) - first), first)
    return loaded().Blocks(
        *stored_as(weight), bias, plan.mean, plan.centre, turns, plan.boxed, list(plan.edges), plan.order, levels,
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
    gate: Floats, ids: Array, starts: Array, readers: list[NativeReader], constant: bool, scaled: bool
) -> Any:
    """A gate ``[experts, width]`` over native executors, one for each expert, whose classes are a run of ``ids``."""
    return loaded().Experts(gate, ids, starts, readers, constant, scaled)


def adaptive(
    weight: Array, bias: Floats | None, columns: tuple[Array, Array], link: tuple[float, float], level: str
) -> Any:
    """The native search over coordinates; ``columns`` and their weight as ``engines/methods/adaptive.py`` makes them."""
    return loaded().Adaptive(bits(weight), weight.dtype.name, bias, *columns, link, level)


def descent(dim: int, parts: Sequence[tuple[Array, Floats | None, Array | None]], nodes: Sequence[Any], level: str) -> Any:
    """The native descent at ``level``: ``parts`` of weight, bias, projection; ``nodes`` as in ``reference/descent.py``."""
    named = [
        (bits(weight), weight.dtype.name, bias, *((None, "") if turn is None else (bits(turn), turn.dtype.name)))
        for weight, bias, turn in parts
    ]
    return loaded().Descent(dim, named, *nodes, level)
