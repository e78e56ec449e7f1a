"""Buckets of neighbouring classes, and what each says of all its members' logits at once.

::

    z_i = <c, h> + <w_i - c, h - a> + e_i        e_i = b_i + <w_i - c, a>         c, a: the bucket's centre and anchor
    <c, h> + min_s (low_s - radius_s ‖h - a‖)  <=  z_i  <=  <c, h> + max_s (high_s + radius_s ‖h - a‖)

for any ``h``, over the shells s of a bucket: classes sorted by ‖w_i - c‖, whose largest is the shell's radius, and the
ends of their e. The anchor takes up what biases have to do with rows: where b falls with ‖w‖^2 / 2 at the rate kappa, as in
kernel densities and nearest neighbours, it is kappa c, and the interval is that of a ball around the bucket's points.
Buckets are made by cutting the widest one in two along its main direction, where two means would.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.layers.matrix import Layer
from headlong.native import Doubles

Ids = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]
SAMPLE, TURNS, SHELLS = 512, 4, 8
PIECE = 1 << 16
EXPLAINED = 0.5
"""The share of the biases' variance from which on anchors are worth while."""


class Ball(NamedTuple):
    """What is kept of a bucket."""

    centre: Doubles
    anchor: Doubles
    shells: Doubles
    """``[3, shells]``: radius, low, high."""


def default_buckets(vocab: int) -> int:
    """Four times the root of the classes, a power of two."""
    return int(2 ** max(0, round(math.log2(4 * math.sqrt(vocab))))) if vocab > 1 else 1


def bucket_arrays(layer: Layer, buckets: int) -> Arrays:
    """``order``: classes by bucket; ``starts [n + 1]``; ``centre, anchor [n, dim]``; the shells' ``radius, low, high``."""
    weight = layer.weight
    parts = clusters(weight, min(buckets, layer.vocab))
    kappa = curvature(layer)
    balls = [ball(weight[part].astype(np.float64), None if layer.bias is None else layer.bias[part], kappa) for part in parts]
    sizes = np.array([len(part) for part in parts])
    arrays: Arrays = {
        "order": np.concatenate(parts),
        "starts": np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        "centre": np.stack([one.centre for one in balls]),
        "radius": np.stack([one.shells[0] for one in balls]),
        "low": np.stack([one.shells[1] for one in balls]),
        "high": np.stack([one.shells[2] for one in balls]),
    }
    if any(one.anchor.any() for one in balls):
        arrays["anchor"] = np.stack([one.anchor for one in balls])
    return arrays


def clusters(weight: NDArray[Any], buckets: int) -> list[Ids]:
    """Classes in ``buckets`` parts, each in ascending order: the widest part is cut in two, again and again."""
    rng = np.random.default_rng(0)
    parts = [(-math.inf, 0, np.arange(len(weight)))]
    for number in range(1, buckets):
        _, _, ids = heapq.heappop(parts)
        for side, part in enumerate(cut(weight, ids, rng)):
            some = weight[part[rng.integers(0, len(part), min(SAMPLE, len(part)))]].astype(np.float64)
            spread = len(part) * float(some.var(axis=0).sum()) if len(part) > 1 else 0.0
            heapq.heappush(parts, (-spread if len(part) > 1 else 1.0, 2 * number + side, part))
    return [np.sort(ids) for _, _, ids in parts]


def cut(weight: NDArray[Any], ids: Ids, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Two means along the main direction of ``ids``; halves where that leaves a side empty."""
    sample = weight[ids[rng.integers(0, len(ids), min(SAMPLE, len(ids)))]].astype(np.float64)
    main = direction(sample)
    line, along = np.sort(sample @ main), weight[ids].astype(np.float64) @ main
    if len(line) > 1:
        counts, sums = np.arange(1, len(line)), np.cumsum(line)
        # the cut that leaves least around the two means is the one that moves the means most
        gain = sums[:-1] ** 2 / counts + (sums[-1] - sums[:-1]) ** 2 / (len(line) - counts)
        place = int(gain.argmax())
        first = along <= (line[place] + line[place + 1]) / 2
        if 0 < first.sum() < len(ids):
            return ids[first], ids[~first]
    order = np.argsort(along, kind="stable")
    return ids[order[: len(ids) // 2]], ids[order[len(ids) // 2 :]]


def direction(rows: NDArray[Any]) -> Doubles:
    """The main direction of some rows, by a few steps of the power method."""
    wide = rows.astype(np.float64)
    wide = wide / (np.abs(wide).max() or 1.0)
    wide -= wide.mean(axis=0)
    found = wide[int((wide * wide).sum(axis=1).argmax())]
    for _ in range(TURNS):
        found = wide.T @ (wide @ found)
        found = found / (np.linalg.norm(found) or 1.0)
    return np.asarray(found)


def curvature(layer: Layer) -> float:
    """``kappa`` of ``b = constant - kappa ‖w‖^2 / 2`` by least squares; 0 where that says little of the biases."""
    if layer.bias is None:
        return 0.0
    bias, squares = layer.bias.astype(np.float64), _squares(layer.weight) / -2
    bias, squares = bias - bias.mean(), squares - squares.mean()
    power, spread = float(squares @ squares), float(bias @ bias)
    if not 0 < power < math.inf or not 0 < spread < math.inf:
        return 0.0
    kappa = float(squares @ bias) / power
    return kappa if kappa * kappa * power > EXPLAINED * spread else 0.0


def _squares(weight: NDArray[Any]) -> Doubles:
    parts = (weight[start : start + PIECE].astype(np.float64) for start in range(0, len(weight), PIECE))
    return np.concatenate([(part * part).sum(axis=1) for part in parts])


def ball(rows: Doubles, bias: NDArray[np.float32] | None, kappa: float) -> Ball:
    """Centre, anchor and shells of one bucket; what rounding may have moved is in the radius and in the ends."""
    dim = rows.shape[1]
    centre = rows.mean(axis=0)
    away, anchor = rows - centre, kappa * centre
    ends = np.zeros(len(rows)) if bias is None else bias.astype(np.float64) + away @ anchor
    lengths = np.sqrt((away * away).sum(axis=1))
    slack = 2.0**-50 * (dim + 8) * (lengths * float(np.linalg.norm(anchor)) + np.abs(ends) + 1e-300)
    order = np.argsort(lengths)
    places = np.linspace(0, len(rows), SHELLS + 1).astype(int)
    parts = [order[min(a, len(rows) - 1) : max(b, min(a, len(rows) - 1) + 1)] for a, b in itertools.pairwise(places)]
    shells = [[lengths[p].max() * (1 + 1e-12), (ends - slack)[p].min(), (ends + slack)[p].max()] for p in parts]
    return Ball(centre, anchor, np.array(shells).T)
