"""What the passes over a matrix on a device hand to each other."""

from __future__ import annotations

from typing import Any, NamedTuple

from headlong.engines.device.memory import Tensor


class Call(NamedTuple):
    """One checked call on the device: ``hidden [batch, dim]`` float64 and as it came, noise numbers, what is masked."""

    hidden: Tensor
    narrow: Tensor
    length: Tensor
    mask: Tensor | None
    heat: Tensor
    seed: Tensor
    rows: Tensor
    draws: Tensor
    class0: Tensor

    @property
    def batch(self) -> int:
        return int(self.hidden.shape[0])

    @property
    def noise(self) -> tuple[Tensor, ...]:
        """The arguments that every kernel with noise ends with."""
        return self.heat, self.seed, self.rows, self.draws, self.class0


class Looked(NamedTuple):
    """After the look at all classes: upper ends ``[batch, vocab]``, the best of each tile, and sums ``[batch, tiles, 3]``."""

    high: Tensor
    best: Tensor
    best_ids: Tensor
    mass: Tensor
    estimate: Tensor
    sides: Any = ()
    shared: Tensor | None = None


class Finalists(NamedTuple):
    """The k best: ``ids, logits, keys [batch, k]``; ``count [batch]`` candidates, ``over [batch]``: beyond the capacity;
    ``kept, scores [batch, capacity]``: every candidate and its exact logit; ``passed [batch]``: what the first look left."""

    ids: Tensor
    logits: Tensor
    keys: Tensor
    count: Tensor
    over: Tensor
    kept: Tensor
    scores: Tensor
    passed: Tensor
