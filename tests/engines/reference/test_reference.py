"""Pieces of the NumPy executor: noise, and what the filters keep."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headlong.engines.reference.gumbel import gumbels, philox
from headlong.engines.sampling_filters import Filters, kept_count
from oracle import kept


def one(*words: int) -> tuple[Any, ...]:
    return tuple(np.array([word], np.uint64) for word in words)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers that come with the generator
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: Any, key: Any, expected: Any) -> None:
    assert tuple(int(word[0]) for word in philox(one(*counter), key)) == expected


def test_gumbels_are_gumbels_and_can_be_had_alone() -> None:
    ids = np.arange(200_000, dtype=np.int64)
    noise = gumbels(3, 5, 0, ids)
    assert abs(noise.mean() - 0.5772156649) < 0.01 and abs(noise.var() - math.pi**2 / 6) < 0.02
    assert abs(np.mean(noise < 1.0) - math.exp(-math.exp(-1.0))) < 0.005
    few = np.array([7, 123_456, 8], np.int64)
    assert (gumbels(3, 5, 0, few) == noise[few]).all()
    for other in (gumbels(4, 5, 0, few), gumbels(3, 6, 0, few), gumbels(3, 5, 1, few), gumbels(3, 5 + 2**32, 0, few)):
        assert (other != noise[few]).all()


def test_gumbel_by_integers() -> None:
    """``u`` rebuilt with Python's integers and logarithms."""
    noise = gumbels(2**40 + 9, 2**33 + 1, 2, np.arange(64, dtype=np.int64))
    for i in range(64):
        counter = (i >> 2, 1, 2)
        high, low = (int(philox(one(counter[0], draw, 1, 2), (9, 256))[i & 3][0]) for draw in (2, 2 | 0x80000000))
        u = (high * 2**32 + low + 0.5) / 2**64
        assert noise[i] == pytest.approx(-math.log(-math.log(u)), abs=1e-12)


@given(
    hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-5, 5)),
    st.integers(0, 30),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
)
def test_filters_of_a_few_classes(values: np.ndarray, top_k: int, top_p: float, min_p: float) -> None:
    descending = np.sort(values)[::-1]
    count = kept_count(descending, Filters(1, 1.0, top_k, top_p, min_p, 0, 0))
    nudged = {
        len(kept(descending, descending, top_k, min(1.0, top_p * f), min(1.0, min_p * f))) for f in (1, 1 - 1e-9, 1 + 1e-9)
    }
    assert min(nudged) <= count <= max(nudged) and count >= 1
