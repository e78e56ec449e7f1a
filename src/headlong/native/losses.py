"""Softmax cross-entropy over a link and its gradient, for heads that PyTorch cannot fuse."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import Doubles, Floats
from headlong.native.instruction_level import isa
from headlong.native.load_module import loaded


def link_losses(
    logits: Floats, target: NDArray[np.int64], link: tuple[Any, ...], thread_count: int
) -> tuple[Doubles, Doubles]:
    """``lse, f(z[target])`` of each row of ``logits [rows, vocab]``, the softmax being over ``f(z)``.

    ``link``  ``("affine", a, b)``, ``("softcap", cap, 0)``, ``("gss", centre, power)``, or ``("table", start, step, base,
              slope)`` with ``base, slope [cells + 2]`` float32: cell 0 lies below ``start`` and counts from one step below it
    """
    lse, at_target = loaded().link_losses(logits, target, link, thread_count, isa())
    return lse, at_target


def link_gradients(
    logits: Floats, target: NDArray[np.int64], lse: Doubles, scale: Floats, link: tuple[Any, ...], thread_count: int
) -> Doubles:
    """Turns ``logits`` in place into ``scale (softmax(f(z)) - onehot) f'(z)``; returns what the link's parameters need.

    With ``g`` the same without ``f'``: of a table the sums over its cells of ``g`` and of ``g (z - knot)``, ``[2, cells +
    2]``; of the others the sums of ``g z`` and of ``g``, ``[2, 1]``.
    """
    sums: Doubles = loaded().link_gradients(logits, target, lse, scale, link, thread_count, isa())
    return sums
