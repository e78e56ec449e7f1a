"""Every kind of engine over a layer, by name: what suites that state something of all of them are run over."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import headlong as hl
from headlong.engines.shards import here


def parts(layer: hl.Layer, *cuts: int) -> list[hl.Layer]:
    """The classes from each of ``cuts`` to the next, as layers."""
    bias = layer.bias
    return [
        hl.Layer(np.ascontiguousarray(layer.weight[a:b]), None if bias is None else bias[a:b], layer.link)
        for a, b in itertools.pairwise([0, *cuts, layer.vocab])
    ]


def codes(layer: hl.Layer, **options: Any) -> Any:
    return hl.compile(layer, "codes", **{"threads": 1, **options})


def calibrated(layer: hl.Layer, **options: Any) -> Any:
    return codes(layer, calibration=np.random.default_rng(3).standard_normal((300, layer.dim)), **options)


def blocks(layer: hl.Layer, **options: Any) -> Any:
    """For ids alone, where nothing else is asked for."""
    return codes(layer, **{"blocks": True, "eps": math.inf, "delta": 0.0, **options})


def shards(layer: hl.Layer, *cuts: int, method: str = "codes", **options: Any) -> Any:
    """In one process; halves, where nothing else is asked for."""
    cuts = cuts or ((layer.vocab // 2,) if layer.vocab > 1 else ())
    return here([hl.compile(part, method, **{"threads": 1, **options}) for part in parts(layer, *cuts)])


def changed(layer: hl.Layer, cut: int = 0, **options: Any) -> Any:
    """All rows from ``cut`` on (0: the last tenth), and each seventh of those before, took their places afterwards."""
    cut, bias = cut or max(1, layer.vocab * 9 // 10), layer.bias
    weight, moved = layer.weight[:cut].copy(), np.arange(0, cut, 7)
    weight[moved] = 1
    engine = codes(hl.Layer(weight, None if bias is None else bias[:cut], layer.link), **options)
    for ids in (np.arange(cut, layer.vocab), moved):
        engine = engine.with_rows(layer.weight[ids], None if bias is None else bias[ids], ids) if len(ids) else engine
    return engine


KINDS: dict[str, Callable[..., Any]] = {
    "full": lambda layer, **options: hl.compile(layer, "full", **{"threads": 1, **options}),
    "codes": codes,
    "calibrated": calibrated,
    "blocks": blocks,
    "adapting": lambda layer, **options: codes(layer, adapt=True, **options),
    "shards": shards,
    "changed": changed,
    "changed blocks": lambda layer, *cut, **options: changed(layer, *cut, **{"blocks": True, "delta": 0.0, **options}),
}
"""Over one matrix: those that prove their ids."""
STILL = {name: kind for name, kind in KINDS.items() if name != "adapting"}
"""And learn nothing from what they are asked: the same question has the same answer to the bit."""
