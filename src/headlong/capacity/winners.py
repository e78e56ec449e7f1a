"""Classes that a layer can never put first, whatever the hidden vector (Demeter et al. 2020; Grivas et al. 2022).

::

    class i can win  iff  some h has  w_i h + b_i > w_j h + b_j  for all j != i          without b: w_i is no mean of other rows

A link keeps the order of classes, so it changes no winner.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import headlong
from headlong.bench.measure import Progress, silent
from headlong.errors import MissingPackageError, OptionError
from headlong.layers.matrix import Layer
from headlong.native import Doubles

Ids = NDArray[np.int64]
QUERIES = 256
"""Vectors that the engine is asked about at a time."""
ROUNDS, LONGEST = 100, 60
"""Steps towards a class before a linear program decides, and programs for each class before it is left open."""
SLACK = 1e-7
"""What a linear program may violate: a class that wins by no more than this times the largest weight counts as no winner."""


class Winners(NamedTuple):
    """``found [vocab]``: a hidden vector was found that puts the class first; ``never``: none exists; the rest is ``open``."""

    found: NDArray[np.bool_]
    never: Ids
    open: Ids


def winners(layer: Layer, progress: Progress = silent, most: int = 200) -> Winners:
    """Which classes some hidden vector puts first, strictly.

    Each class is looked for from its own centred row, by steps away from whatever wins instead (a perceptron); an engine
    says with proof who wins. Up to ``most`` classes that were not found are decided by linear programs (SciPy's HiGHS, to
    1e-7). Raises MissingPackageError where a program is needed and SciPy is not there.
    """
    if most < 0:
        raise OptionError(f"most = {most}; expected 0 or a number of classes")
    plain = Layer(layer.weight, layer.bias)
    engine = headlong.compile(plain, "codes", eps=math.inf, delta=0.0)
    weight = np.asarray(layer.weight, np.float64)
    found = np.zeros(layer.vocab, bool)
    left = np.arange(layer.vocab)
    at = weight - weight.mean(0)
    rivals: dict[int, set[int]] = {}
    for turn in range(ROUNDS):
        ahead = _ahead(engine, at, left)
        won = ahead < 0
        found[left[won]] = True
        left, at, ahead = left[~won], at[~won], ahead[~won]
        progress(turn + 1, ROUNDS + most)
        if not len(left):
            break
        at = at + weight[left] - weight[ahead]
        for one, other in zip(left.tolist(), ahead.tolist(), strict=True):
            rivals.setdefault(one, set()).add(other)
    never = []
    for done, one in enumerate(left[:most].tolist()):
        decided = _decide(weight, layer.bias, one, sorted(rivals[one]))
        found[one] |= decided is True
        never += [one] if decided is False else []
        progress(ROUNDS + done + 1, ROUNDS + min(most, len(left)))
    progress(1, 1)
    lost = np.array(never, np.int64)
    return Winners(found, lost, np.setdiff1d(np.flatnonzero(~found), lost))


def _ahead(engine: Any, at: Doubles, wanted: Ids) -> Ids:
    """Who is first, or ties with it, in place of the class that is wanted; -1 where that one is ahead of all."""
    k = min(2, engine.layer.vocab)
    parts = [engine.topk(at[start : start + QUERIES], k=k) for start in range(0, len(at), QUERIES)]
    ids = np.concatenate([part.ids for part in parts])
    logits = np.concatenate([part.logits for part in parts])
    if k == 1:
        return np.full(len(at), -1)
    first = (ids[:, 0] == wanted) & (logits[:, 0] > logits[:, 1])
    return np.where(first, -1, np.where(ids[:, 0] == wanted, ids[:, 1], ids[:, 0]))


def _decide(weight: Doubles, bias: Any, one: int, rivals: list[int]) -> bool | None:
    """Whether class ``one`` can win: None where the programs did not come to an end.

    ::

        maximise t <= 1    subject to    (w_one - w_j) h + b_one - b_j >= t    for the rivals j, which grow by whoever is ahead
    """
    optimise = _scipy()
    scale = max(float(np.abs(weight).max()), 1e-300)
    offset = np.zeros(len(weight)) if bias is None else np.asarray(bias, np.float64)
    gaps, lead = (weight[one] - weight) / scale, (offset[one] - offset) / scale
    for _ in range(LONGEST):
        rows = np.concatenate([-gaps[rivals], np.ones((len(rivals), 1))], axis=1)
        aim = np.append(np.zeros(weight.shape[1]), -1.0)
        bounds = [*((None, None),) * weight.shape[1], (None, 1.0)]
        best = optimise.linprog(aim, A_ub=rows, b_ub=lead[rivals], bounds=bounds, method="highs")
        if best.status != 0:
            return None
        if -best.fun <= SLACK:
            return False
        margin = gaps @ best.x[:-1] + lead
        margin[one] = np.inf
        if margin.min() > 0:
            return True
        worst = np.argsort(margin)[:32]
        rivals = sorted({*rivals, *worst[margin[worst] <= 0].tolist()})
    return None


def _scipy() -> Any:
    try:
        from scipy import optimize
    except ImportError as error:
        raise MissingPackageError(f"classes that never win need SciPy ({error}): pip install 'headlong[capacity]'") from error
    return optimize
