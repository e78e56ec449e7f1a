"""How wide an interval has to be, learned from queries: split-conformal factors on the radius of a prefix's tail.

    sure          |<B_i[tail], x'[tail]>| <= ‖B_i[tail]‖ ‖x'[tail]‖                                       (Cauchy-Schwarz)
    calibrated    |<B_i[tail], x'[tail]>| <= q ‖B_i[tail]‖ ‖x'[tail]‖   for all classes i at once, with probability 1 - delta
                  q = the largest but for those spared of   max_i |cos(B_i[tail], x'[tail])|   over n queries

A random direction in many dimensions is nearly orthogonal to every row, so q is near ``sqrt(2 log(vocab) / dims)``. The
probability is over n calibration queries and the next one, exchangeable with them, and holds for every n (Vovk; Lei et al.
2018). The queries must have had no part in the basis: calibration vectors are split, the last ones go here.
"""

from __future__ import annotations

import numpy as np

from headlong.arrays import Array
from headlong.errors import OptionError
from headlong.native import Doubles
from headlong.previews.conformal_bounds import conformal, enough
from headlong.previews.whitening import Basis, pieces

QUERIES_AT_ONCE = 1024
FAR = 4.0
PLENTY = 10
"""Times the fewest queries that a rate takes, each of which is multiplied with the layer. Of ten times as many, half of what
the rate allows may be lost, and fewer than 7 % of sets fail more often; of four times as many a quarter, and 9 % do."""


def last(calibration: Doubles, delta: float) -> Doubles:
    """The vectors of the second half that radii are learned from."""
    return calibration[len(calibration) // 2 :][-PLENTY * enough(delta) :]


def reach(calibration: Doubles) -> tuple[float, float]:
    """The lengths of vectors that may be like ``calibration``: from a quarter of its shortest to four times its longest.

    One more vector from where these came is within their range but for a chance of ``2 / (n + 1)``; four times as far it is of
    another kind, and what was learned says nothing of it.
    """
    lengths = np.sqrt(np.einsum("ij,ij->i", calibration, calibration))
    return float(lengths.min()) / FAR, float(lengths.max()) * FAR


def varied(queries: Doubles) -> int:
    """How many of the rows differ: one that comes twice says nothing new."""
    return len({hash(row.tobytes()) for row in queries + 0.0})  # -0 is 0; sorting long rows takes six times as long


def lacking(calibration: Doubles, delta: float) -> str | None:
    """What the vectors lack for radii that fail at a rate of ``delta``; None: nothing.

    Where radii over calibration were asked for, :func:`split` refuses such vectors; where they were not, ``headlong.compile``
    goes on without.
    """
    fewest, queries = enough(delta), last(calibration, delta)
    if len(calibration) < 2 * fewest:
        return (
            f"a promise over calibration that fails at a rate of {delta:g} takes {2 * fewest:,} vectors, half of them "
            f"for the radii; got {len(calibration):,}: pass more, allow a larger delta"
        )
    different = varied(queries)
    if different < fewest:
        return (
            f"only {different:,} of the {len(queries):,} calibration vectors that the radii are learned from differ; a rate of "
            f"{delta:g} takes {fewest:,}: pass the hidden vectors of real queries"
        )
    return None


def split(calibration: Doubles, delta: float) -> tuple[Doubles, Doubles]:
    """``(for the basis, for the widths)``: halves, in the order they came, since neighbours are often alike."""
    if lack := lacking(calibration, delta):
        raise OptionError(f"{lack}, or leave 'calibration' out of over")
    return calibration[: len(calibration) // 2], last(calibration, delta)


def tail_factor(weight: Array, basis: Basis, width: int, queries: Doubles, delta: float) -> float:
    """``q`` for the coordinates from ``width`` on; at most 1, where Cauchy-Schwarz is."""
    rotation = basis.rotation[:, width:].astype(np.float64)
    tails = _units((queries - basis.mean) @ rotation)
    largest = np.zeros(len(queries), np.float32)
    for _, rows in pieces(weight):
        lines = _units((rows - basis.centre) @ basis.back[:, width:])
        for start in range(0, len(tails), QUERIES_AT_ONCE):
            part = slice(start, start + QUERIES_AT_ONCE)
            cosines = lines @ tails[part].T
            largest[part] = np.maximum(largest[part], np.maximum(cosines.max(axis=0), -cosines.min(axis=0)))
    # What float32 loses in the product of two unit vectors; what the executor's arithmetic does is in the sure slack.
    return float(min(1.0, conformal(largest, delta) + (rotation.shape[1] + 8) * 2.0**-23))


def likely_factor(
    weight: Array, basis: Basis, tail: tuple[tuple[int, int], ...], queries: Doubles, delta: float
) -> float:
    """The share of ``sum_s ‖B_i[s]‖ ‖x'[s]‖`` over the segments of the tail that no class exceeds, but for ``delta``."""
    if not tail:
        return 1.0
    largest = largest_shares(weight, basis, tail, queries)
    return float(min(1.0, conformal(largest, delta) + (2 * len(basis.back) + 16) * 2.0**-23))


def largest_shares(weight: Array, basis: Basis, tail: tuple[tuple[int, int], ...], queries: Doubles) -> Array:
    """``max_i |<B_i[tail], x'[tail]>| / sum_s ‖B_i[s]‖ ‖x'[s]‖`` for every query."""
    width = tail[0][0]
    vectors = ((queries - basis.mean) @ basis.rotation[:, width:].astype(np.float64)).astype(np.float32)
    lengths = np.stack([np.linalg.norm(vectors[:, start - width : stop - width], axis=1) for start, stop in tail])
    largest, back = np.zeros(len(queries), np.float32), basis.back[:, width:].astype(np.float32)
    for _, rows in pieces(weight):
        lines = (rows - basis.centre).astype(np.float32) @ back
        sizes = np.stack([np.linalg.norm(lines[:, start - width : stop - width], axis=1) for start, stop in tail], axis=1)
        for start in range(0, len(vectors), QUERIES_AT_ONCE):
            part = slice(start, start + QUERIES_AT_ONCE)
            sure = sizes @ lengths[:, part]
            share = np.divide(np.abs(lines @ vectors[part].T), sure, out=np.zeros_like(sure), where=sure > 0)
            largest[part] = np.maximum(largest[part], share.max(axis=0))
    return largest


def _units(values: Doubles) -> Array:
    """Rows of length one in float32; rows of nothing stay nothing."""
    sizes = np.sqrt(np.einsum("ij,ij->i", values, values))[:, None]
    return np.asarray(np.divide(values, sizes, out=np.zeros_like(values), where=sizes > 0), np.float32)
