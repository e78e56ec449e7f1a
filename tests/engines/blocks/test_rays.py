"""Rays: bounds that hold for every class, ids that are float64's from every executor, chosen where they read less, saved."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headlong as hl
from adversarial import CASES
from bounded import IDS, LEVELS, around_tastes, check, check_bounds, check_bounds_at, check_ids_of
from headlong import native
from headlong.engines.base import Engine
from headlong.engines.methods import blocks as by_blocks
from headlong.engines.reference.blocks import BlockSearch
from headlong.errors import HeadlongError
from headlong.layers.matrix import Layer
from headlong.plan import Blocks
from headlong.previews.blocks import choice as block_choice
from headlong.previews.blocks.boxes import blocks_of
from headlong.previews.blocks.rays import rays_of
from headlong.previews.whitening import whiten
from headlong.store import open_file, write_file


def made(layer: Layer, hidden: np.ndarray) -> Blocks:
    blocks = rays_of(layer, whiten(layer.weight, hidden.astype(np.float64)))
    assert blocks is not None
    return blocks


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rays wherever they can be made."""

    def rays(layer: Layer, plan: Any, boxes: Blocks, basis: Any, vectors: Any, share: float, threads: int, *_: Any) -> Blocks:
        return rays_of(layer, basis, threads) or boxes

    monkeypatch.setattr(by_blocks, "tighter", rays)


@pytest.mark.parametrize("dim", [1, 7, 8, 9, 64, 100])
@pytest.mark.parametrize("vocab", [1, 15, 16, 17, 257, 700])
def test_bounds_hold_for_every_class_of_every_ray(vocab: int, dim: int) -> None:
    layer, hidden = around_tastes(vocab, dim)
    odd = np.concatenate([hidden[:4], 1e4 * hidden[4:5], np.zeros((1, dim), np.float32), -hidden[5:7]])
    assert check_bounds(layer, made(layer, hidden), odd) >= len(odd) * vocab


@given(st.integers(0, 2**32 - 1), st.integers(1, 90), st.integers(1, 90), st.sampled_from([1e-20, 1e-3, 1.0, 100.0]))
def test_bounds_hold_at_any_scale(seed: int, vocab: int, dim: int, scale: float) -> None:
    def rays(layer: Layer, hidden: np.ndarray) -> Blocks | None:
        return rays_of(layer, whiten(layer.weight, hidden.astype(np.float64)))

    check_bounds_at(scale, (vocab, dim), seed, 1.0, rays)


def test_rows_out_of_reach_have_no_rays() -> None:
    layer, hidden = around_tastes(100, 20)
    weight = layer.weight.copy()
    weight[3] *= 1e12
    far = Layer(weight, layer.bias)
    assert rays_of(far, whiten(far.weight, hidden.astype(np.float64))) is None


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", CASES)
def test_ids_are_those_of_float64_on_layers_that_break_careless_bounds(
    name: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADLONG_ISA", level)
    check_ids_of(name)


def rows_of(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Layers that careless bounds get wrong."""
    weight = np.tile(rng.standard_normal((1, 40)), (640, 1))
    match kind:
        case "equal":
            return weight
        case "outliers":
            weight += 0.01 * rng.standard_normal((640, 40))
            weight[::16] *= 50
        case "opposite":
            weight *= rng.standard_normal((640, 1)) * 3
        case "zeros":
            weight[rng.random(640) < 0.7] = 0
    return weight


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["equal", "outliers", "opposite", "zeros"])
def test_one_ray_for_everything(kind: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADLONG_ISA", level)
    rng = np.random.default_rng(2)
    layer = Layer(rows_of(kind, rng).astype(np.float32))
    hidden = rng.standard_normal((20, 40)).astype(np.float32)
    engine = hl.compile(layer, calibration=hidden, **IDS)
    assert isinstance(engine, Engine)
    assert engine.plan.blocks is not None
    assert engine.plan.blocks.rays is not None
    for row in hidden:
        top = engine.topk(row[None], 10)
        check(top, layer, row[None])
        if kind == "equal":
            assert top.ids[0].tolist() == list(range(10))


def test_the_executors_and_every_kernel_say_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = around_tastes(3000, 60)
    blocks, wide = made(layer, hidden), hidden.astype(np.float64)
    found = []
    for level in LEVELS:
        monkeypatch.setenv("HEADLONG_ISA", level)
        search: Any = BlockSearch(layer.weight, layer.bias, blocks, 0.25)
        if level != native.REFERENCE:
            search = native.blocks(layer.weight, layer.bias, blocks, 0.25, level)
        found.append(search.topk(wide, 10, None, 1))
    for ids, logits, *_, done in found[1:]:
        assert done.all()
        np.testing.assert_array_equal(ids, found[0][0])
        np.testing.assert_allclose(logits, found[0][1], rtol=1e-12)
    alone = [search.topk(row[None], 10, None, 1)[0][0] for row in wide]
    np.testing.assert_array_equal(found[-1][0], np.array(alone))
    np.testing.assert_array_equal(found[-1][0], search.topk(wide, 10, None, 3)[0])


@pytest.mark.usefixtures("forced")
def test_masks_samples_and_normalisers_are_as_exact_as_ever() -> None:
    layer, hidden = around_tastes(3000, 48)
    hidden = hidden[:12]
    with_, without = (hl.compile(layer, "codes", eps=math.inf, calibration=hidden, blocks=on) for on in (True, False))
    allowed = np.random.default_rng(0).choice(3000, 500, replace=False)
    np.testing.assert_array_equal(with_.topk(hidden, 20, allowed=allowed).ids, without.topk(hidden, 20, allowed=allowed).ids)
    for filters in ({"top_k": 40}, {"min_p": 0.05}, {}):
        mine, theirs = (engine.sample(hidden, 3, seed=5, **filters) for engine in (with_, without))  # type: ignore[arg-type]
        np.testing.assert_array_equal(mine.ids, theirs.ids)
    np.testing.assert_allclose(with_.lse(hidden, eps=0.01).lse, without.lse(hidden, eps=0.001).lse, atol=0.02)


@pytest.mark.usefixtures("forced")
def test_classes_come_and_go() -> None:
    layer, hidden = around_tastes(3000, 32)
    engine = hl.compile(layer, "codes", eps=math.inf, delta=0.0, calibration=hidden, blocks=True)
    assert isinstance(engine, Engine)
    best = engine.topk(hidden[:1], 3).ids[0]
    fewer = engine.without(best[:1])
    assert best[0] not in fewer.topk(hidden[:1], 10).ids
    more = fewer.with_rows(layer.weight[best[:1]] * 2, layer.bias[best[:1]], ids=best[:1])  # type: ignore[index]
    for changed in (more, more.compact()):
        weight = layer.weight.copy()
        weight[best[0]] *= 2
        check(changed.topk(hidden, 10), Layer(weight, layer.bias), hidden)
    assert more.compact().plan.blocks.rays is not None  # type: ignore[union-attr]


def test_they_are_chosen_where_they_read_less_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = around_tastes(5000, 48)
    chosen = hl.compile(layer, calibration=hidden, **IDS)
    rng = np.random.default_rng(0)
    energy = np.arange(1, 49.0) ** -1.5
    other = Layer((rng.standard_normal((5000, 48)) * energy).astype(np.float32))
    boxed = hl.compile(other, calibration=(rng.standard_normal((60, 48)) * energy).astype(np.float32), **IDS)
    assert chosen.plan.blocks.rays is not None  # type: ignore[union-attr]
    assert boxed.plan.blocks.rays is None  # type: ignore[union-attr]
    monkeypatch.setattr(by_blocks, "tighter", lambda layer, plan, boxes, *more: boxes)
    boxes = hl.compile(layer, calibration=hidden, **IDS)
    assert chosen.topk(hidden[:1]).cost.bytes < boxes.topk(hidden[:1]).cost.bytes


@pytest.mark.usefixtures("forced")
def test_they_are_chosen_where_they_read_less(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = around_tastes(block_choice.RAYS_FROM, 12)
    vectors = hidden.astype(np.float64)
    basis = whiten(layer.weight, vectors)
    boxes, plan = blocks_of(layer, basis), hl.compile(layer, "full").plan
    for by_rays in (2e6, 4e5):
        monkeypatch.setattr(block_choice, "read_by", lambda layer, blocks, *_: 1e6 if blocks.rays is None else by_rays)  # noqa: B023
        found = block_choice.tighter(layer, plan, boxes, basis, vectors, 0.25, 1)
        assert (found is boxes) == (by_rays > 1e6) and (found.rays is not None) == (by_rays < 1e6)


def test_a_saved_engine_answers_the_same(tmp_path: Path) -> None:
    layer, hidden = around_tastes(3000, 50)
    engine = hl.compile(layer, calibration=hidden, **IDS)
    engine.save(tmp_path / "engine.safetensors")
    loaded = hl.load(tmp_path / "engine.safetensors")
    mine, theirs = engine.topk(hidden[:8], 10), loaded.topk(hidden[:8], 10)
    np.testing.assert_array_equal(mine.ids, theirs.ids)
    np.testing.assert_array_equal(mine.cost.bytes, theirs.cost.bytes)


def cut(name: str, tensors: dict[str, np.ndarray]) -> None:
    tensors[name] = tensors[name][:-1]


def nan_at_the_end(name: str, tensors: dict[str, np.ndarray]) -> None:
    tensors[name][:, -4:] = 255


def beyond(name: str, tensors: dict[str, np.ndarray]) -> None:
    tensors[name][0] = 60_000


def a_class_twice(name: str, tensors: dict[str, np.ndarray]) -> None:
    tensors[name][1] = tensors[name][0]


def below_zero(name: str, tensors: dict[str, np.ndarray]) -> None:
    tensors[name][0] = -1


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("rays.directions", cut), ("rays.scale", below_zero), ("rays.owner", beyond), ("rays.owner", cut),
        ("order", a_class_twice), ("levels.0", nan_at_the_end), ("levels.1", nan_at_the_end), ("closer", nan_at_the_end),
    ],
)  # fmt: skip
def test_damaged_files_are_refused(name: str, damage: Callable[[str, dict[str, np.ndarray]], None], tmp_path: Path) -> None:
    layer, hidden = around_tastes(1000, 40)
    path = tmp_path / "engine.safetensors"
    hl.compile(layer, calibration=hidden, **IDS).save(path)
    file = open_file(path)
    tensors = {key: np.array(file.read(key)) for key in file.tensors}
    damage(f"plan.blocks.{name}", tensors)
    broken = tmp_path / "broken.safetensors"
    write_file(broken, tensors, dict(file.metadata))
    with pytest.raises(HeadlongError):
        hl.load(broken)
