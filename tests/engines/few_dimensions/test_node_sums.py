"""Normalisers by sums of nodes: never outside their own errors, alike in both executors, and passes where nothing is found."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from headlong import native
from headlong.costs import BUILT_IN
from headlong.engines.base import Engine
from headlong.engines.reference.executor import Executor as Reference
from headlong.engines.reference.node_sums import NodeSearch, two_values
from headlong.engines.reference.query import Matrix
from headlong.errors import StoreError
from headlong.layers.matrix import Layer
from headlong.node_sums import fields_of, levels_of, starts_of
from headlong.plan import Plan
from headlong.previews.sums import choice
from headlong.previews.sums.choice import may_sum
from headlong.previews.sums.tree import LEAF, node_sums
from headlong.store import open_file, write_file
from oracle import truth

compiled_code = pytest.mark.skipif(native.isa() == native.REFERENCE, reason="two executors are compared")
SHAPES = ("spread", "kernel", "copies", "constant", "outlier", "no bias", "line")


def made(seed: int, vocab: int, dim: int, shape: str, nats: float) -> tuple[Layer, Any]:
    """A layer and vectors whose logits are about ``nats`` apart."""
    rng = np.random.default_rng(seed)
    weight, bias = rng.standard_normal((vocab, dim)), rng.standard_normal(vocab) * nats
    hidden = rng.standard_normal((4, dim)) * nats
    if shape == "kernel":
        layer = hl.Layer.gaussian_kernel(weight, 1 / math.sqrt(1 + nats))
        return layer, rng.standard_normal((4, dim))
    if shape == "copies":
        weight[:], bias[:] = weight[0], bias[0]
    if shape == "constant":
        weight[:, 0] = 3.0
    if shape == "outlier":
        weight[rng.integers(0, vocab)] *= 1e6
    if shape == "line":
        weight[:] = weight[:1] * rng.standard_normal((vocab, 1))
    kind = ("float32", "float16")[seed % 2] if shape != "outlier" else "float32"
    biases = None if shape == "no bias" else bias.astype(np.float32)
    return Layer(weight.astype(kind), biases, hl.Affine(1.5, -2.0) if seed % 3 else None), hidden


def summed(layer: Layer, most: float = math.inf) -> Engine:
    """An engine with a tree, whatever that costs."""
    engine = hl.compile(layer, "cascade", eps=0.05, delta=0.0, width=0)
    return Engine(layer, engine.method, engine.plan._replace(sums=node_sums(layer, 1, most)), engine.norms, engine.promise)


def check(layer: Layer, hidden: Any, found: Any, eps: float) -> None:
    """Within its own error, but for the rounding of the other side."""
    expected = truth(layer, hidden)
    size = np.abs(expected.exponents).max(axis=1)
    slack = layer.link.steepest * expected.rounding + 2.0**-44 * (1 + size) + 2.0**-50 * layer.vocab
    assert (np.abs(found.lse - expected.lse) <= found.error + slack).all()
    assert (found.error <= np.maximum(eps, layer.link.steepest * expected.rounding * 300)).all()


@given(
    seed=st.integers(0, 2**32 - 1), vocab=st.sampled_from([1, 2, 63, 65, 300, 1500]), dim=st.integers(1, 8),
    shape=st.sampled_from(SHAPES), nats=st.sampled_from([0.0, 1e-30, 1e-3, 0.3, 3.0, 30.0, 1e4, 1e7]),
    eps=st.sampled_from([1e-9, 1e-3, 0.05, 2.0, 50.0]),
)  # fmt: skip
def test_any_layer(seed: int, vocab: int, dim: int, shape: str, nats: float, eps: float) -> None:
    layer, hidden = made(seed, vocab, dim, shape, nats)
    engine = summed(layer)
    check(layer, hidden, engine.lse(hidden, eps=eps), eps)
    ids = np.tile(np.arange(min(3, vocab)), (len(hidden), 1))
    found = engine.log_prob(hidden, ids, eps=eps)
    check(layer, hidden, found, eps)
    assert (found.log_probs == layer.link(found.logits) - found.lse[:, None]).all()


@compiled_code
@given(
    seed=st.integers(0, 2**32 - 1), vocab=st.sampled_from([1, 65, 300, 1500]), dim=st.integers(1, 8),
    shape=st.sampled_from(SHAPES), nats=st.sampled_from([0.0, 1e-3, 0.3, 3.0, 30.0, 1e4]),
    eps=st.sampled_from([1e-3, 0.05, 2.0]),
)  # fmt: skip
def test_both_executors(seed: int, vocab: int, dim: int, shape: str, nats: float, eps: float) -> None:
    layer, hidden = made(seed, vocab, dim, shape, nats)
    norms, link = native.row_norms(layer.weight), layer.link.lowered()
    plan = Plan(None, None, None, None, (), sums=node_sums(layer, 1, math.inf))
    mine = Reference(Matrix(layer.weight, layer.bias, norms, layer.link, plan)).lse(hidden, eps, None, False, 1)
    theirs = native.executor(layer.weight, layer.bias, norms, link, plan, native.isa()).lse(hidden, eps, None, False, 1)
    assert (mine[4] == theirs[4]).all() or eps < 0.01  # given up or not: where rounding is about eps, either
    same = ~(mine[4] | theirs[4])
    assert (np.abs(mine[0] - theirs[0]) <= mine[1] + theirs[1])[same].all()
    if (mine[2] == theirs[2]).all():  # the same nodes: sums that differ by their roundings alone
        assert np.allclose(mine[1][same], theirs[1][same], rtol=0.02, atol=1e-12)


@compiled_code
@pytest.mark.parametrize(("vocab", "dim"), [(1, 1), (2, 3), (700, 2), (5000, 8)])
def test_one_order(vocab: int, dim: int) -> None:
    rows = np.round(np.random.default_rng(vocab).standard_normal((vocab, dim)), 1).astype(np.float32)
    levels = max(0, (-(-vocab // LEAF) - 1).bit_length())
    order = native.median_order(rows, levels, 2)
    assert (np.sort(order) == np.arange(vocab)).all()
    starts = starts_of(vocab, levels)
    for start, stop in itertools.pairwise(starts):
        assert (np.diff(order[start:stop]) > 0).all() and stop - start <= LEAF


@compiled_code
def test_the_order_is_that_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.round(np.random.default_rng(5).standard_normal((3001, 3)), 1).astype(np.float32)
    native_order = native.median_order(rows, 6, 2)
    monkeypatch.setenv("HEADLONG_ISA", "numpy")
    assert (native.median_order(rows, 6) == native_order).all()


@given(
    seed=st.integers(0, 2**32 - 1), vocab=st.sampled_from([3, 100, 1000]), dim=st.integers(1, 5),
    shape=st.sampled_from(SHAPES),
)  # fmt: skip
def test_what_is_known_of_nodes(seed: int, vocab: int, dim: int, shape: str) -> None:
    """Boxes and rests hold every class; means and covariances are those of all classes of a node."""
    layer, _ = made(seed, vocab, dim, shape, 2.0)
    sums = node_sums(layer, 1, math.inf)
    fields, bias = fields_of(sums.nodes, dim), np.zeros(vocab) if layer.bias is None else layer.bias
    rows = np.concatenate([layer.weight.astype(np.float64), np.asarray(bias, np.float64)[:, None]], axis=1)[sums.order]
    below, across = np.tril_indices(dim + 1)
    for level in range(levels_of(sums.nodes) + 1):
        starts = starts_of(vocab, level)
        for node in range(2**level):
            mine, at = rows[starts[node] : starts[node + 1]], 2**level - 1 + node
            assert (mine[:, :-1] >= fields.low[at]).all() and (mine[:, :-1] <= fields.high[at]).all()
            rest = mine[:, -1] + mine[:, :-1] @ fields.level[at]
            assert fields.rest[at, 0] <= rest.min() and rest.max() <= fields.rest[at, 1]
            assert np.allclose(fields.mean[at], mine.mean(axis=0), rtol=1e-12, atol=1e-13 * np.abs(mine).max())
            spread, size = np.cov(mine.T, bias=True).reshape(dim + 1, dim + 1), mine.std(axis=0) + 1e-300
            kept = fields.spread[at] / np.where(below == across, 1.0, 2.0)
            assert (np.abs(kept - spread[below, across]) <= 1e-9 * size[below] * size[across] + 1e-22 * (mine**2).max()).all()


@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 40), width=st.sampled_from([1e-6, 0.1, 3.0, 30.0]))
def test_two_values_are_the_extremes(seed: int, count: int, width: float) -> None:
    """Any numbers have a mean of exponentials between those of the two variables, which are the least and the largest."""
    z = np.random.default_rng(seed).random(count) * width
    mean, variance, exact = z.mean(keepdims=True), z.var(keepdims=True), np.exp(z).mean()
    low, high = z.min(keepdims=True), z.max(keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        least, most = float(two_values(mean, low, variance)[0]), float(two_values(mean, high, variance)[0])
    assert least <= exact * (1 + 1e-9) and exact <= most * (1 + 1e-9)


def test_ids_and_normalisers_in_one_answer(rng: np.random.Generator) -> None:
    layer, hidden = made(3, 1500, 2, "kernel", 30.0)
    engine, plain = summed(layer), hl.compile(layer, "full")
    top, other = engine.topk(hidden, 7, eps=0.05), plain.topk(hidden, 7)
    assert (top.ids == other.ids).all() and top.proved.all() and (top.error <= 0.05).all() and not top.cost.dense.any()
    assert (np.abs(top.log_probs - other.log_probs) <= (top.error + other.error)[:, None]).all()
    assert (np.abs(top.lse - other.lse) <= top.error + other.error).all()


def test_little_is_read() -> None:
    layer, hidden = made(3, 20_000, 2, "kernel", 30.0)
    found = summed(layer).lse(hidden)
    assert (found.cost.bytes < 0.3 * layer.vocab * 8).all() and (found.error <= 0.05).all() and not found.cost.dense.any()


def test_a_batch_is_a_loop(rng: np.random.Generator) -> None:
    layer, _ = made(5, 1500, 3, "kernel", 10.0)
    hidden = rng.standard_normal((40, 3))
    engine = summed(layer)
    together = engine.lse(hidden)
    alone = [engine.lse(row[None]) for row in hidden]
    assert (together.lse == np.concatenate([one.lse for one in alone])).all()
    assert (together.error == np.concatenate([one.error for one in alone])).all()


def test_what_is_given_up_is_passed_over(rng: np.random.Generator) -> None:
    layer, _ = made(3, 1500, 4, "spread", 3.0)
    hidden = rng.standard_normal((30, 4)) * 3
    engine, plain = summed(layer, most=1.0), hl.compile(layer, "full").lse(hidden)
    for row, exact, error in zip(hidden, plain.lse, plain.error, strict=True):
        found = engine.lse(row[None])
        assert abs(found.lse[0] - exact) <= found.error[0] + error and found.error[0] <= 0.05
    after = engine.lse(hidden[:1]).cost.bytes  # most searches were in vain: none is made any more
    assert (after == hl.compile(layer, "cascade", eps=0.05, delta=0.0, width=0).lse(hidden[:1]).cost.bytes).all()


@pytest.mark.parametrize("k", [0, 3])
def test_masks_temperatures_and_changed_rows(rng: np.random.Generator, k: int) -> None:
    layer, hidden = made(4, 1500, 2, "kernel", 10.0)
    engine = summed(layer)
    allowed = np.arange(0, 1500, 2)
    masked, live = engine.lse(hidden, allowed=allowed), np.zeros((4, 1500), bool)
    live[:, allowed] = True
    expected = truth(layer, hidden, live)
    assert (np.abs(masked.lse - expected.lse) <= masked.error + 2 * expected.rounding + 1e-12).all()
    warm = engine.at_temperature(2.0)
    check(warm.layer, hidden, warm.lse(hidden), 0.05)
    fewer = engine.without([0, 5])
    live[:] = True
    live[:, [0, 5]] = False
    expected = truth(layer, hidden, live)
    found = fewer.lse(hidden) if k == 0 else fewer.topk(hidden, k)
    assert (np.abs(found.lse - expected.lse) <= found.error + 2 * expected.rounding + 1e-12).all()
    more = engine.with_rows(layer.weight[:3] * np.float32(1.25))
    assert layer.bias is not None
    rows, biases = layer.weight[:3] * np.float32(1.25), np.zeros(3, np.float32)
    whole = Layer(np.concatenate([layer.weight, rows]), np.append(layer.bias, biases))
    check(whole, hidden, more.lse(hidden), 0.05)
    merged = more.compact()
    assert merged.plan.sums is not None and len(merged.plan.sums.order) == 1503
    check(whole, hidden, merged.lse(hidden), 0.05)


def test_saved_and_loaded(tmp_path: Path) -> None:
    layer, hidden = made(4, 1500, 2, "kernel", 10.0)
    engine = summed(layer, most=1e6)
    engine.save(tmp_path / "a.safetensors")
    again = hl.load(tmp_path / "a.safetensors")
    assert again.plan.sums is not None and again.plan.sums.most == 1e6
    assert (again.lse(hidden).lse == engine.lse(hidden).lse).all()


DAMAGES: list[tuple[str, Any, str]] = [
    ("order", lambda order: order[::-1] * 0, "leaves a class out"),
    ("order", lambda order: order[:-1], "record says"),
    ("order", lambda order: order.astype(np.int64), "record says"),
    ("nodes", lambda nodes: nodes[:-1], "whole levels"),
    ("nodes", lambda nodes: nodes[:, :-1], "record says"),
    ("nodes", lambda nodes: np.where(np.arange(len(nodes))[:, None] == 3, np.nan, nodes), "infinity or NaN"),
    ("nodes", lambda nodes: -nodes, "ends before it begins"),
]


@pytest.mark.parametrize(("name", "damage", "words"), DAMAGES)
def test_damaged_trees_are_refused(tmp_path: Path, name: str, damage: Any, words: str) -> None:
    layer, _ = made(4, 1500, 2, "kernel", 10.0)
    summed(layer, most=1e6).save(tmp_path / "a.safetensors")
    file = open_file(tmp_path / "a.safetensors")
    tensors = {key: np.array(file.read(key)) for key in file.tensors}
    tensors[f"plan.sums.{name}"] = np.ascontiguousarray(damage(tensors[f"plan.sums.{name}"]))
    write_file(tmp_path / "b.safetensors", tensors, {key: value for key, value in file.metadata.items() if key != "checksum"})
    with pytest.raises(StoreError, match=words):
        hl.load(tmp_path / "b.safetensors")


def test_compile_takes_a_tree_where_it_pays() -> None:
    """Points of few coordinates have one, whether "cascade" or "auto" is asked for, with vectors and without."""
    rng = np.random.default_rng(0)
    points, hidden = rng.standard_normal((60_000, 2)), rng.standard_normal((50, 2))
    layer = hl.Layer.gaussian_kernel(points, 0.1)
    for method, vectors in (("auto", None), ("cascade", None), ("cascade", hidden)):
        engine = hl.compile(layer, method, eps=0.05, delta=0.01, calibration=vectors)
        assert engine.plan.sums is not None and engine.name == "cascade"
        check(layer, hidden, engine.lse(hidden), 0.05)
    assert "nodes of a tree" in hl.compile(layer, eps=0.05, delta=0.01).reason
    assert hl.compile(layer, eps=math.inf).plan.sums is None
    assert hl.compile(layer, "full", eps=0.05).plan.sums is None
    assert not may_sum(hl.Layer.gaussian_kernel(points[:1000], 0.1), 0.05)
    assert not may_sum(Layer(layer.weight, layer.bias, hl.SoftCap(30.0)), 0.05)
    assert not may_sum(hl.Layer.gaussian_kernel(rng.standard_normal((20_000, 9)), 0.1), 0.05)


@compiled_code
def test_compile_takes_none_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits that neither are alike within a node nor leave nodes out."""
    rng = np.random.default_rng(0)
    layer = hl.Layer.gaussian_kernel(rng.standard_normal((20_000, 8)), 0.7)
    assert hl.compile(layer, "cascade", eps=0.05, delta=0.01).plan.sums is None
    dear = BUILT_IN._replace(row=1e4)  # a machine on which nodes are expensive
    monkeypatch.setattr(choice, "here", lambda: dear)
    points = hl.Layer.gaussian_kernel(rng.standard_normal((60_000, 2)), 0.1)
    assert hl.compile(points, "cascade", eps=0.05, delta=0.01).plan.sums is None


def test_vectors_that_float64_cannot_sum() -> None:
    """Where rounding is more than eps, no search is made, and the answer says how far it may be off."""
    layer, hidden = made(3, 300, 2, "spread", 1.0)
    search = NodeSearch(Matrix(layer.weight, layer.bias, native.row_norms(layer.weight), layer.link, summed(layer).plan))
    assert search.search(hidden[0] * 1e30, 0.05)[:4] == (-math.inf, math.inf, 0, 0.0)
    found = summed(layer).lse(np.clip(hidden * 1e38, -3e38, 3e38))
    assert (found.error > 0.05).all() or np.isfinite(found.lse).all()
