"""The dense float64 answers that every engine is held against, and comparisons that understand ties.

Helpers named ``check_`` raise; they never return a verdict that a test could forget to assert.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.layers.matrix import Layer

Doubles = NDArray[np.float64]
Ids = NDArray[np.int64]


class Truth(NamedTuple):
    """``logits, exponents [batch, vocab]`` (-inf where a class is masked), ``lse [batch]``, ``rounding [batch]`` of a logit."""

    logits: Doubles
    exponents: Doubles
    lse: Doubles
    rounding: Doubles

    @property
    def log_probs(self) -> Doubles:
        return self.exponents - np.where(np.isneginf(self.lse), 0.0, self.lse)[:, None]


def truth(layer: Layer, hidden: NDArray[np.generic], live: NDArray[np.bool_] | None = None) -> Truth:
    """All logits in float64, by one matrix product: another route than any engine takes."""
    weight, rows = layer.weight.astype(np.float64), np.asarray(hidden, np.float64)
    logits = rows @ weight.T
    if layer.bias is not None:
        logits += layer.bias
    longest = np.linalg.norm(weight, axis=1).max() * np.linalg.norm(rows, axis=1)
    largest = 0.0 if layer.bias is None else float(np.abs(layer.bias).max())
    rounding = (layer.dim + 4) * 2.0**-52 * (longest + largest)
    exponents = layer.link(logits)
    if live is not None:
        logits, exponents = (np.where(live, part, -np.inf) for part in (logits, exponents))
    return Truth(logits, exponents, logsumexp(exponents), rounding)


def logsumexp(values: Doubles) -> Doubles:
    shift = values.max(axis=1)
    finite = np.where(np.isfinite(shift), shift, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(finite + np.log(np.exp(values - finite[:, None]).sum(axis=1)))


def check_topk(reference: Doubles, ids: Ids, logits: Doubles, tolerance: float) -> None:
    """``ids, logits [k]`` are the k largest of ``reference [vocab]``: equal scores by id, rounding ties may swap.

    With ``tolerance`` 0 the order is checked to the last tie. Missing classes are id -1 and logit -inf.
    """
    there = int(np.isfinite(reference).sum())
    count = min(len(ids), there)
    assert ids.dtype == np.int64, f"ids are {ids.dtype}"
    assert (ids[count:] == -1).all() and np.isneginf(logits[count:]).all(), f"only {there} classes are there: {ids}, {logits}"
    ids, logits = ids[:count], logits[:count]
    assert len(set(ids.tolist())) == count, f"an id came twice: {ids}"
    assert ((ids >= 0) & (ids < len(reference))).all(), f"ids out of range: {ids}"
    assert np.isfinite(reference[ids]).all(), f"a class came that is not there: {ids}"
    assert (np.abs(logits - reference[ids]) <= tolerance).all(), f"logits off by {np.abs(logits - reference[ids]).max():.3g}"
    steps = np.diff(logits)
    assert (steps <= 0).all(), f"logits do not descend: {logits}"
    assert (np.diff(ids)[steps == 0] > 0).all(), f"equal logits are not in the order of their ids: {ids}"
    left = reference.copy()
    left[ids] = -np.inf
    if count and there > count:
        best = int(np.argmax(left))
        assert left[best] <= logits[-1] + tolerance, f"class {best} at {left[best]} beats {logits[-1]}"
    if tolerance == 0:
        expected = np.lexsort((np.arange(len(reference)), -reference))[:count]
        assert (ids == expected).all(), f"{ids}, expected {expected}"


def check_within(value: Doubles, expected: Doubles, error: Doubles, slack: Doubles | float) -> None:
    """``|value - expected| <= error + slack`` in every row; an infinite error states nothing."""
    assert not np.isnan(value).any() and not np.isnan(error).any(), f"NaN in {value} or {error}"
    assert (error >= 0).all(), f"negative error: {error}"
    with np.errstate(invalid="ignore"):
        off = np.where(value == expected, 0.0, np.abs(value - expected))
    assert (off <= error + slack).all(), f"off by {off.max():.6g} where {error[np.argmax(off - error)]:.6g} is stated"


def kept(logits: Doubles, exponents: Doubles, top_k: int, top_p: float, min_p: float) -> Ids:
    """The classes that pass the filters: sorted by logit, summed, cut, as in Hugging Face's samplers."""
    there = int(np.isfinite(exponents).sum())
    order = np.lexsort((np.arange(len(logits)), -logits))[: min(top_k or there, there)]
    mass = np.exp(exponents[order] - exponents[order[0]])
    mass /= mass.sum()
    inside = np.ones(len(order), bool)
    if top_p < 1:
        inside &= np.cumsum(mass) - mass < top_p
    if min_p > 0:
        inside &= exponents[order] >= exponents[order[0]] + math.log(min_p)
    return np.asarray(order[inside], np.int64)


def check_draw(
    logits: Doubles, exponents: Doubles, noise: Doubles, cut: tuple[int, float, float], winner: int, score: float,
    bent: float = 0.0,
) -> None:
    """``winner`` has the largest exponent + noise of the classes that ``cut = (top_k, top_p, min_p)`` keeps.

    A boundary of top_p or min_p within 1e-9 may fall on either side. ``bent``: by how much exponents may be off, where a table
    stands for a link.
    """
    found = []
    top_k, top_p, min_p = cut
    for nudge in (1.0, 1 - 1e-9 - 2 * bent, 1 + 1e-9 + 2 * bent):
        ids = kept(logits, exponents, top_k, min(top_p * nudge, 1.0), min(min_p * nudge, 1.0))
        keys = exponents[ids] + noise[ids]
        best = ids[keys >= keys.max() - 1e-9 * (1 + abs(keys.max())) - 2 * bent]
        if winner in best:
            key = exponents[winner] + noise[winner]
            assert abs(score - key) <= 1e-9 * (1 + abs(key)) + bent, f"score {score}, expected {key}"
            return
        found.append(best)
    raise AssertionError(f"class {winner} was drawn, expected one of {found}")
