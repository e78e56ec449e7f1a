"""Entropies by rotated codes: within their error, drawn where intervals leave them open, the same in any batch."""

from __future__ import annotations

import numpy as np
import pytest

import headlong as hl
from coded import SEGMENTS, awkward, gaussian, reader
from headlong import native
from headlong.plan import Segment
from oracle import check_within, truth

EPS = 0.01


def exact(layer: hl.Layer, hidden: np.ndarray, live: np.ndarray | None = None) -> np.ndarray:
    log_probs = truth(layer, hidden, live).log_probs
    p = np.exp(log_probs)
    return -np.sum(p * np.where(p > 0, log_probs, 0.0), axis=1)


@pytest.mark.parametrize("level", [level for level in native.levels() if level != native.REFERENCE])
@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("delta", [1e-6, 0.0])
def test_entropies_are_within_their_error(segments: tuple, level: str, delta: float) -> None:
    layer, hidden = gaussian(6000, 100, 8, steep=4.0)
    codes, *_kept = reader(layer, segments, level)
    live = np.random.default_rng(1).random(6000) < 0.5
    for scale in (0.02, 0.1, 0.3, 1.0):
        for mask in (None, live):
            rows = hidden * scale
            given = None if mask is None else mask[None].astype(np.uint8)
            found, error, lse, *_ = codes.entropy(rows, EPS, given, 1, delta, 3)
            check_within(found, exact(layer, rows, mask), error, 1e-9)
            assert (error <= EPS).all()
            assert (np.abs(lse - truth(layer, rows, mask).lse) <= 0.1).all()


def test_rows_are_drawn_where_intervals_leave_an_entropy_open() -> None:
    layer, hidden = gaussian(40_000, 100, 9)
    codes, *_kept = reader(layer, SEGMENTS[2], native.levels()[-1])
    rows = hidden * 0.35
    found, error, _, read, _, dense = codes.entropy(rows, 0.05, None, 1, 1e-6, 0)
    assert dense.mean() < 0.2 and (read[~dense] > 200).all()
    check_within(found, exact(layer, rows), error, 1e-9)
    many = [codes.entropy(rows, 0.05, None, 1, 0.3, seed)[:2] for seed in range(25)]
    misses = [np.abs(one - exact(layer, rows)) > off for one, off in many]
    assert np.mean(misses) < 0.3  # what was promised; it is far fewer


@pytest.mark.parametrize(("name", "layer", "hidden"), awkward(), ids=[name for name, _, _ in awkward()])
def test_layers_made_to_break_a_bound(name: str, layer: hl.Layer, hidden: np.ndarray) -> None:
    codes, *_kept = reader(layer, (Segment(0, 64, 6),), native.levels()[-1])
    for delta in (1e-6, 0.0):
        found, error, *_ = codes.entropy(hidden, EPS, None, 1, delta, 0)
        check_within(found, exact(layer, hidden), error, 1e-9)
        assert (error <= EPS).all()


@pytest.mark.parametrize("link", [hl.Affine(0.7, 0.2), hl.SoftCap(8.0)])
def test_a_full_scan_says_entropies_in_float64(link: hl.Affine | hl.SoftCap) -> None:
    layer, hidden = gaussian(3000, 100, 11)
    bent = hl.Layer(layer.weight, layer.bias, link)
    engine = hl.compile(bent, "full")
    found = engine.entropy(np.concatenate([hidden, np.zeros((1, 100))]), eps=1e-7)
    assert found.cost.dense.all() and (found.error < 1e-7).all()
    check_within(found.entropy, exact(bent, np.concatenate([hidden, np.zeros((1, 100))])), found.error, 1e-9)
