"""What an engine answers: NamedTuples of arrays of the kind that came in.

Values first, ids second, as ``torch.topk``. Floating-point answers are float64; ids are int64 and never renumbered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Array = Any  # a NumPy array or a torch tensor, as the hidden vectors were


class Cost(NamedTuple):
    """What an answer took: exact rows scored and bytes read per query, rows finished densely, and the path that ran.

    ``rows [batch]`` int64, ``bytes [batch]`` float64 (bytes that several queries read together are divided among them),
    ``dense [batch]`` bool, ``path`` such as ``"cascade/avx512vnni"``.
    """

    rows: Array
    bytes: Array
    dense: Array
    path: str


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


class LogProb(NamedTuple):
    """Log-probabilities of given classes: ``log_probs, logits [batch, m]``, ``lse, error [batch]``, ``cost``."""

    log_probs: Array
    logits: Array
    lse: Array
    error: Array
    cost: Cost


class Lse(NamedTuple):
    """The log-normaliser ``log sum_i exp(link(z_i))`` and its error, ``[batch]`` each, and the cost."""

    lse: Array
    error: Array
    cost: Cost


class Sample(NamedTuple):
    """Sampled classes: ``ids, logits, score, proved [batch, n]``; ``score`` is the winning ``link(z) / T + gumbel``."""

    ids: Array
    logits: Array
    score: Array
    proved: Array
    cost: Cost
