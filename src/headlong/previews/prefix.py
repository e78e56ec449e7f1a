"""The whitened prefix: int8 codes of the coordinates that carry the logits, norms of all others, then the others.

    <w_i, hidden> + b_i = base_i + <centre, hidden> + <B_i, x'>                          (see whitening.py)
    level 0    estimate over x'[:width],   |z - estimate| <= sum_s ‖B_i[s]‖ ‖x'[s]‖ + what codes and rounding lose
    level 1    adds int8 codes of x'[width:], row by row, for the classes that level 0 leaves open

The tail's segments double in length, each with its own Cauchy-Schwarz: one norm over all of it would be several times
wider. What codes, float32 and float64 lose has one row of the slack for all: its parts, each over its median, by their
maximum. (16 bits for the first coordinates, a second code of what the first one left, narrow the radius by 1-5 % and
lengthen the level by 10 %: not here.)

No probability enters: the radius holds for every finite row and query.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from headlong.layers.matrix import Layer
from headlong.native import Doubles, Floats
from headlong.plan import Dense, Level, Plan, Term
from headlong.previews.encode import Encoded, Group, Groups, encode, sum_up
from headlong.previews.joint_error import affordable, bounded
from headlong.previews.radii import ROUNDING, Summands, joined, roundings
from headlong.previews.whitening import Basis

FIRST_SEGMENT = 16
"""Coordinates of the first segment of level 0; each further one reaches four times as far."""
MOST_SEGMENTS = 4
"""Of level 0, and of the tail: the last takes what is left."""
EIGHT = ((8, "absmax"),)

Segments = tuple[tuple[int, int], ...]


def prefix_plan(
    layer: Layer,
    basis: Basis,
    width: int,
    dense: Dense,
    threads: int = 1,
    deeper: bool = True,
    together: bool = False,
    found: Encoded | None = None,
) -> Plan:
    """Level 0 over ``width`` coordinates, level 1 over the others, and rows that cannot be coded always scored.

    ``deeper``  False: no level 1; exact rows follow the prefix
    ``together``  how far all classes are off as one vector is computed, too: see ``joint_error.py``
    ``found``  the rows coded in :func:`prefix_groups`, where that is done
    """
    head, tail = spread(0, FIRST_SEGMENT, 4, width), tail_of(width, layer.dim)
    groups = prefix_groups(layer, width, deeper, together)
    if found is None:
        found = encode(layer, basis, groups, threads)
    lost = sum_up(found.lost, found.rounded)
    norms, terms = lost[len(head) :], tuple(Term("norm", *segment, 1.0, row) for row, segment in enumerate(tail))
    norms[:, found.uncoded] = 0.0
    rounding = roundings(layer, basis, found)
    slack, more = _shared(head, lost, found.size, rounding, found.uncoded, len(terms))
    level = Level(found.codes, _layout(head), found.scale, np.concatenate([norms, slack]), (*terms, *more))
    levels = [_together(found, groups, level, len(head))]
    if tail and deeper:
        slack, more = _shared((*head, *tail), found.rest_lost, found.rest_size, rounding, found.uncoded, 0)
        levels.append(Level(found.rest, _layout(tail), found.rest_scale, slack, more, adds=True))
    return Plan(basis.mean, basis.rotation, found.base, basis.centre, tuple(levels), dense=dense)


def prefix_groups(layer: Layer, width: int, deeper: bool = True, together: bool = False) -> Groups:
    """Codes of the first ``width`` coordinates, norms of the others, and codes of them for a level 1. ``together``: and what
    all classes are off as one vector, where that does not take too long."""
    head, tail = spread(0, FIRST_SEGMENT, 4, width), tail_of(width, layer.dim)
    coarse = (*(Group(*segment, EIGHT) for segment in head), *(Group(*segment, ()) for segment in tail))
    joint = together and affordable(layer.vocab, sum((stop - start) ** 2 for start, stop in (*head, *tail)))
    return Groups(coarse, tuple(Group(*segment, EIGHT) for segment in tail if deeper), joint)


def _together(found: Encoded, groups: Groups, level: Level, coded: int) -> Level:
    """``level`` with what its estimates of all classes are off together: the first ``coded`` groups by what codes lose and by
    the executor's rounding, the others, which it does not read, by all that is in them."""
    if not len(found.grams):
        return level
    grams, vocab = groups.grams(found.grams), len(found.rest)
    size = float(np.linalg.norm(np.where(found.uncoded, 0.0, found.size.astype(np.float64))))

    def known(term: Term) -> Term:
        if term.kind != "norm":
            return term
        at = next(i for i, group in enumerate(groups.coarse) if (group.start, group.stop) == (term.start, term.stop))
        rounded = float(np.linalg.norm(np.where(found.uncoded, 0.0, found.rounded[at].astype(np.float64))))
        joint = bounded(grams[at], vocab)
        return term._replace(together=joint + rounded + ROUNDING * size * (at < coded) if joint > 0 else 0.0)

    return level._replace(terms=tuple(known(term) for term in level.terms))


def spread(start: int, first: int, factor: int, stop: int) -> Segments:
    """``[start, first), [first, factor * first), ...`` up to ``stop``, the last of :data:`MOST_SEGMENTS` taking the rest."""
    edges, edge = [start], first
    while edges[-1] < stop:
        edges.append(stop if len(edges) == MOST_SEGMENTS else min(edge, stop))
        edge *= factor
    return tuple(itertools.pairwise(edges))


def tail_of(width: int, dim: int) -> Segments:
    """The segments of the coordinates behind the prefix, each with its own Cauchy-Schwarz."""
    return spread(width, 2 * width, 2, dim)


def _layout(segments: Segments) -> tuple[tuple[int, int, int], ...]:
    return tuple((*segment, 8) for segment in segments)


def _shared(
    segments: Segments, lost: Floats, size: Floats, rounding: Summands, uncoded: NDArray[np.bool_], row: int
) -> tuple[Floats, tuple[Term, ...]]:
    """One row of the slack for everything but the tail."""

    def summands(some: slice) -> list[tuple[Term, Doubles]]:
        sizes = size[some].astype(np.float64)
        gaps = [(Term("norm", *segment), lost[s, some] + ROUNDING * sizes) for s, segment in enumerate(segments)]
        return [*gaps, (Term("quantised", 0, segments[-1][1]), sizes), *rounding(some)]

    return joined(summands, uncoded, row)
