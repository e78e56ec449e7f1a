"""How much one program takes on a device: classes of a tile, queries, columns, rows, warps."""

from __future__ import annotations

from typing import NamedTuple


class TileSizes(NamedTuple):
    """What one program takes: ``classes`` of a look at one query or at several (``wide``), ``columns`` of a row at a time,
    exact ``rows`` (``exact`` columns at a time), ``noise`` and ``order`` of the candidates, upper ends to ``select`` from.
    ``programs`` that settle at once: two for each multiprocessor. ``dp4a``: whether there is such an instruction."""

    classes: int = 64
    wide: int = 128
    columns: int = 64
    rows: int = 16
    noise: int = 128
    order: int = 64
    select: int = 1024
    exact: int = 256
    programs: int = 264
    dp4a: bool = True


TILE_SIZES = TileSizes()
INTERPRETED = TileSizes(classes=256, wide=256, rows=256, noise=1024, order=512, programs=2, dp4a=False)
"""The interpreter pays for each operation, not for its size."""
WARPS = {1: 4, 16: 8, 32: 8}
"""Warps of a program that looks at so many queries: with fewer, registers do not suffice."""


def queries_together(batch: int) -> int:
    """Queries of a batch that one program looks for: one by one, or as many as a matrix product takes."""
    return 1 if batch <= 4 else 16 if batch <= 16 else 32
