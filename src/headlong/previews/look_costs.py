"""What a look at all classes, and what it leaves open, cost on this machine: bytes and classes priced by :mod:`headlong.costs`.

    ns(batch) = bytes of the look * max(a byte's scan / batch, its products)  +  what is read for this query alone
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.costs import Costs
from headlong.layers.matrix import Layer
from headlong.native import Doubles

SET_UP = (8, 2)
"""Passes of all threads: what rotating a query and keeping a second level cost beside their bytes, alone and in a batch."""
UNPACKED = (1.3, 1.6)
"""What a byte of codes of few bits costs: read, and multiplied for one query more."""
TOGETHER = 8
"""Queries of a batch that is judged beside a single one."""
IN_CACHE = 1 << 21
"""Bytes that a query finds in the caches where the one before was ours, too. Every other query does not."""
HALF, HOPEFUL = 0.5, 0.9
"""Of the room for gaps: what level 1 leaves to classes that it does not look at, and what exact rows leave (by_proof.cpp)."""
BELOW, NEARLY = 0.45, 0.85
"""What goes to the classes that are bounded at once, where others have a level 1 and where they have none (joint_error.cpp)."""
FARTHEST = 40.0
"""Nats: a radius beyond is as bad as any."""


class Size(NamedTuple):
    """``first`` bytes of every class, of which ``bits`` says whether they are of few bits; ``deeper`` bytes of one that goes to
    level 1, None: there is none; ``rotates``: the query is rotated.
    """

    first: float
    bits: bool
    deeper: float | None
    rotates: bool


class Look(NamedTuple):
    """The radii ``[judges, classes]`` of a look, of the same as the normaliser counts on them, and of level 1. ``lengths
    [judges]``: how far the estimates of these classes are off as one vector; infinite where no plan says it.
    """

    size: Size
    coarse: Doubles
    likely: Doubles
    fine: Doubles
    lengths: Doubles


def spent_on(layer: Layer, look: Size, gathered: Doubles | float, batch: int, costs: Costs) -> float:
    """Nanoseconds of one query of ``batch``, the mean over judges, each of which has ``gathered`` so much."""
    read, multiplied = UNPACKED if look.bits else (1.0, 1.0)
    bytes_ = layer.vocab * look.first
    total = max(read * scanned(bytes_, costs) / batch, multiplied * bytes_ * costs.product if batch > 1 else 0.0)
    if look.rotates:
        rotated = 2 * layer.dim * layer.dim
        total += SET_UP[batch > 1] * costs.level + max(scanned(rotated, costs) / batch, rotated * costs.product)
    every = layer.vocab * layer.dim * layer.weight.itemsize
    dense = max(scanned(every, costs) / batch, every * costs.product if batch > 1 else 0.0)
    return costs.call / batch + total + float(np.mean(np.minimum(gathered, dense)))


def scanned(count: float, costs: Costs) -> float:
    """Nanoseconds of so many bytes one after another: those that the caches hold are there every other time."""
    return count * costs.memory - min(count, IN_CACHE) * max(0.0, costs.memory - costs.cache) / 2


def together(
    mass: Doubles, exact: float, coarse: Doubles, fine: Doubles | None, length: float, eps: float
) -> tuple[float, float]:
    """The same shares where all classes below a cut are bounded at once: ``close_together`` in normaliser/joint_error.cpp.

    Errors of all classes are as much longer than those of the sample as each of its classes stands for more of them.
    """
    if not length < FARTHEST:
        return 1.0, 1.0
    order = np.argsort(-mass * np.exp(np.minimum(coarse, FARTHEST)))
    mass, radius = mass[order], np.clip(coarse[order], 1e-6, FARTHEST)
    bent = np.maximum.accumulate((mass * (np.expm1(radius) - radius) / radius**2)[::-1])[::-1] * length**2
    left = 2 * np.sqrt(np.cumsum((mass**2)[::-1])[::-1]) * length + bent
    room = (exact + float(mass.sum())) * math.expm1(2 * eps)
    fits = left <= (BELOW if fine is not None else NEARLY) * room
    first = int(np.argmax(fits)) if fits.any() else len(mass)
    if fine is None:
        return first / len(mass), 0.0
    gaps = 2 * mass[:first] * np.sinh(np.minimum(fine[order][:first], FARTHEST))
    gaps = np.sort(gaps)
    return first / len(mass), (first - int(np.searchsorted(np.cumsum(gaps), (1 - BELOW) * room, side="right"))) / len(mass)


def narrowed(mass: Doubles, exact: float, coarse: Doubles, fine: Doubles | None, eps: float) -> tuple[float, float]:
    """The shares of classes that a proof looks at more closely and that it scores, as ``refine`` does in by_proof.cpp:
    those with the widest gaps ``mass * (e^radius - e^-radius)``, until the rest of them has its part of the room."""
    radius, opened = np.minimum(coarse, FARTHEST), 0.0
    if _gaps(mass, radius).sum() <= _room(mass, exact, radius, eps):
        return 0.0, 0.0
    if fine is not None:
        wide = _widest(mass, exact, radius, HALF, eps)
        opened = float(wide.mean())
        radius = np.where(wide, np.minimum(fine, radius), radius)
    return opened, float(_widest(mass, exact, radius, HOPEFUL, eps).mean())


def _widest(mass: Doubles, exact: float, radius: Doubles, part: float, eps: float) -> NDArray[np.bool_]:
    """The classes whose gaps are more than ``part`` of the room leaves to all others: ``widest`` in by_proof.cpp."""
    gap, room = _gaps(mass, radius), part * _room(mass, exact, radius, eps)
    order = np.argsort(gap)
    wide = np.ones(len(gap), bool)
    wide[order[: int(np.searchsorted(np.cumsum(gap[order]), room, side="right"))]] = False
    return wide


def _gaps(mass: Doubles, radius: Doubles) -> Doubles:
    return np.asarray(2 * mass * np.sinh(radius))


def _room(mass: Doubles, exact: float, radius: Doubles, eps: float) -> float:
    """What the gaps of all classes may add up to."""
    return (exact + float(mass @ np.exp(-radius))) * math.expm1(2 * eps)
