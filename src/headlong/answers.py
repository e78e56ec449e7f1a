"""What an engine answers: NamedTuples of arrays of the kind and the precision that came in.

Every field has a name; unpacked, an answer is its first two: ``log_probs, ids = engine.topk(hidden)``, as ``torch.topk`` has
them. ids are int64 and never renumbered. Log-probabilities, normalisers and ``error`` are float64 where the hidden vectors
are, else float32, and what that rounding took is part of ``error``; logits are float64, as ties are decided.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

Array = Any  # a NumPy array or a torch tensor, as the hidden vectors were
Answer = TypeVar("Answer", bound=Any)


class Cost(NamedTuple):
    """What an answer took: exact rows scored and bytes read per query, rows scanned in full, and the path that ran.

    ``rows [batch]`` int64, ``bytes [batch]`` float64 (bytes that several queries read together are divided among them),
    ``dense [batch]`` bool, ``path`` such as ``"codes/avx512vnni"``.
    """

    rows: Array
    bytes: Array
    dense: Array
    path: str


def unpacked(kind: type[Answer]) -> type[Answer]:
    """The NamedTuple, which unpacks as its first two fields, a draw as ids and log-probabilities; ``answer[:]`` is all."""
    names = ("ids", "log_probs") if "score" in kind._fields else kind._fields[:2]

    def replace(self: Any, **changes: Any) -> Any:
        return kind(**{**self._asdict(), **changes})

    more: dict[str, Any] = {
        "__iter__": lambda self: iter([getattr(self, name) for name in names]),
        "__getnewargs__": lambda self: tuple(self[:]),  # for pickle, which would unpack two
        "_asdict": lambda self: dict(zip(kind._fields, self[:], strict=True)),
        "_replace": replace,
    }
    for name, method in more.items():
        setattr(kind, name, method)
    return kind


@unpacked
class TopK(NamedTuple):
    """The k likeliest classes: ``log_probs, ids, logits [batch, k]``, ``lse, error, proved [batch]``, ``cost``.

    Proofs are about the numbers that the engine was compiled from: see :class:`headlong.Layer` on borrowed arrays.
    """

    log_probs: Array
    ids: Array
    logits: Array
    lse: Array
    error: Array
    proved: Array
    cost: Cost


@unpacked
class LogProb(NamedTuple):
    """Log-probabilities of given classes: ``log_probs, logits [batch, m]``, ``lse, error [batch]``, ``cost``."""

    log_probs: Array
    logits: Array
    lse: Array
    error: Array
    cost: Cost


@unpacked
class Lse(NamedTuple):
    """The log-normaliser ``log sum_i exp(link(z_i))`` and its error, ``[batch]`` each, and the cost."""

    lse: Array
    error: Array
    cost: Cost


@unpacked
class Entropy(NamedTuple):
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


class Support(NamedTuple):
    """The classes that filters keep: those of row ``b`` are ``ids[offsets[b] : offsets[b + 1]]``, rising."""

    ids: Array
    offsets: Array


@unpacked
class Sample(NamedTuple):
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
