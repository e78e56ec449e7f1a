"""Lists of segments for a layer: which coordinates get how many bits.

    gain of the next bit of a block of coordinates  =  sum_j energy_j * error(bits) - error(bits + 1)        per bit of all
    codes

``energy_j`` is the mean square of a coordinate over hidden vectors times that of its column of the rows: what an error there
costs. Blocks of 32 coordinates take the bits whose gain is largest until the budget is spent; runs of blocks with equal bits
become segments.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from headlong.dtypes import Doubles
from headlong.layers.matrix import Layer
from headlong.plan import CODE_BITS, Segment
from headlong.promise import Promise

BLOCK = 32
"""Coordinates that share their bits: the scan reads whole groups of as many."""
MEAN_SQUARE = {0: 1.0, 1: 0.3634, 2: 0.1188, 3: 0.03744, 4: 0.01154, 5: 0.00349, 6: 0.00104, 8: 0.0000929}
"""The mean square of the error of the best uniform code of so many bits, of a Gaussian of variance one (Max, 1960)."""
MOST_SEGMENTS = 4
BITS = (4.5, 2.6)
"""Bits a coordinate, on average, of the lists that are tried for ids alone."""
REST = 6
"""Bits of most coordinates in the second list that is tried where normalisers are promised; the first has eight. Five leave
more rows to score than six, and one query is hardly sooner."""
LEAST = 5
"""Bits of packed rows' codes that nothing leads."""
TURNED = 512
"""Coordinates of a rotation: larger ones take long to make."""
ROOM = 0.95
"""The share of their own bytes that codes and rotation may take beside rows of less than a byte a weight: an engine is to be no
larger than twice its head. Beside rows of a byte, codes of eight bits are hardly more, and faster in batches."""
OF_CLASS = 28
"""Bytes that each class takes beside its codes."""
LED = 0.7
"""The share of the energy that lies in the coordinates of two planes."""
Runs = list[tuple[int, int]]
"""``(stop, bits)`` of coordinates that follow one another."""


def by_water_filling(energy: Doubles, bits: float) -> tuple[Segment, ...]:
    """``bits`` a coordinate on average; ``energy [dim]`` falls."""
    starts = list(range(0, len(energy), BLOCK))
    if len(starts) > 1 and len(energy) - starts[-1] < BLOCK // 2:
        starts.pop()  # no segment is so short that its error strays far
    stops = [*starts[1:], len(energy)]
    weight = np.array([energy[a:b].sum() for a, b in zip(starts, stops, strict=True)])
    size = np.array([b - a for a, b in zip(starts, stops, strict=True)])
    steps = np.zeros(len(starts), int)  # into CODE_BITS; every coordinate has a bit
    spent, budget = float(size.sum()), bits * len(energy)
    rates = np.array([MEAN_SQUARE[b] for b in CODE_BITS])
    while True:
        more = np.minimum(steps + 1, len(CODE_BITS) - 1)
        cost = (np.take(CODE_BITS, more) - np.take(CODE_BITS, steps)) * size
        gain = np.where(cost > 0, weight * (rates[steps] - rates[more]) / np.maximum(cost, 1), -1.0)
        best = int(np.argmax(gain))
        if gain[best] <= 0 or spent + cost[best] > budget + 1e-9:
            break
        steps[best] += 1
        spent += float(cost[best])
    return merged(
        [Segment(a, b, CODE_BITS[s]) for a, b, s in zip(starts, stops, np.maximum.accumulate(steps[::-1])[::-1], strict=True)]
    )


def lead(energy: Doubles) -> int:
    """How many of the first coordinates, which hold most of the energy, have eight bits and two planes of the query.

    What the rounding of a query adds to the errors of a code of eight bits is as large as those: a second plane of few
    coordinates takes the most of it away.
    """
    dim = len(energy)
    if dim < BLOCK + BLOCK // 2:
        return dim
    most = max(BLOCK, dim // 4 // BLOCK * BLOCK)
    return min(most, (int(np.searchsorted(np.cumsum(energy), LED * energy.sum())) // BLOCK + 1) * BLOCK)


def led_by_eight(first: int, runs: Runs) -> tuple[Segment, ...]:
    """Eight bits in two planes of the ``first`` coordinates, then ``runs``."""
    starts = [first, *(stop for stop, _ in runs)]
    return (Segment(0, first, 8, 2), *(Segment(start, *run) for start, run in zip(starts, runs, strict=False)))


def uniform(layer: Layer) -> tuple[Segment, ...]:
    """Eight bits of every coordinate, or what fits, in runs of :data:`TURNED` coordinates."""
    dim, runs = layer.dim, fitting(layer, 0)
    edges = [*range(0, dim - TURNED // 2, TURNED), dim] if dim > TURNED else [0, dim]
    edges = sorted({*edges, *(stop for stop, _ in runs)})
    bits = [next(bits for end, bits in runs if stop <= end) for stop in edges[1:]]
    return tuple(Segment(*pair, many) for pair, many in zip(pairwise(edges), bits, strict=True))


def fitting(layer: Layer, start: int) -> Runs:
    """The coordinates from ``start`` on, before which there are eight bits each: eight, too, or where rows are packed the
    most, in two widths, that keep what an engine adds within :data:`ROOM` of the rows; at the least :data:`LEAST`, or behind
    such coordinates four."""
    dim = layer.dim
    if start == dim:
        return []
    if layer.row_bytes >= dim:
        return [(dim, 8)]
    left = 8 * (ROOM * layer.row_bytes - OF_CLASS - 4 * dim * dim / layer.vocab - start)
    for high, low in ((8, 6), (6, 5), (5, 4)) if start else ((8, 6), (6, 5)):
        stop = start + int((left - low * (dim - start)) / (high - low)) // BLOCK * BLOCK
        if stop >= dim:
            return [(dim, high)]
        if dim - stop < BLOCK // 2:  # no segment is so short
            stop -= BLOCK
        if stop > start:
            return [(stop, high), (dim, low)]
    return [(dim, 4 if start else LEAST)]


def plausible(layer: Layer, energy: Doubles, wanted: Promise) -> list[tuple[Segment, ...]]:
    """The lists that are worth a trial, for ids alone or for normalisers: first the one that leaves few rows to score; one of
    fewer bits may be faster where memory is slow, or, as with AVX2, products of bytes are."""
    if math.isinf(wanted.eps):
        return [by_water_filling(energy, bits) for bits in BITS]
    first = lead(energy)
    runs = fitting(layer, first)
    found = [led_by_eight(first, runs)]
    return [*found, led_by_eight(first, [(layer.dim, REST)])] if any(bits > REST for _, bits in runs) else found


def merged(runs: list[Segment]) -> tuple[Segment, ...]:
    """Neighbours of equal bits as one segment, and no more than a few: the scan ends each with a conversion."""
    joined: list[Segment] = []
    for run in runs:
        if joined and joined[-1].bits == run.bits:
            joined[-1] = joined[-1]._replace(stop=run.stop)
        else:
            joined.append(run)
    while len(joined) > MOST_SEGMENTS:
        place = min(range(len(joined) - 1), key=lambda i: min(joined[i][1] - joined[i][0], joined[i + 1][1] - joined[i + 1][0]))
        first, second = joined[place], joined[place + 1]
        bits = first.bits if first.stop - first.start >= second.stop - second.start else second.bits
        joined[place : place + 2] = [Segment(first.start, second.stop, bits)]
    return tuple(joined)
