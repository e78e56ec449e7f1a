"""What an engine reads, in which order, and how wrong each look can be.

For a query ``x = hidden @ rotation`` and a class ``i``::

    estimate[i] = base[i] + <centre, hidden> + sum_s scale[s, i] * sum_{j in segment s} code[i, j] * x^[j]
    radius[i]   = sum_r slack[r, i] * sum_{t on row r} factor_t * term_t(x)      |z[i] - estimate[i]| <= radius[i]

A plan is arrays and numbers only, saved as it is. ``previews/`` builds plans; every executor (NumPy, native, GPU) runs them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]
Array = NDArray[Any]

CLASS_BLOCK = 64
"""Classes of one interleaved block, and what every per-class array is padded to."""
NEIGHBOURS = 16
"""Classes that are bounded together, and nodes under one node above: ``kNeighbours`` of ``csrc/blocks/looks.h``."""
ESTIMATE_ROUNDING = 2.0**-20
"""An executor's float32 estimate is within this times (‖w^‖·‖x‖ + |base|) of its formula; the slack has to cover it."""
DENSE_SHARE, SHORT = 0.25, 64
"""The share of classes left open beyond which a query is read densely, a search given up; the most a counted search finds."""
PLANES, MOST_PEAKS = 32512.0, 32
"""Largest whole number of the two int8 planes in which a query is read, 256 * 127; how many peaks it may have (``Term``)."""
TERM_KINDS = ("norm", "quantised", "rest", "peaks", "one")
"""What a :class:`Term` may be; native code and kernels number them in this order (``csrc/executor/plan.h``)."""


class Term(NamedTuple):
    """The query's half of one summand of the radius; ``row`` of the slack is the other (-1: the term's own position).

    ``together`` times ‖x[start:stop]‖ is no less than the length of the errors of all classes as one vector, as far as this
    row of the slack bounds them (``rest``: this one and that of the ``peaks``); 0: not known. See ``previews/joint_error.py``.

    ``kind`` names a number computed from ``x[start:stop]``:

    ``"norm"``       ‖x‖
    ``"quantised"``  ‖x - x^‖, what the executor lost by reading ``x`` in two int8 planes, segment by segment:
                     x^ = step * rint(x / step), step = max|x| / 32512 of the segment
    ``"rest"``       ‖x without its peaks‖
    ``"peaks"``      Σ |x_j| over the peaks of x
    ``"one"``        1

    The peaks are the m largest |x_j|, m <= MOST_PEAKS and ceil(n / 4), n = stop - start, of least ``peaks + sqrt(n / 3) rest``:
    a code is off by at most half a step per coordinate and by about ``step * sqrt(n / 12)`` in norm. Any choice is sound.
    Triton tries none and all ``|x_j| > 2^(-i/2) max|x|``, i = 1 ... 8: at most 1.07 times the least where all of its peaks are
    above ``max|x| / 16``, and ``1 + sqrt(n / 3) / 8`` times anywhere.
    """

    kind: str
    start: int
    stop: int
    factor: float = 1.0
    row: int = -1
    together: float = 0.0


class Level(NamedTuple):
    """One look at the classes.

    ``codes``   ``[blocks, bytes / 4, 64, 4]`` uint8, 64 classes side by side, the byte ``u`` meaning the integer ``u - 128``;
                or three quarters of that, :func:`in_six_bits`; or a plain ``[vocab, width]`` float matrix (a published method's
                preview)
    ``layout``  ``((start, stop), ...)``: the coordinates of x read here, in this order
    ``scale``   ``[segments, padded]`` float32; None for a float matrix
    ``slack``   ``[rows, padded]`` float32, rounded up; None where no radius is known
    ``terms``   the query halves, one or more for each row of ``slack``
    """

    codes: Array
    layout: tuple[tuple[int, int], ...]
    scale: Floats | None
    slack: Floats | None
    terms: tuple[Term, ...]


class Dense(NamedTuple):
    """Beyond ``batch`` queries, or once more than ``share`` of the classes are candidates, read all rows densely.

    ``code_product``  an 8-bit code's product with a query beside one of a row, as compiled: batches are read by it everywhere
    ``normalised``    queries beyond which calls that need a normaliser read all rows; 0: looks are mostly in vain
    """

    batch: float = math.inf
    share: float = DENSE_SHARE
    code_product: float = 0.5
    normalised: float = math.inf


class BoxLevel(NamedTuple):
    """Sixteen neighbours to a record, classes or boxes around sixteen nodes of the level below.

    ``records``  ``[groups, (codes + lengths + 12) * 16]`` uint8: int8 codes ``[codes][16]``, lengths ``[lengths][16]``, and
                 float32 scale, unit of the lengths, and base, 16 each; base -inf: there is no such node. Those of rays
                 are laid out in ``csrc/blocks/looks.h``
    ``codes``    of a neighbour: those of its coordinates, or the upper and then the lower ends of a box
    ``lengths``  one for every segment, and one for all that is lost by rounding
    """

    records: NDArray[np.uint8]
    codes: int
    lengths: int


class Rays(NamedTuple):
    """Directions that classes are multiples of, in place of boxes; see ``previews/blocks/rays.py``.

    ``directions``  ``[dim, n]`` int8, n a multiple of 16; ``scale [n]`` float32: direction r is ``scale[r] * directions[:, r]``
    ``owner``       ``[nodes]`` uint16, a multiple of 16 of them: which direction the classes of a node are multiples of
    """

    directions: NDArray[np.int8]
    scale: Floats
    owner: NDArray[np.uint16]


class Blocks(NamedTuple):
    """Classes in an order in which neighbours are alike, and bounds on sixteen of them at once; see ``previews/blocks``.

    ``mean, centre``  ``[dim]`` float64, those of the basis
    ``head``          ``[width, dim]``: the first coordinates, ``x = head @ (hidden - mean)``
    ``back``          ``[width, dim]`` or None where width is dim: ``x @ back`` is most of ``hidden - mean``, ``left`` the rest
    ``rest``          ``[dim, n]`` int8: the other coordinates are ``left @ rest * rest_scale``, for their lengths alone;
    ``rest_lost``     ``[segments behind width, 3]``: lengths are off by that times ``‖left‖, ‖hidden - mean‖, ‖x‖`` at most.
    ``look``          coordinates of x in a box; those up to ``width`` come with the closer look
    ``edges``         ``look = edges[0] < edges[1] < ... = dim``: the segments of x whose lengths every bound takes
    ``order``         ``[16 * groups]`` int32: the class at each place, -1 where there is none
    ``levels``        coarse to fine, the last one's nodes being classes: node n's children are record n of the next one
    ``closer``        ``[places, bytes]`` uint8 or None: int8 codes, lengths, scale and unit of single classes
    ``shared``        factors of ``‖x[:look]‖, ‖x[look:width]‖, 1, ‖hidden - mean‖`` in what a record's last length multiplies;
    ``closer_shared`` the same of the closer look
    ``most``          classes that ``batch`` queries at once may be asked for, ``together`` those that more queries may
    ``least``         the eps from which normalisers go by blocks, too, where few classes have all the mass; inf: none
    ``rays``          None: boxes. Else two levels, nodes and classes, both without coordinates, and ``order`` pads every ray;
                      a closer look has what is left of a class beside its ray
    ``samples``       whether plain samples go by blocks
    ``trial``         bytes, but for the answers' rows, beyond which a search was in vain: where most were, few are made
    """

    mean: Array
    centre: Array
    head: Halves | Floats
    back: Halves | Floats | None
    rest: NDArray[np.int8] | None
    rest_scale: Floats | None
    rest_lost: Array | None
    look: int
    edges: tuple[int, ...]
    order: NDArray[np.int32]
    levels: tuple[BoxLevel, ...]
    closer: NDArray[np.uint8] | None
    shared: tuple[float, ...]
    closer_shared: tuple[float, ...]
    batch: int = 2
    most: int = 64
    least: float = math.inf
    rays: Rays | None = None
    samples: bool = False
    together: int = 0
    trial: float = math.inf


CODE_BITS = (1, 2, 3, 4, 5, 6, 8)
"""Bits that a rotated code may have."""


class Segment(NamedTuple):
    """Coordinates ``start`` to ``stop - 1`` in ``bits`` each, multiplied with ``planes`` int8 planes of the query."""

    start: int
    stop: int
    bits: int
    planes: int = 1


class Codes(NamedTuple):
    """Rotated codes of all classes; ``csrc/codes/rotated.h`` says what each number bounds, ``encode/tiles.py`` makes them.

    ``tiles``     ``[ceil(vocab / 64), bytes]`` uint8: codes, scales, error norms and bases of 64 classes
    ``mean``, ``centre``  ``[dim]`` float64
    ``rotation``  ``[dim, columns]`` float32: every segment's columns, made up to a multiple of 32 by zeros
    ``segments``  the rotated coordinates
    ``bounds``    ``[segments, 4]`` float64: the largest |q|, the largest |scale q|, what rounding does to x and to rows
    ``lost``, ``most_base``  what products in float64 lose, and the largest |base|
    """

    tiles: NDArray[np.uint8]
    mean: NDArray[np.float64]
    centre: NDArray[np.float64]
    rotation: Floats
    segments: tuple[Segment, ...]
    bounds: NDArray[np.float64]
    lost: float
    most_base: float


class Plan(NamedTuple):
    """How to read one matrix: ``rotation``, ``base``, ``centre``, one look at all classes, then exact rows.

    ``rotation``  ``[dim, rotated]`` float16 or float32, or None
    ``base``      ``[padded]`` float32: the bias
    ``centre``    ``[dim]`` float64 or None: <centre, hidden> joins every estimate before any link
    ``levels``    one; none: every query is read densely
    ``budget``    None: stop at proof; N: score the N best estimates and stop (SVD-softmax as published)
    ``blocks``    bounds on sixteen classes at once, where ids alone are asked for; None: every query looks at all classes
    ``arrays``    what a method with a reader of its own keeps beside (the bandit's columns), by name
    ``codes``     rotated codes, which answer what blocks do not; None: there are none
    """

    rotation: Halves | Floats | None
    base: Floats | None
    centre: Array | None
    levels: tuple[Level, ...]
    budget: int | None = None
    dense: Dense = Dense()
    arrays: Mapping[str, Array] | None = None
    blocks: Blocks | None = None
    codes: Codes | None = None

    @property
    def looks(self) -> bool:
        """Whether classes are looked at before rows are read."""
        return bool(self.levels) or self.codes is not None


def slack_rows(terms: tuple[Term, ...]) -> tuple[int, ...]:
    """Which row of the slack each term multiplies."""
    return tuple(place if term.row < 0 else term.row for place, term in enumerate(terms))


def padded(vocab: int) -> int:
    """``ceil(vocab / 64) * 64``: the length of every per-class array."""
    return -(-vocab // CLASS_BLOCK) * CLASS_BLOCK


def interleave(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """``rows [vocab, bytes] -> [blocks, ceil(bytes / 4), 64, 4]``; classes and bytes that pad are code 0 (byte 128)."""
    vocab, width = rows.shape
    wide = np.full((padded(vocab), -(-width // 4) * 4), 128, np.uint8)
    wide[:vocab, :width] = rows
    return np.ascontiguousarray(wide.reshape(-1, CLASS_BLOCK, wide.shape[1] // 4, 4).transpose(0, 2, 1, 3))


def in_six_bits(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """``[blocks, 4 n, 64, 4] -> [blocks, 3 n, 64, 4]`` of codes from -32 to 31: the lower four bits of two words each, and the
    upper two of four."""
    words = (codes - np.uint8(96)).reshape(len(codes), -1, 4, CLASS_BLOCK, 4)
    low, high = words & 15, words >> 4
    runs = (low[:, :, 0] | low[:, :, 1] << 4, low[:, :, 2] | low[:, :, 3] << 4,
            high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6)  # fmt: skip
    return np.ascontiguousarray(np.stack(runs, axis=2).reshape(len(codes), -1, CLASS_BLOCK, 4))


def in_bytes(codes: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """Interleaved codes of ``width`` coordinates, a byte each: as they are, or from six bits."""
    words = -(-width // 4)
    if codes.shape[1] == words:
        return codes
    runs = codes.reshape(len(codes), -1, 3, CLASS_BLOCK, 4)
    low = (runs[:, :, 0] & 15, runs[:, :, 0] >> 4, runs[:, :, 1] & 15, runs[:, :, 1] >> 4)
    found = [part | (runs[:, :, 2] >> 2 * place & 3) << 4 for place, part in enumerate(low)]
    return (np.stack(found, axis=2) + np.uint8(96)).reshape(len(codes), words, CLASS_BLOCK, 4)


def deinterleave(codes: NDArray[np.uint8], vocab: int) -> NDArray[np.uint8]:
    """The inverse of :func:`interleave`: ``[blocks, quads, 64, 4] -> [vocab, 4 * quads]``."""
    blocks, quads = codes.shape[:2]
    return np.ascontiguousarray(codes.transpose(0, 2, 1, 3)).reshape(blocks * CLASS_BLOCK, quads * 4)[:vocab]
