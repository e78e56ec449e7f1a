"""How many coordinates a prefix should have, or how many bits all of them: the fewest expected bytes of a query, counted on
some calibration vectors.

    bytes(w) = level 0 for all classes + 3 * ( level 1 for those whose interval reaches the k-th best logit
             + exact rows that the normaliser takes to keep its promise ),  at most what a dense pass reads

(three times, since rows that are gathered come at about a third of the speed of a scan). What takes time beside bytes counts as
bytes, too: a rotation of the query and a second level, unpacking codes of few bits, each class that is looked at again.

Radii are those that a plan of width w would have, on a sample of the classes; int8 codes of all coordinates, and codes of few
bits where the energy is, are judged by the same count: a layer without leading coordinates keeps the former, one whose energy
falls off slowly gets the latter.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.answers import Promise
from headlong.layers.matrix import Layer
from headlong.native import Doubles, encode_rows
from headlong.previews.draws import first_spend
from headlong.previews.encode import Groups
from headlong.previews.few_bits import Planes, balance_of, energy_of, filled, groups_of, lost_by, plane_bytes
from headlong.previews.int8 import logits_of
from headlong.previews.prefix import FIRST, spread
from headlong.previews.whitening import Basis

CANDIDATES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
BITS = (2.0, 3.0, 4.0, 5.0)
"""On average, by coordinates in the order of their energy."""
JUDGES, LOGITS, CLASSES, BEST = 12, 2**23, 1024, 10
"""Most calibration vectors, logits and classes that are looked at, and the k whose proof is counted."""
DEAR = 0.25
"""Of the share of candidates beyond which a query is read densely: such a judge counts as one that is."""
GATHERED, CANDIDATE = 3.0, 512
"""What a gathered byte costs in scanned ones, and what a class costs that goes to level 1, beside its bytes there."""
SET_UP = 600_000
"""What rotating a query and keeping a second level cost beside their bytes: some 25 us, at the speed of a scan."""
UNPACKED = 1.3
"""What a byte of codes of few bits costs in bytes of whole codes."""
NARROWED = 250
"""What a class costs beside its bytes where intervals are narrowed until they prove the normaliser: passes over all of them."""
COUNTS = 256
"""How many numbers of exact rows are compared where the rest is drawn."""
FURTHER = 1.2
"""How much farther the largest cosine among all classes and queries reaches than among the sampled ones."""
CODE_LOSS = 0.008
"""‖w - w^‖ / ‖w‖ of int8 codes."""
USED = 0.1
"""Of a radius: what is typical where a bet is made."""
CODES = 0.1
"""Of a radius that is all codes' loss: what is typical."""


class Seen(NamedTuple):
    """What the candidates are counted on.

    ``rows, vectors``  sampled classes and the judges, in the basis
    ``logits, share``  ``[judges, classes]`` of those classes: the logit, and the share of their sum of exponentials
    ``best``           ``[judges]``: the k-th best logit of all classes
    ``rest``           ``[judges]``: the mass of all classes but the k best, which are scored anyway
    ``whole``          ``[judges, classes]``: the radii of int8 codes of the rows as they are
    ``lightest``       ``[judges, vocab]``: the mass of the 1, 2, ... lightest classes, where a normaliser is estimated
    """

    rows: Doubles
    vectors: Doubles
    logits: Doubles
    share: Doubles
    best: Doubles
    rest: Doubles
    whole: Doubles
    lightest: Doubles


class Choice(NamedTuple):
    """A prefix of ``width`` coordinates, or ``bits`` of all on average; both None: int8 codes of all."""

    width: int | None = None
    bits: float | None = None


def best_look(
    layer: Layer, basis: Basis, calibration: Doubles, promise: Promise, share: float, few: bool = True, threads: int = 1
) -> Choice:
    """The first look with the fewest expected bytes. ``few``: few bits of all coordinates may be it, too."""
    judges = max(1, min(JUDGES, LOGITS // layer.vocab))
    seen = _see(layer, basis, calibration[:: -(-len(calibration) // judges)], promise, threads)
    least, found = expected_bytes(layer, seen, None, promise, share), Choice()
    for width in CANDIDATES:
        if width < layer.dim and (cost := expected_bytes(layer, seen, width, promise, share)) < least:
            least, found = cost, Choice(width)
    energy = energy_of(basis, layer) if few else np.ones(1)
    for bits in BITS if few else ():
        groups = groups_of(Planes(filled(energy, bits), 6))
        if (cost := expected_bytes(layer, seen, groups, promise, share)) < least:
            least, found = cost, Choice(None, bits)
    return found


def _see(layer: Layer, basis: Basis, judges: Doubles, promise: Promise, threads: int) -> Seen:
    some = slice(None, None, -(-layer.vocab // CLASSES))
    rows = (layer.weight[some].astype(np.float64) - basis.centre) @ basis.back
    vectors = (judges - basis.mean) @ basis.rotation.astype(np.float64)
    logits = logits_of(layer, judges, threads)
    sampled, k, lightest = logits[:, some].copy(), min(BEST, layer.vocab), np.zeros((len(judges), 1))
    # One by one: a copy of all logits would be the most that building takes at a time.
    most = np.stack([np.partition(row, -k)[-k:] for row in logits])
    best, among, lse = most[:, 0], layer.link(most), np.concatenate([lse_of(layer.link(row[None])) for row in logits])
    rest = 1 - np.exp(among - lse[:, None]).sum(axis=1)
    if promise.delta > 0 and not math.isinf(promise.eps):
        ordered = np.sort(logits.astype(np.float32), axis=1)
        lightest = _shares(layer, ordered.astype(np.float64)).cumsum(axis=1)
    sampled_rows = np.ascontiguousarray(layer.weight[some])
    lost = encode_rows(sampled_rows, None).error[: len(sampled_rows)].astype(np.float64)
    whole = np.linalg.norm(judges, axis=1)[:, None] * lost
    return Seen(rows, vectors, sampled, _shares(layer, sampled), best, rest, whole, lightest)


def expected_bytes(layer: Layer, seen: Seen, width: int | Groups | None, promise: Promise, share: float) -> float:
    """Mean over the judges. ``width`` None: int8 codes of all coordinates; groups: codes of few bits."""
    dim, item = layer.dim, layer.weight.itemsize
    fine = _radii(seen, ((0, dim),), CODE_LOSS)
    first: float
    if width is None:
        coarse, likely, first, deeper = seen.whole, seen.whole, 6 * 4 + dim, dim * item
    elif isinstance(width, Groups):
        coarse = likely = _radii_of_groups(seen, width)
        first, deeper = UNPACKED * plane_bytes(width), dim  # level 1 is shorter than that, but gathered row by row
    else:
        head, tail = spread(0, FIRST, 4, width), spread(width, 2 * width, 2, dim)
        learned = FURTHER * _largest_cosine(seen, width) if "calibration" in promise.over else 1.0
        coarse = _radii(seen, head, CODE_LOSS) + _radii(seen, tail, 1.0)
        likely = _radii(seen, head, CODE_LOSS) + _radii(seen, ((width, dim),), learned) if learned < 1 else coarse
        coarse, sure = likely if promise.delta_ids > 0 else coarse, coarse
        if teaches(promise):
            likely = _typical(seen, width, sure) * sure
        first, deeper = width + 4 * (2 + len(head) + len(tail)), dim - width
    rotation = 0 if width is None else 2 * dim * dim + SET_UP
    every = layer.vocab * dim * item
    if teaches(promise):
        likely, fine = (CODES * likely if width is None else likely), CODES * fine
    radii = coarse, likely, fine
    gathered = [_gathered(layer, promise, seen, judge, radii, deeper, share) for judge in range(len(seen.best))]
    return rotation + layer.vocab * first + float(np.mean(np.minimum(GATHERED * np.array(gathered), every)))


def _gathered(
    layer: Layer, promise: Promise, seen: Seen, judge: int, radii: tuple[Doubles, Doubles, Doubles], deeper: int, share: float
) -> float:
    """Bytes that one query gathers beyond the look at all classes; infinite where it is read densely."""
    vocab, row = layer.vocab, layer.dim * layer.weight.itemsize
    coarse, likely, fine = (radius[judge] for radius in radii)
    candidates = float(np.mean(seen.logits[judge] + coarse >= seen.best[judge]))
    if candidates > DEAR * share:
        return math.inf
    total = vocab * candidates * (deeper + CANDIDATE)
    if math.isinf(promise.eps):
        return total
    mass = seen.share[judge]
    opened, scored = (vocab * _open(seen.rest[judge] * mass * radius, promise.eps) for radius in (likely, fine))
    if promise.delta == 0:
        passes = vocab * NARROWED / GATHERED if opened > 0 else 0.0  # not gathered
        return total + passes + opened * (deeper + CANDIDATE) + scored * row
    at_once, after = (row * rows_to_bet(seen.lightest[judge], float(mass @ wide), promise) for wide in (likely, fine))
    return total + min(at_once, opened * (deeper + CANDIDATE) + after)


def teaches(promise: Promise) -> bool:
    """Whether vectors may say how many rows a normaliser takes."""
    return "calibration" in promise.over and 0 < promise.delta < 1 and not math.isinf(promise.eps)


def _typical(seen: Seen, width: int, sure: Doubles) -> float:
    """The share of a sure radius that the likelier of the sampled classes use, as a root of mean squares."""
    missed = seen.vectors[:, width:] @ seen.rows[:, width:].T
    return float(np.sqrt((seen.share * missed**2).sum() / max((seen.share * sure**2).sum(), 1e-300)))


def rows_to_bet(lightest: Doubles, half_width: float, promise: Promise) -> float:
    """The heaviest classes exactly, the rest drawn until both sides are refuted: ``Rule`` in csrc/normaliser/betting.h."""
    if half_width > 8:
        return math.inf
    exact = _counts(len(lightest))  # of the heaviest classes, so many
    e = np.minimum(1e9, promise.eps / np.maximum(lightest[len(lightest) - 1 - exact] * math.expm1(half_width), 1e-300))
    if teaches(promise):
        return float(np.min(exact + first_spend(promise.delta) * (1 / e**2 + 1 / e)))
    drawn = np.where(e < 1, 2 * (math.log(2 / promise.delta) + 0.8) * (_spread(half_width) + 0.5 * e) / e**2, 0.0)
    return float(np.min(exact + drawn))


def _spread(radius: float) -> float:
    """``E (e^g - 1)^2 / (e^radius - 1)^2``, g normal with a deviation of :data:`USED` radii: ``spread_of`` in by_bet.cpp."""
    square = (USED * radius) ** 2
    return (math.exp(2 * square) - 2 * math.exp(square / 2) + 1) / max(math.expm1(radius), 1e-9) ** 2


@functools.cache
def _counts(vocab: int) -> NDArray[np.int64]:
    return np.unique(np.geomspace(1, vocab, COUNTS).astype(np.int64)) - 1


def _open(gaps: Doubles, eps: float) -> float:
    """The share of classes to read further until what is left of the gaps is at most ``eps``."""
    left = np.cumsum(np.sort(gaps))
    return 1 - float(np.searchsorted(left, eps, side="right")) / len(gaps)


def _radii(seen: Seen, segments: tuple[tuple[int, int], ...], loss: float) -> Doubles:
    """``[judges, classes]``: loss * sum_s ‖B[s]‖ ‖x'[s]‖."""
    total = np.zeros((len(seen.vectors), len(seen.rows)))
    for start, stop in segments:
        query, row = (np.linalg.norm(side[:, start:stop], axis=1) for side in (seen.vectors, seen.rows))
        total += loss * query[:, None] * row
    return total


def _radii_of_groups(seen: Seen, groups: Groups) -> Doubles:
    """``[judges, classes]`` of a look by ``groups``."""
    size = balance_of(np.einsum("ij,ij->j", seen.rows, seen.rows))
    rows, vectors = (seen.rows / size).astype(np.float32), seen.vectors * size
    total = np.zeros((len(vectors), len(rows)))
    for start, stop, planes in groups.coarse:
        query = np.linalg.norm(vectors[:, start:stop], axis=1)
        total += query[:, None] * lost_by(np.ascontiguousarray(rows[:, start:stop]), planes)
    return total


def _largest_cosine(seen: Seen, width: int) -> float:
    query, row = (side[:, width:] / np.maximum(np.linalg.norm(side[:, width:], axis=1, keepdims=True), 1e-300)
                  for side in (seen.vectors, seen.rows))  # fmt: skip
    return float(np.abs(query @ row.T).max())


def lse_of(exponents: Doubles) -> Doubles:
    """``log sum exp`` of each row; the largest of a row is finite."""
    most = exponents.max(axis=1)
    return np.asarray(most + np.log(np.exp(exponents - most[:, None]).sum(axis=1)))


def _shares(layer: Layer, logits: Doubles) -> Doubles:
    exponents = layer.link(logits)
    mass = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    return np.asarray(mass / mass.sum(axis=1, keepdims=True))
