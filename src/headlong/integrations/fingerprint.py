"""Whether parameters still hold what an engine was made of: torch counts most writes, and these bytes show the others.

::

    counted = (address, shape, type, version) of each parameter      every tracked in-place operation raises the version
    sample  = SAMPLE rows spread over the classes, as they were      a write to all rows (an optimiser's step) changes them
    sums    = the sum of each row's words, modulo 2^64               a write to any word of a row changes its row's

A fused optimiser, ``.data`` and a NumPy view write without being counted. One glance costs the sample and a ``TURNS``-th of
the rows, in turn; :meth:`Fingerprint.differs` reads all. What escapes the sums: words of one row that trade places, and
changes that cancel in 64 bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SAMPLE = 32
"""Rows compared bit by bit at every glance."""
TURNS = 256
"""Glances in which each row comes up once."""
PIECE = 2**24
"""Bytes summed at once."""


class Fingerprint:
    """Of ``parameters``, each with one row per class."""

    def __init__(self, *parameters: Tensor) -> None:
        self.parameters = parameters
        self.counted = _counted(parameters)
        rows = len(parameters[0])
        self.spread = torch.linspace(0, rows - 1, min(SAMPLE, rows), dtype=torch.float64).long()
        self.sample = [_words(part, self.spread) for part in parameters]
        self.sums = [_sums(part, 0, rows) for part in parameters]
        self.turn = 0

    def at_a_glance(self, parameters: tuple[Tensor, ...]) -> bool:
        """Whether the parameters differ, as far as the count, the sample and the rows whose turn it is can tell."""
        if _counted(parameters) != self.counted:
            return True
        if any(not torch.equal(_words(part, self.spread), seen) for part, seen in zip(parameters, self.sample, strict=True)):
            return True
        step = -(-len(parameters[0]) // TURNS)
        start, self.turn = self.turn * step, (self.turn + 1) % TURNS
        return self._summed_otherwise(parameters, start, start + step)

    def differs(self, parameters: tuple[Tensor, ...]) -> bool:
        """Whether any row does; reads the parameters once."""
        return _counted(parameters) != self.counted or self._summed_otherwise(parameters, 0, len(parameters[0]))

    def _summed_otherwise(self, parameters: tuple[Tensor, ...], start: int, stop: int) -> bool:
        pairs = zip(parameters, self.sums, strict=True)
        return any(not torch.equal(_sums(part, start, stop), seen[start:stop]) for part, seen in pairs)


def _counted(parameters: tuple[Tensor, ...]) -> tuple[Any, ...]:
    # an inference tensor keeps no version; nobody can train it either
    return tuple(
        (part.data_ptr(), part.shape, part.dtype, 0 if part.is_inference() else part._version)  # noqa: SLF001
        for part in parameters
    )


def _words(parameter: Tensor, rows: Any) -> Tensor:
    """``[rows, words]``: the bits of those rows as the widest integers that fit."""
    chosen = parameter.detach()[rows].contiguous().reshape(-1, parameter[0].numel())
    size = chosen.shape[1] * chosen.element_size()
    return chosen.view(torch.int64 if size % 8 == 0 else torch.int32 if size % 4 == 0 else torch.int16)


def _sums(parameter: Tensor, start: int, stop: int) -> Tensor:
    step = max(1, PIECE // max(1, parameter[0].numel() * parameter.element_size()))
    stop = min(stop, len(parameter))
    parts = [_words(parameter, slice(at, min(at + step, stop))).sum(1) for at in range(start, stop, step)]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)
