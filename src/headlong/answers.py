"""What an engine answers: frozen records of arrays of the kind and the precision that came in.

Every field has a name; unpacked, an answer is two of them: ``log_probs, ids = engine.topk(hidden)``, as ``torch.topk`` has
them. An answer is no tuple: nothing counts, slices or rebuilds it by place, ``dataclasses.replace`` and ``fields`` take it by
name. ids are int64 and never renumbered. Log-probabilities, normalisers and ``error`` are float64 where the hidden vectors
are, else float32, and what that rounding took is part of ``error``; logits are float64, as ties are decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from headlong.dtypes import Doubles, Flags, Ids

Array = Any  # a NumPy array or a torch tensor, as the hidden vectors were


class Cost(NamedTuple):
    """What an answer took: exact rows scored and bytes read per query, rows scanned in full, and the path that ran.

    ``rows [batch]`` int64, ``bytes [batch]`` float64 (bytes that several queries read together are divided among them),
    ``dense [batch]`` bool, ``path`` such as ``"codes/avx512vnni"``.
    """

    rows: Array
    bytes: Array
    dense: Array
    path: str


def summed(costs: Sequence[Cost], path: str) -> Cost:
    """Of several questions that were one: dense where one of them was."""
    rows, read, dense = (np.stack(column) for column in list(zip(*costs, strict=True))[:3])
    return Cost(rows.sum(axis=0), read.sum(axis=0), dense.any(axis=0), path)


NOTHING, NO_IDS, NO_FLAGS = np.empty(0), np.empty(0, np.int64), np.empty(0, np.bool_)


class Answer(NamedTuple):
    """What a reader answers, in float64, whatever it was asked; what it was not asked is empty. The verbs show a view of it.

    ``ids, logits, log_probs, score [batch, k, m or n]``, best first, ids that are not there -1
    ``lse, error, kept, value [batch]``  the normaliser, or what else was asked, and how far off that is
    ``rows, bytes, full [batch]``  rows scored and bytes read for each query, and whether all rows were; ``path``: what ran
    """

    ids: Ids = NO_IDS
    logits: Doubles = NOTHING
    log_probs: Doubles = NOTHING
    lse: Doubles = NOTHING
    error: Doubles = NOTHING
    kept: Doubles = NOTHING
    proved: Flags = NO_FLAGS
    score: Doubles = NOTHING
    value: Doubles = NOTHING
    rows: Ids = NO_IDS
    bytes: Doubles = NOTHING
    full: Flags = NO_FLAGS
    path: str = ""

    @classmethod
    def of(cls, arrays: Iterable[Array], path: str = "") -> Answer:
        """From all fields but the last, in their order."""
        return cls._make([*arrays, path])

    @property
    def cost(self) -> Cost:
        return Cost(self.rows, self.bytes, self.full, self.path)

    def at(self, cost: Cost) -> Answer:
        """The same at this cost."""
        return self._replace(rows=cost.rows, bytes=cost.bytes, full=cost.dense, path=cost.path)


class View:
    """What the answers of all verbs are; unpacked, the first two fields."""

    __slots__: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Array]:
        return (getattr(self, name) for name in self.__slots__[:2])


Shown = TypeVar("Shown", bound=View | Answer)
"""What an answer is shown as: a verb's view of it, or the whole record."""


def named_fields(answer: View) -> dict[str, Any]:
    """The fields of a verb's answer by name, in their order, as they are."""
    return {name: getattr(answer, name) for name in answer.__slots__}


@dataclass(frozen=True, slots=True, eq=False)
class TopK(View):
    """The k likeliest classes: ``log_probs, ids, logits [batch, k]``, ``lse, error, proved [batch]``, ``cost``.

    Where log-probabilities were not asked for (``log_probs=False``, or ``eps=inf`` in the call), they and ``lse`` are NaN, and
    ``error`` is infinite.

    Proofs are about the numbers that the engine was compiled from: see :class:`headlong.Layer` on borrowed arrays.
    """

    log_probs: Array
    ids: Array
    logits: Array
    lse: Array
    error: Array
    proved: Array
    cost: Cost

    @classmethod
    def of(cls, a: Answer) -> TopK:
        return cls(a.log_probs, a.ids, a.logits, a.lse, a.error, a.proved, a.cost)


@dataclass(frozen=True, slots=True, eq=False)
class LogProb(View):
    """Log-probabilities of given classes: ``log_probs, logits [batch, m]``, ``lse, error [batch]``, ``cost``."""

    log_probs: Array
    logits: Array
    lse: Array
    error: Array
    cost: Cost


@dataclass(frozen=True, slots=True, eq=False)
class Lse(View):
    """The log-normaliser ``log sum_i exp(link(z_i))`` and its error, ``[batch]`` each, and the cost."""

    lse: Array
    error: Array
    cost: Cost


@dataclass(frozen=True, slots=True, eq=False)
class Entropy(View):
    """``-sum_i p_i log p_i`` in nats and its error, a log-normaliser that need not be as near, ``[batch]`` each, the cost.

    The mean of ``f(z)`` is ``engine.lse(hidden).lse - entropy``, within the sum of both errors. ``variance`` of ``-log p`` and
    how far off it may be, ``[batch]``, where ``moments`` were asked for.
    """

    entropy: Array
    error: Array
    lse: Array
    cost: Cost
    variance: Array | None = None
    variance_error: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Expected(View):
    """``sum_i p_i v_i`` of given class values ``v`` and how far off it may be, ``[batch]`` each, and the cost."""

    value: Array
    error: Array
    cost: Cost


@dataclass(frozen=True, slots=True, eq=False)
class Certificate(View):
    """The k best classes from somebody's scores: ``ids, logits [batch, k]``, best first; unpacks as these.

    ``certain [batch, k]``  places that the scores and their error alone decide; ``proved [batch]``: whether the ids are proved
    ``error [batch]``       how far off the logits may be: 0 (but for rounding) where rows were read
    ``asked [batch]``       classes that were scored from their rows; 0 where all places were certain
    """

    ids: Array
    logits: Array
    certain: Array
    proved: Array
    error: Array
    asked: Array


class Support(NamedTuple):
    """The classes that filters keep: those of row ``b`` are ``ids[offsets[b] : offsets[b + 1]]``, rising."""

    ids: Array
    offsets: Array


@dataclass(frozen=True, slots=True, eq=False)
class Sample(View):
    """Sampled classes: ``ids, logits, score, proved [batch, n]``; ``score`` is the winning ``link(z) / T + gumbel``.

    ``log_probs [batch, n]``  under the whole distribution at that temperature; ``kept [batch]``: the log of the mass that
    filters keep, so that ``log_probs - kept`` are those of the truncated one; ``error [batch]``: how far off both may be.
    None at ``eps=inf``. ``support``: the classes that are kept, where they were asked for. Unpacks as ``ids, log_probs``.
    """

    ids: Array
    logits: Array
    score: Array
    proved: Array
    cost: Cost
    log_probs: Array | None = None
    kept: Array | None = None
    error: Array | None = None
    support: Support | None = None

    def __iter__(self) -> Iterator[Array]:
        return iter((self.ids, self.log_probs))
