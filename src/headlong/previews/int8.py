"""int8 codes of every row, with a radius that no probability enters.

    w^_i = scale_i * code_i          |<w_i, x> - <w^_i, x^>| <= |<w_i - w^_i, x>| + |<w^_i, x - x^>|
      <=  max_j |w_ij - w^_ij| * sum of |x_j| over the peaks of x  +  ‖w_i - w^_i‖ * ‖rest of x‖  +  ‖w^_i‖ * ‖x - x^‖

which holds for any choice of peaks. The slacks are rounded up and cover the executor's own rounding, underflow included,
for every finite row and query; a row whose codes could leave float32's range gets an infinite slack and is always
scored exactly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array
from headlong.layers.matrix import Layer
from headlong.native import Codes, Doubles, Floats, encode_int8, encode_rows, products, round_up
from headlong.plan import ESTIMATE_ROUNDING, Dense, Level, Plan, Term, padded
from headlong.previews.joint_error import decoded, spectral_norm

MOST_NORM = 2.0**60
"""Largest ‖w^‖ that is coded: with queries up to the same norm, float32 estimates stay far from overflow."""
LARGEST_BASE = 2.0**100
UNDERFLOW = 2.0**-100
"""Covers every product that float32 flushes towards zero, for any dim; far below any logit that matters."""
SEGMENT = 32768
"""Coordinates of one segment: their integer products fit 32 bits."""
JUDGES, MOST_JUDGED = 8, 4096
"""Calibration vectors, and their likeliest rows, that decide whether to centre."""
ROWS_AT_ONCE = 4096


def int8_plan(layer: Layer, dense: Dense, centre: Doubles | None = None, threads: int = 1, together: bool = False) -> Plan:
    """One level of int8 codes over all coordinates; ``centre [dim]`` is taken from every row before coding. ``together``: how
    far all of them are off as one vector is computed, too, which makes the proof of a normaliser cheap."""
    if six_bits(layer):
        codes = encode_rows(layer.weight, centre, most=31)
    else:
        codes = encode_int8(layer.weight, threads) if centre is None else encode_rows(layer.weight, centre)
    base = np.zeros(padded(layer.vocab), np.float32)
    if layer.bias is not None:
        base[: layer.vocab] = layer.bias
    layout = tuple((start, min(start + SEGMENT, layer.dim)) for start in range(0, layer.dim, SEGMENT))
    slack, terms = _radius(codes, base, layer.dim)
    codes = _without(codes, np.isinf(slack[-1]))
    scale = np.ascontiguousarray(np.broadcast_to(codes.scale, (len(layout), len(base))))
    level = Level(codes.codes, layout, scale, slack, terms)
    if together and len(layout) == 1:
        level = _taken_together(layer, level, codes.size, centre)
    return Plan(rotation=None, base=base, centre=centre, levels=(level,), dense=dense)


def six_bits(layer: Layer) -> bool:
    """Whether codes have six bits, so that they take no more memory than rows that are stored in less than a byte a weight."""
    return layer.row_bytes < layer.dim <= SEGMENT and layer.dim % 16 == 0


def _radius(codes: Codes, base: Floats, dim: int) -> tuple[Floats, tuple[Term, ...]]:
    """``[4, padded]`` slacks and their query halves. A row that cannot be coded: 0, 0, 0, inf."""
    error, peak, size, offset = (part.astype(np.float64) for part in (codes.error, codes.peak, codes.size, np.abs(base)))
    uncoded = ~((size <= MOST_NORM) & (error <= MOST_NORM) & (offset <= LARGEST_BASE))
    # The executor's rounding is relative to ‖w^‖ ‖x‖, and ‖x‖ <= ‖rest‖ + sum |peaks|.
    rounding = ESTIMATE_ROUNDING * size
    with np.errstate(over="ignore", invalid="ignore"):
        rows = np.stack([peak + rounding, error + rounding, size, ESTIMATE_ROUNDING * offset + UNDERFLOW])
    rows[:, uncoded] = np.array([[0.0], [0.0], [0.0], [np.inf]])
    terms = tuple(Term(kind, 0, dim) for kind in ("peaks", "rest", "quantised", "one"))
    return round_up(rows), terms


def _taken_together(layer: Layer, level: Level, size: Floats, centre: Doubles | None) -> Level:
    def errors(part: slice) -> Doubles:
        wide = layer.weight[part].astype(np.float64)
        return np.asarray((wide if centre is None else wide - centre) - decoded(level, part))

    assert level.slack is not None
    uncoded = np.isinf(level.slack[-1])
    length = spectral_norm(layer.vocab, layer.dim, errors, uncoded)
    if length == 0.0:
        return level
    length += ESTIMATE_ROUNDING * float(np.linalg.norm(np.where(uncoded, 0.0, size.astype(np.float64))))
    terms = (term._replace(together=length) if term.kind == "rest" else term for term in level.terms)
    return level._replace(terms=tuple(terms))


def _without(codes: Codes, uncoded: NDArray[np.bool_]) -> Codes:
    """The codes with a scale of zero for the rows that cannot be coded, so that their estimates are finite."""
    if not uncoded.any():
        return codes
    scale = codes.scale.copy()
    scale[uncoded] = 0.0
    return codes._replace(scale=scale)


def mean_row(weight: Array) -> Doubles:
    """The mean of all rows, streamed."""
    total = np.zeros(weight.shape[1])
    for start in range(0, len(weight), ROWS_AT_ONCE):
        total += weight[start : start + ROWS_AT_ONCE].astype(np.float64).sum(axis=0)
    return np.asarray(total / len(weight))


def better_centred(layer: Layer, calibration: Doubles) -> bool:
    """Whether coding ``w - mean row`` leaves the likely rows closer to their codes.

    ``sum_i p_i ‖w_i - w^_i‖`` decides, p the mean distribution over calibration vectors: that is what the width of the
    normaliser's interval follows. Centring shortens most rows, but often lengthens the few that carry the mass.
    """
    share = _mean_distribution(layer, calibration[:: -(-len(calibration) // JUDGES)])
    likely = np.argsort(-share, kind="stable")[:MOST_JUDGED]
    plain, centred = (
        float(share[likely] @ encode_rows(layer.weight[likely], centre).error[: len(likely)])
        for centre in (None, mean_row(layer.weight))
    )
    return centred < plain


def all_closer_centred(layer: Layer) -> bool:
    """Whether coding ``w - mean row`` leaves every row closer to its codes, of some that are spread over the layer: whichever
    carry the mass, nothing is lost then. Rows that differ from each other by little are nothing but their mean otherwise."""
    rows = np.ascontiguousarray(layer.weight[:: -(-layer.vocab // MOST_JUDGED)])
    plain, centred = (encode_rows(rows, centre).error[: len(rows)] for centre in (None, mean_row(rows)))
    return bool(np.all(centred < plain))


def _mean_distribution(layer: Layer, hidden: Doubles) -> Doubles:
    exponents = layer.link(logits_of(layer, hidden))
    mass = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    return np.asarray((mass / mass.sum(axis=1, keepdims=True)).mean(axis=0))


def logits_of(layer: Layer, hidden: Doubles, threads: int = 1) -> Doubles:
    """All logits of a few vectors, ``[n, vocab]``, in float64."""
    logits = products(layer.weight, hidden, threads)
    if layer.bias is not None:
        logits += layer.bias
    return logits
