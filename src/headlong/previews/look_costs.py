"""What a look at all classes, and what it leaves open, cost on this machine: bytes and classes priced by :mod:`headlong.costs`.

    ns(batch) = bytes of the look * (a byte's scan / batch + its products)  +  what is read for this query alone
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.costs import Costs
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.promise import Promise

SET_UP = (8, 2)
"""Passes of all threads: what rotating a query and keeping a second level cost beside their bytes, alone and in a batch."""
FEW_BITS = 1.5
"""Of :attr:`Costs.product`: what a byte of codes of few bits costs at least that is multiplied for one query more."""
IN_TURN = 0.5
"""Of the shorter of two parts of a batch's look, reading codes and multiplying them: what does not go on beside the other."""
UNPACKED_TOGETHER = 0.8
"""Of :attr:`Costs.unpacked`, in a batch: the codes of a class are unpacked for some of its queries at once."""
WIDENED = 2.5
"""Of :attr:`Costs.product`: a byte of rows, whose numbers are made float32 first and multiplied for one query more."""
LISTED = 2.2
"""Of :attr:`Costs.product`: a byte of codes of classes here and there, which all queries of a batch are multiplied with."""
IN_BYTE = 4
"""Codes of the byte whose products :attr:`Costs.unpacked` is the price of."""
GROUPED = 0.5
"""Of :attr:`Costs.narrowed`: what every class costs a query where codes of few bits lie in groups, each with a scale and a
radius."""
TOGETHER = 8
"""Queries of a batch that is judged beside a single one."""
IN_CACHE = 1 << 21
"""Bytes that a query finds in the caches where the one before was ours, too. Every other query does not."""
HALF, HOPEFUL = 0.5, 0.9
"""Of the room for gaps: what level 1 leaves to classes that it does not look at, and what exact rows leave (by_proof.cpp)."""
BELOW, NEARLY = 0.45, 0.85
"""What goes to the classes that are bounded at once, where others have a level 1 and where they have none (joint_error.cpp)."""
ALONE, GROUPS = 256, 128
"""Of the heaviest classes so many are counted one by one, the others in so many groups."""
COUNTS = 256
"""How many numbers of exact rows are compared where the rest is drawn."""
USED = 0.1
"""Of a radius: what is typical where a bet is made."""
FARTHEST = 40.0
"""Nats: a radius beyond is as bad as any."""


class Size(NamedTuple):
    """``first`` bytes of every class, and products with codes of few bits, which are ``unpacked``; ``deeper`` bytes of one that
    goes to level 1, None: there is none; ``rotates``: the query is rotated.
    """

    first: float
    unpacked: float
    deeper: float | None
    rotates: bool


class Look(NamedTuple):
    """The radii ``[judges, classes]`` of a look, and of level 1. ``lengths [judges]``: how far all estimates are off as one
    vector; infinite where no plan says it.
    """

    size: Size
    coarse: Doubles
    fine: Doubles
    lengths: Doubles


def spent_on(layer: Layer, look: Size, gathered: Doubles | float, batch: int, costs: Costs) -> float:
    """Nanoseconds of one query of ``batch``, the mean over judges, each of which has ``gathered`` so much."""
    bytes_ = layer.vocab * look.first
    read, products = scanned(bytes_, costs), bytes_ * costs.product if batch > 1 else 0.0
    if look.unpacked:
        unpacking = layer.vocab * look.unpacked * costs.unpacked / IN_BYTE * (UNPACKED_TOGETHER if batch > 1 else 1.0)
        products = max(FEW_BITS * products, unpacking)
    total = max(read / batch, products) + (IN_TURN * min(read / batch, products) if batch > 1 else 0.0)
    total += layer.vocab * (costs.bounded if batch > 1 else GROUPED * costs.narrowed if look.unpacked else 0.0)
    if look.rotates:
        rotated = 2 * layer.dim * layer.dim
        total += SET_UP[batch > 1] * costs.level + max(scanned(rotated, costs) / batch, rotated * WIDENED * costs.product)
    every = layer.vocab * layer.dim * layer.weight.itemsize
    dense = max(scanned(every, costs) / batch, every * WIDENED * costs.product if batch > 1 else 0.0)
    return costs.call / batch + total + float(np.mean(np.minimum(gathered, dense)))


def shared(vocab: int, opened: float, bytes_: float, costs: Costs) -> float:
    """Nanoseconds of one query of a batch whose queries open so many classes on average: all are multiplied with what any of
    them opens, ``side_by_side/pass.cpp``."""
    any_ = vocab * -math.expm1(TOGETHER * math.log1p(-min(opened / vocab, 0.999)))
    return any_ * (bytes_ * LISTED * costs.product + costs.bounded + costs.row / (2 * TOGETHER))


def scanned(count: float, costs: Costs) -> float:
    """Nanoseconds of so many bytes one after another: those that the caches hold are there every other time."""
    return count * costs.memory - min(count, IN_CACHE) * max(0.0, costs.memory - costs.cache) / 2


def pass_ns(layer: Layer, costs: Costs) -> float:
    """Nanoseconds of one query's pass over all rows, normaliser and all."""
    return costs.level + scanned(layer.vocab * (layer.dim * layer.weight.itemsize + 4), costs) + costs.narrowed * layer.vocab


def look_ns(layer: Layer, bytes_: float, costs: Costs) -> float:
    """The same of a look of so many bytes, which settles the normaliser without exact rows."""
    return costs.level + scanned(bytes_, costs) + costs.narrowed * layer.vocab


class Masses(NamedTuple):
    """The terms of a normaliser in groups of classes that weigh about the same, the k best left out: they are scored anyway.

    ``classes, each``  of a group: how many, and the mass of one of them, 1 being that of all classes
    ``exact``          the mass of the k best
    """

    classes: Doubles
    each: Doubles
    exact: float


def masses_of(shares: Doubles, k: int) -> tuple[Masses, Doubles]:
    """The masses of all classes, ``shares [vocab]`` in descending order, and the mean rank of each group.

    The heavier, the fewer to a group: proofs look more closely at the heaviest, of which a sample has hardly any.
    """
    vocab, alone = len(shares), min(len(shares), k + ALONE)
    groups = np.geomspace(alone, vocab, GROUPS, endpoint=False) if alone < vocab else np.zeros(0)
    starts = np.unique(np.concatenate([np.arange(k, alone), groups.astype(np.int64)]))
    if not len(starts):
        return Masses(np.zeros(0), np.zeros(0), 1.0), np.zeros(0)
    count = np.diff(starts, append=vocab).astype(np.float64)
    return Masses(count, np.add.reduceat(shares, starts) / count, float(shares[:k].sum())), starts + (count - 1) / 2


def together(
    masses: Masses, coarse: Doubles, fine: Doubles | None, length: float, eps: float
) -> tuple[float, float]:
    """How many classes a proof looks at more closely and how many it scores, where all below a cut are bounded at once:
    ``close_together`` in normaliser/joint_error.cpp.

    ``coarse, fine``  the radii of each group;  ``length``: how far all estimates are off as one vector
    """
    if not length < FARTHEST:
        return math.inf, 0.0
    order = np.argsort(-masses.each * np.exp(np.minimum(coarse, FARTHEST)))
    count, each, radius = masses.classes[order], masses.each[order], np.clip(coarse[order], 1e-6, FARTHEST)
    bent = np.maximum.accumulate((each * (np.expm1(radius) - radius) / radius**2)[::-1])[::-1] * length**2
    left = 2 * np.sqrt(np.cumsum((count * each**2)[::-1])[::-1]) * length + bent
    room = (masses.exact + float(count @ each)) * math.expm1(2 * eps)
    fits = left <= (BELOW if fine is not None else NEARLY) * room
    first = int(np.argmax(fits)) if fits.any() else len(count)
    opened = float(count[:first].sum())
    if fine is None:
        return opened, 0.0
    gaps = 2 * each[:first] * np.sinh(np.minimum(fine[order][:first], FARTHEST))
    return opened, float(count[:first][_widest(gaps, count[:first], (1 - BELOW) * room)].sum())


def narrowed(masses: Masses, coarse: Doubles, fine: Doubles | None, eps: float) -> tuple[float, float]:
    """The same where classes are bounded one by one, as ``refine`` does in by_proof.cpp: those with the widest gaps
    ``mass * (e^radius - e^-radius)``, until the rest of them has its part of the room."""

    def widest(radius: Doubles, part: float) -> NDArray[np.bool_]:
        gaps = 2 * masses.each * np.sinh(radius)
        low = masses.exact + float((masses.classes * masses.each) @ np.exp(-radius))
        return _widest(gaps, masses.classes, part * low * math.expm1(2 * eps))

    radius, opened = np.minimum(coarse, FARTHEST), 0.0
    if not widest(radius, 1.0).any():
        return 0.0, 0.0
    if fine is not None:
        wide = widest(radius, HALF)
        opened = float(masses.classes[wide].sum())
        radius = np.where(wide, np.minimum(fine, radius), radius)
    return opened, float(masses.classes[widest(radius, HOPEFUL)].sum())


def _widest(gaps: Doubles, count: Doubles, room: float) -> NDArray[np.bool_]:
    """The groups whose gaps are more than ``room`` leaves to all others."""
    order = np.argsort(gaps)
    wide = np.ones(len(gaps), bool)
    wide[order[: int(np.searchsorted(np.cumsum((gaps * count)[order]), room, side="right"))]] = False
    return wide


def rows_to_bet(lightest: Doubles, half_width: float, promise: Promise) -> float:
    """The heaviest classes exactly, the rest drawn until both sides are refuted: ``Rule`` in csrc/normaliser/betting.h."""
    if half_width > 8:
        return math.inf
    exact = _counts(len(lightest))  # of the heaviest classes, so many
    e = np.minimum(1e9, promise.eps / np.maximum(lightest[len(lightest) - 1 - exact] * math.expm1(half_width), 1e-300))
    drawn = np.where(e < 1, 2 * (math.log(2 / promise.delta) + 0.8) * (_spread(half_width) + 0.5 * e) / e**2, 0.0)
    return float(np.min(exact + drawn))


def _spread(radius: float) -> float:
    """``E (e^g - 1)^2 / (e^radius - 1)^2``, g normal with a deviation of :data:`USED` radii: ``spread_of`` in by_bet.cpp."""
    square = (USED * radius) ** 2
    return (math.exp(2 * square) - 2 * math.exp(square / 2) + 1) / max(math.expm1(radius), 1e-9) ** 2


@functools.cache
def _counts(vocab: int) -> NDArray[np.int64]:
    return np.unique(np.geomspace(1, vocab, COUNTS).astype(np.int64)) - 1
