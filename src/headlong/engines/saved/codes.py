"""Rotated codes in a file: tensors and a record, and what of them is believed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headlong.arrays import Array
from headlong.engines.saved.record import count_of, length_of
from headlong.plan import CODE_BITS, GROUP, TILE, Codes, Segment, TileLayout, out_of_range, tiles_out_of_range

NAMES = ("tiles", "mean", "centre", "rotation", "bounds")
MOST_SEGMENTS = 16
"""As ``csrc/scan/tiles.h`` has it."""


def tensors_of(codes: Codes) -> dict[str, Array]:
    return {f"plan.codes.{name}": getattr(codes, name) for name in NAMES}


def record_of(codes: Codes) -> dict[str, Any]:
    return {"segments": codes.segments, "lost": codes.lost, "most_base": codes.most_base}


def read_codes(record: Any, tensor: Callable[..., Any], vocab: int, dim: int) -> Codes | None:
    """What the two made; ValueError where the record does not fit the layer or the tensors. ``tensor(name, dtype, shape)``
    reads one.
    """
    if record is None:
        return None
    segments = tuple(Segment(*(count_of(number, 2**31 - 1) for number in one)) for one in record["segments"])
    if not 1 <= len(segments) <= MOST_SEGMENTS or [*(one.start for one in segments), dim] != [
        0,
        *(one.stop for one in segments),
    ]:
        raise ValueError(f"codes have the segments {segments} of {dim} coordinates")
    if any(one.stop - one.start < 2 or one.bits not in CODE_BITS or one.planes not in (1, 2) for one in segments):
        raise ValueError(f"codes have the segments {segments}")
    panels = sum(-(-(one.stop - one.start) // GROUP) for one in segments)
    bounds = tensor("plan.codes.bounds", np.float64, (len(segments), 4))
    mean, centre = (tensor(f"plan.codes.{name}", np.float64, (dim,)) for name in ("mean", "centre"))
    rotation = tensor("plan.codes.rotation", np.float32, (panels, dim, GROUP))
    tiles = tensor("plan.codes.tiles", np.uint8, (-(-vocab // TILE), TileLayout.of(segments).bytes))
    found = Codes(tiles, mean, centre, rotation, segments, bounds, length_of(record["lost"]), length_of(record["most_base"]))
    if fault := out_of_range(found) or tiles_out_of_range(found, vocab):
        raise ValueError(f"codes: {fault}")
    return found
