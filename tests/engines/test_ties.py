"""Rows with one logit: the smaller id first, at every instruction level, whatever order a kernel sums in."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headlong as hl
from headlong import native
from kinds import KINDS, changed, shards

DIM, CLASSES, EQUAL = 48, 3000, 40


def permuted(seed: int, bias: bool) -> tuple[hl.Layer, np.ndarray, np.ndarray]:
    """A layer whose :data:`EQUAL` best rows have the same terms in other orders, four such vectors, and those rows' ids."""
    rng = np.random.default_rng(seed)
    alike = rng.integers(0, 3, DIM)  # coordinates that a vector has the same number at
    hidden = rng.standard_normal((4, 3))[:, alike] * 10.0 ** rng.integers(-6, 7)
    weight, offset = rng.standard_normal((CLASSES, DIM)), hidden[0].std() * rng.standard_normal(CLASSES)
    ids = np.sort(rng.choice(CLASSES, EQUAL, replace=False))
    best = 3 * np.abs(weight[0]) * np.sign(hidden[0]) + rng.standard_normal(DIM) / 9
    for place, group in product(ids, range(3)):
        weight[place, alike == group] = rng.permutation(best[alike == group])
    offset[ids] = 0.37 * hidden[0].std()
    return hl.Layer(weight.astype(np.float32), offset.astype(np.float32) if bias else None), hidden, ids


ACROSS = {"shards": shards, "changed": changed, "changed blocks": KINDS["changed blocks"]}
"""Kinds of several parts, of which the first ends among equal rows."""


@pytest.mark.parametrize("kind", ["full", "codes", "blocks", *ACROSS])
@given(seed=st.integers(0, 2**32), k=st.integers(1, EQUAL), bias=st.booleans())
@settings(max_examples=8, deadline=None)
def test_rows_that_are_permutations_tie(kind: str, seed: int, k: int, bias: bool) -> None:
    layer, hidden, ids = permuted(seed, bias)
    few = np.union1d(ids[1::2], np.setdiff1d(np.arange(60), ids))
    for isa in native.levels()[-1:] if kind in ACROSS else native.levels():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEADLONG_ISA", isa)
            cut = int(ids[seed % EQUAL]) + 1
            engine = ACROSS[kind](layer, cut, delta=0) if kind in ACROSS else KINDS[kind](layer, delta=0, eps=0.01)
            for eps, some in product((0.01, math.inf), (hidden[:1], hidden)):
                top = engine.topk(some, k, eps=eps)
                assert top.ids[0].tolist() == ids[:k].tolist(), f"{isa}, eps {eps}"
                assert (np.diff(top.logits) <= 0).all() and np.unique(top.logits[0]).size == 1
            assert engine.topk(hidden[:1], k, allowed=few).ids[0].tolist()[: EQUAL // 2] == ids[1::2][:k].tolist()
            assert engine.topk(hidden[:1], k, exclude=ids[:3]).ids[0].tolist()[: EQUAL - 3] == ids[3 : 3 + k].tolist()
