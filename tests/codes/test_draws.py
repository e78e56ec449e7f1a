"""Draws and normalisers by rotated codes, beside float64: every filter, links, rules of each row."""

from __future__ import annotations

import numpy as np
import pytest

import headlong as hl
from headlong.links import SIGSOFTMAX, Link, SoftCap

VOCAB, DIM = 5003, 48
LINKS: dict[str, Link | None] = {"none": None, "softcap": SoftCap(8.0), "sigsoftmax": SIGSOFTMAX}
FILTERS = {
    "all": {},
    "top_p": {"top_p": 0.9},
    "little": {"top_p": 0.2, "temperature": 1.7},
    "min_p": {"min_p": 0.05},
    "top_k": {"top_k": 40, "top_p": 0.8},
    "several": {"n": 3, "top_p": 0.95, "min_p": 0.01},
}


def made(link: Link | None, delta: float = 1e-6, bias: bool = True) -> tuple[hl.Engine, np.ndarray]:
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((VOCAB, DIM)).astype(np.float32)
    offset = (0.3 * rng.standard_normal(VOCAB)).astype(np.float32) if bias else None
    layer = hl.Layer(weight, offset, link) if link is not None else hl.Layer(weight, offset)
    return hl.compile(layer, "codes", bits=8.0, delta=delta), 0.5 * rng.standard_normal((24, DIM))


def logits(engine: hl.Engine, hidden: np.ndarray) -> np.ndarray:
    layer = engine.layer
    return hidden @ layer.weight.astype(np.float64).T + (0 if layer.bias is None else layer.bias.astype(np.float64))


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_draws_are_those_of_every_logit(link: Link | None, filters: dict[str, float], delta: float) -> None:
    engine, hidden = made(link, delta)
    dense = hl.compile(engine.layer, "full")
    allowed = np.arange(0, VOCAB, 3)
    for limits in ({}, {"allowed": allowed}):
        found, true = (one.sample(hidden, seed=9, eps=np.inf, **filters, **limits) for one in (engine, dense))
        np.testing.assert_array_equal(found.ids, true.ids)
        np.testing.assert_array_equal(found.logits, true.logits)
        assert (found.proved == (delta == 0)).all() or found.cost.dense.any()


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
def test_normalisers_are_within_their_errors_under_every_link(link: Link | None) -> None:
    engine, hidden = made(link)
    exponents = logits(engine, hidden) if link is None else link(logits(engine, hidden))
    most = exponents.max(axis=1)
    true = most + np.log(np.exp(exponents - most[:, None]).sum(axis=1))
    found = engine.topk(hidden, 5)
    assert (np.abs(found.lse - true) <= found.error).all() and (found.error <= 0.0101).all()
    alone = np.concatenate([engine.lse(row[None]).lse for row in hidden])
    np.testing.assert_array_equal(found.lse, alone)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 3.0])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.95])
def test_what_a_nucleus_keeps_is_within_the_error(temperature: float, top_p: float) -> None:
    """Nuclei of a few classes, and of thousands, whose mass is bounded by that of the first ones."""
    engine, hidden = made(None)
    found = engine.sample(hidden, seed=2, top_p=top_p, temperature=temperature)
    scaled = logits(engine, hidden) / temperature
    share = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    order = np.argsort(-share, axis=1, kind="stable")
    falling = np.take_along_axis(share, order, axis=1)
    above = np.cumsum(falling, axis=1) - falling
    sizes = (above < top_p).sum(axis=1)
    for row, size in enumerate(sizes):
        assert found.ids[row, 0] in order[row, :size]
        assert abs(found.kept[row] - np.log(falling[row, :size].sum())) <= found.error[row]
        assert abs(found.log_probs[row, 0] - np.log(share[row, found.ids[row, 0]])) <= found.error[row]
    assert (found.error <= 0.0101).all()
