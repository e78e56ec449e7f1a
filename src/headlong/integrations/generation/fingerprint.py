"""Whether parameters still hold what an engine was made of: torch counts most writes, and sums show the others.

::

    counted = (address, shape, type, version) of each parameter      every tracked in-place operation raises the version
    sums    = the sum of each row's words, modulo 2^64               a write to any word of a row changes its row's

A fused optimiser, ``.data`` and a NumPy view write without being counted. What escapes the sums: words of one row that
trade places, and changes that cancel in 64 bits.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from headlong.engines.contract import Verbs
from headlong.errors import InputError

PIECE = 2**24
"""Bytes summed at once."""


class Fingerprint:
    """Tells whether ``parameters``, each with one row per class, are what they were."""

    def __init__(self, *parameters: Tensor) -> None:
        self.counted = _counted(parameters)
        self.sums = [_sums(part) for part in parameters]

    def differs(self, parameters: tuple[Tensor, ...]) -> bool:
        """Whether any row does; reads the parameters once."""
        if _counted(parameters) != self.counted:
            return True
        return any(not torch.equal(_sums(part), seen) for part, seen in zip(parameters, self.sums, strict=True))


class KeptEngine:
    """An engine beside parameters that may change: handed out only for the numbers it was made of.

    ``suspect``  an optimiser may have written since: all rows are looked at, once
    """

    def __init__(self, engine: Verbs, parameters: tuple[Tensor, ...]) -> None:
        self.engine, self.seen, self.suspect = engine, Fingerprint(*parameters), False

    def of(self, parameters: tuple[Tensor, ...]) -> Any:
        if self.seen.counted != _counted(parameters) or (self.suspect and self.seen.differs(parameters)):
            raise InputError("the weights have changed since the engine was made; call refresh()")
        self.suspect = False
        return self.engine


class Refreshed:
    """A module that keeps an engine for the weights of some moment: it is no part of a pickle or a copy."""

    _kept: KeptEngine | None = None

    def _kept_engine(self) -> KeptEngine:
        """The engine beside the parameters that it was made of, made now where there is none yet."""
        if self._kept is None:
            self.refresh()
        assert self._kept is not None
        return self._kept

    def refresh(self) -> Any:
        """Compile for the current weights."""
        raise NotImplementedError

    def train(self, mode: bool = True) -> Self:
        if mode and self._kept is not None:  # an optimiser may write without being counted
            self._kept.suspect = True
        found: Self = super().train(mode)  # type: ignore[misc]  # the module's
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}


def _counted(parameters: tuple[Tensor, ...]) -> tuple[Any, ...]:
    # an inference tensor keeps no version, and nobody can train it; a quantised one has no address of its own
    return tuple(
        (part.data_ptr(), part.shape, part.dtype, 0 if part.is_inference() else part._version)  # noqa: SLF001
        if type(part) in (Tensor, nn.Parameter)
        else (type(part).__name__,)
        for part in parameters
    )


def _sums(parameter: Tensor) -> Tensor:
    if not parameter.numel():
        return torch.empty(0, dtype=torch.int64)
    step = max(1, PIECE // (parameter[0].numel() * parameter.element_size()))
    return torch.cat([_words(parameter, slice(at, at + step)).sum(1) for at in range(0, len(parameter), step)])


def _words(parameter: Tensor, rows: slice) -> Tensor:
    """``[rows, words]``: the bits of those rows as the widest integers that fit."""
    chosen = parameter.detach()[rows].contiguous().reshape(-1, parameter[0].numel())
    size = chosen.shape[1] * chosen.element_size()
    return chosen.view(torch.int64 if size % 8 == 0 else torch.int32 if size % 4 == 0 else torch.int16)
