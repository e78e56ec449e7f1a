"""How many coordinates a prefix should have, or how many bits all of them: the least expected time of a query, counted on some
calibration vectors and priced by what this machine costs (:mod:`headlong.costs`).

    ns(w, batch) = the look at all classes + level 1 for those whose interval reaches the k-th best logit
                 + level 1 and exact rows that the normaliser takes to keep its promise,   at most what a dense pass takes
    chosen       = argmin over w of   ns(w, 1) * ns(w, TOGETHER),   neither much longer than int8 codes of all coordinates take

A look is read once for all queries of a batch, which then costs each of them its products; what is read further is each query's
own, but for classes that one query of it opens: their codes are multiplied with all of them. So a look that is short and leaves
much open may win for one query and lose for eight: both count alike.

Radii are those that a plan of width w would have, on a sample of the classes; int8 codes of all coordinates, and codes of few
bits where the energy is, are judged by the same count: a layer without leading coordinates keeps the former, one whose energy
falls off slowly gets the latter.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from headlong.costs import Costs, here
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.previews.encode import Groups
from headlong.previews.few_bits import Planes, balance_of, energy_of, filled, groups_of, lost_by, read_first
from headlong.previews.joint_error import about_norm
from headlong.previews.judges import Seen, blended, judges_of, see
from headlong.previews.look_costs import (
    TOGETHER,
    Look,
    Size,
    narrowed,
    rows_to_bet,
    shared,
    spent_on,
    together,
)
from headlong.previews.prefix import FIRST_SEGMENT, spread, tail_of
from headlong.previews.whitening import Basis, Directions
from headlong.promise import Promise

CANDIDATES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
BITS = (2.0, 2.25, 2.5, 2.75, 3.0, 3.25, 3.5, 3.75, 4.0, 5.0, 6.0)
"""On average, by coordinates in the order of their energy: close to each other, for with half a bit less a query may open a
tenth of the classes where it opened a hundredth."""
EXPENSIVE = 0.25
"""Of the share of candidates beyond which a query is read densely: such a judge counts as one that is."""
CLASS, CODES_READ = 1.4, 0.6
"""What a class costs that goes to level 1, in rows read alone, and a byte of its codes there, in bytes of such rows."""
SIDE_BY_SIDE = 8192
"""Classes from which queries of a batch are asked side by side: ``kLeastClasses`` in group_queries.cpp."""
OPENED_BY_ROWS = 2.0
"""How many times as much a hidden vector opens as one that stands in for it."""
SOONER, SLOWER = 0.9, 1.1
"""Of the time of int8 codes, or of a pass over all rows: what a look in their place is expected to take at most, a smaller
difference is within the error. Of int8 codes' time: what it may take at most alone and in a batch, for whoever asks in batches
has nothing of queries that would be faster alone."""
CODE_LOSS = 0.008
"""‖w - w^‖ / ‖w‖ of int8 codes."""
EVEN = 1.3
"""How much longer what codes lose is in its longest direction than on average."""
DEEPER = 0.75
"""Of a byte: what level 1 reads of every coordinate behind few bits."""


class Choice(NamedTuple):
    """A prefix of ``width`` coordinates, or ``bits`` of all on average; both None: int8 codes of all."""

    width: int | None = None
    bits: float | None = None


def best_look(
    layer: Layer, basis: Basis | Directions, rows: Doubles, calibration: Doubles, promise: Promise, share: float,
    few_bits: bool = True, threads: int = 1, stood_in: bool = False, costs: Costs | None = None,
) -> Choice:  # fmt: skip
    """The first look that is expected to be the fastest, or int8 codes of all where none is by a tenth. ``rows``: those of the
    layer that are :func:`sampled` in that basis; ``few_bits``: few bits of all coordinates may be it, too; ``stood_in``:
    ``calibration`` are rows in place of hidden vectors, which may be quite unlike them: blends of rows judge as well, all are
    taken to open :data:`OPENED_BY_ROWS` times as much, and may be :data:`SLOWER` in batches: too little is known of these."""
    judges = np.concatenate([calibration, blended(layer, calibration)]) if stood_in else calibration
    seen = see(layer, basis, rows, judges[:: -(-len(judges) // judges_of(layer.vocab, promise))], promise, threads)
    energy = energy_of(rows) if few_bits else np.ones(1)
    looks: dict[Choice, int | Groups | None] = {Choice(): None}
    looks |= {Choice(width): width for width in CANDIDATES if width < layer.dim}
    looks |= {Choice(None, bits): groups_of(Planes(filled(energy, bits), 6)) for bits in (BITS if few_bits else ())}
    costs = here() if costs is None else costs
    floors = {choice: _spent(layer, size_of(layer, width), 0.0, 0.0, costs).mean for choice, width in looks.items()}
    best = Choice()
    int8 = expected(layer, seen, looks.pop(best), promise, share, costs, stood_in)
    least = SOONER * int8.mean
    for choice in sorted(looks, key=lambda choice: floors[choice]):
        if floors[choice] > least:  # its look alone takes longer
            break
        found = expected(layer, seen, looks[choice], promise, share, costs, stood_in)
        slower = max(found.alone / int8.alone, found.batch / int8.batch) > SLOWER
        if found.mean < least and (stood_in or not slower):
            best, least = choice, found.mean
    return best


class Spent(NamedTuple):
    """Nanoseconds of one query, and of one of a batch."""

    alone: float
    batch: float

    @property
    def mean(self) -> float:
        """Geometric."""
        return math.sqrt(self.alone * self.batch)


def expected(
    layer: Layer, seen: Seen, width: int | Groups | None, promise: Promise, share: float, costs: Costs,
    stood_in: bool = False,
) -> Spent:  # fmt: skip
    """What queries are expected to take. ``width`` None: int8 codes of all; groups: of few bits."""
    look = look_of(layer, seen, width, promise)
    each = [_gathered(layer, promise, seen, judge, look, share, costs) for judge in range(len(seen.best))]
    alone, opened, own = np.array(each).T
    if np.isfinite(own).any():
        own += shared(layer.vocab, float(opened[np.isfinite(own)].mean()), look.size.deeper or 0.0, costs)
    return _spent(layer, look.size, OPENED_BY_ROWS * alone if stood_in else alone, own, costs)


def _spent(layer: Layer, size: Size, alone: Doubles | float, batch: Doubles | float, costs: Costs) -> Spent:
    return Spent(spent_on(layer, size, alone, 1, costs), spent_on(layer, size, batch, TOGETHER, costs))


def size_of(layer: Layer, width: int | Groups | None) -> Size:
    """The bytes that a look of ``width`` reads."""
    dim = layer.dim
    if width is None:
        return Size(6 * 4 + dim, 0, None, False)
    if isinstance(width, Groups):
        return Size(*read_first(width), dim * DEEPER, True)
    segments = len(spread(0, FIRST_SEGMENT, 4, width)) + len(tail_of(width, dim))
    return Size(width + 4 * (2 + segments), 0, dim - width, True)


def look_of(layer: Layer, seen: Seen, width: int | Groups | None, promise: Promise) -> Look:
    """What a look of ``width`` reads, and how far it can be off."""
    size, dim, fine = size_of(layer, width), layer.dim, _radii(seen, ((0, layer.dim),), CODE_LOSS)
    if width is None:
        return Look(size, seen.whole, fine, _lengths(layer, seen, width, promise))
    if isinstance(width, Groups):
        coarse, unread = _radii_of_groups(seen, width)
        return Look(size, coarse, fine + unread, _lengths(layer, seen, width, promise))
    head, tail = spread(0, FIRST_SEGMENT, 4, width), tail_of(width, dim)
    coarse = _radii(seen, head, CODE_LOSS) + _radii(seen, tail, 1.0)
    return Look(size, coarse, fine, _lengths(layer, seen, width, promise))


def _gathered(
    layer: Layer, promise: Promise, seen: Seen, judge: int, look: Look, share: float, costs: Costs
) -> tuple[float, float, float]:
    """Nanoseconds that one query spends beyond the look at all classes, alone; of a batch, the classes that it opens for all,
    and the nanoseconds of what is its own. Infinite where it is read densely."""
    vocab = layer.vocab
    row = costs.row + costs.gathered * layer.dim * layer.weight.itemsize
    deeper = look.size.deeper
    closer = row if deeper is None else CLASS * costs.row + CODES_READ * costs.gathered * deeper
    reach = seen.logits[judge] + look.coarse[judge]
    candidates, early = (vocab * float(np.mean(reach >= least)) for least in (seen.best[judge], seen.found[judge]))
    if candidates > EXPENSIVE * share * vocab:
        return math.inf, 0.0, math.inf
    side_by_side = deeper is not None and vocab >= SIDE_BY_SIDE and (promise.delta > 0 or math.isinf(promise.eps))

    def both(opened: float, rest: float) -> tuple[float, float, float]:
        """With classes that are looked at closer beside the candidates, and nanoseconds of what is each query's own."""
        alone = (candidates + opened) * closer + rest
        return (alone, early + opened, rest) if side_by_side else (alone, 0.0, alone)

    if math.isinf(promise.eps):
        return both(0.0, 0.0)
    masses, nearest = seen.masses[judge]
    coarse, fine = look.coarse[judge][nearest], look.fine[judge][nearest]
    if promise.delta == 0:
        finer = None if deeper is None else fine
        one_by_one = narrowed(masses, coarse, finer, promise.eps)
        below = together(masses, coarse, finer, float(look.lengths[judge]), promise.eps)
        opened, scored = min(one_by_one, below, key=lambda classes: classes[0] * closer + classes[1] * row)
        passes = (1 if finer is None else 2) * (opened + scored > 0)
        return both(opened, costs.narrowed * vocab * passes + scored * row)
    opened, mass = narrowed(masses, coarse, fine, promise.eps)[0], masses.classes * masses.each
    mean = mass / max(float(mass.sum()), 1e-300)
    at_once, after = (row * rows_to_bet(seen.lightest[judge], float(mean @ wide), promise) for wide in (coarse, fine))
    if at_once < opened * closer + after:
        return both(0.0, at_once)
    return both(opened, after)


def _lengths(layer: Layer, seen: Seen, width: int | Groups | None, promise: Promise) -> Doubles:
    """``[judges]``: how far the estimates of all classes are off as one vector, which proofs of normalisers go by."""
    if isinstance(width, Groups) or promise.delta > 0 or math.isinf(promise.eps):
        return np.full(len(seen.best), np.inf)
    stands_for = math.sqrt(layer.vocab / len(seen.rows))
    if width is None:  # what codes lose is nearly alike in all directions
        return np.asarray(stands_for * EVEN * np.linalg.norm(seen.whole, axis=1) / math.sqrt(seen.rows.shape[1]))
    total = np.zeros(len(seen.best))
    for segment in tail_of(width, seen.rows.shape[1]):
        if segment not in seen.longest:  # candidates share segments
            seen.longest[segment] = about_norm(seen.rows[:, slice(*segment)])
        total += np.linalg.norm(seen.vectors[:, slice(*segment)], axis=1) * seen.longest[segment]
    return stands_for * total


def _radii(seen: Seen, segments: tuple[tuple[int, int], ...], loss: float) -> Doubles:
    """``[judges, classes]``: loss * sum_s ‖B[s]‖ ‖x'[s]‖."""
    total = np.zeros((len(seen.vectors), len(seen.rows)))
    for start, stop in segments:
        if (start, stop) not in seen.lengths:  # candidates share segments
            seen.lengths[start, stop] = tuple(np.linalg.norm(side[:, start:stop], axis=1) for side in (seen.vectors, seen.rows))
        query, row = seen.lengths[start, stop]
        total += loss * query[:, None] * row
    return total


def _radii_of_groups(seen: Seen, groups: Groups) -> tuple[Doubles, Doubles]:
    """``[judges, classes]`` of a look by ``groups``; and, not in them, what one plane of the query loses: it counts beside what
    level 1 leaves."""
    size = balance_of(np.einsum("ij,ij->j", seen.rows, seen.rows))
    rows, vectors = (seen.rows / size).astype(np.float32), seen.vectors * size
    total, unread = np.zeros((len(vectors), len(rows))), np.zeros(len(vectors))
    for start, stop, planes in groups.coarse:
        query = np.linalg.norm(vectors[:, start:stop], axis=1)
        total += query[:, None] * lost_by(np.ascontiguousarray(rows[:, start:stop]), planes)
        if any(bits < 8 for bits, _ in planes):
            unread += (stop - start) / 12 * (np.abs(vectors[:, start:stop]).max(axis=1) / 127) ** 2
    lost = np.sqrt(unread)[:, None] * np.linalg.norm(rows, axis=1)
    return total, lost
