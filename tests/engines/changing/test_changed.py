"""Classes that come and go: every verb says what float64 says of the classes that are there, before and after compact()."""

from __future__ import annotations

import copy
import json
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

import headlong as hl
from headlong.engines.changed import Changed
from headlong.engines.merged import merged_lse
from headlong.errors import DtypeError, HeadlongError, IdError, NonFiniteError, ShapeError, UnsupportedError
from headlong.links.base import Link
from headlong.links.curves import Affine, SoftCap
from headlong.store import open_file, write_file
from oracle import check_topk, check_within, truth
from structured_layers import made

VOCAB, DIM = 700, 24
RNG = np.random.default_rng(8)
ENERGY = np.linspace(2, 0.1, DIM)
WEIGHT = (RNG.standard_normal((VOCAB, DIM)) * ENERGY).astype(np.float32)
BIAS = RNG.standard_normal(VOCAB).astype(np.float32).round(1)
HIDDEN = RNG.standard_normal((4, DIM))
MORE = (RNG.standard_normal((60, DIM)) * 1.5).astype(np.float32)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("full", {}),
    "codes": ("codes", {}),
    "calibrated": ("codes", {"calibration": RNG.standard_normal((200, DIM))}),
    "blocks": ("codes", {"calibration": RNG.standard_normal((200, DIM)), "blocks": True}),
    "codes and blocks": ("codes", {"blocks": True}),
}
FILTERS: list[dict[str, Any]] = [{}, {"top_k": 7}, {"top_p": 0.8, "temperature": 0.7}, {"min_p": 0.1}]


def compiled(kind: str, bias: bool = True, link: Any = None) -> hl.Engine:
    method, options = KINDS[kind]
    engine = hl.compile(hl.Layer(WEIGHT, BIAS if bias else None, link), method, eps=1e-4, delta=0.0, **options)
    assert isinstance(engine, hl.Engine)
    return engine


class Model:
    """What the changes should come to: all rows in float64, and which of them are there."""

    def __init__(self, link: Any = None) -> None:
        self.weight, self.bias, self.alive, self.link = WEIGHT.copy(), BIAS.copy(), np.ones(VOCAB, bool), link

    def put(self, rows: np.ndarray, bias: np.ndarray | None, ids: np.ndarray | None) -> None:
        ids = np.arange(len(self.weight), len(self.weight) + len(rows)) if ids is None else ids
        short = max(0, int(ids.max()) + 1 - len(self.weight))
        self.weight = np.concatenate([self.weight, np.zeros((short, DIM), np.float32)])
        self.bias, self.alive = (np.concatenate([one, np.zeros(short, one.dtype)]) for one in (self.bias, self.alive))
        self.weight[ids], self.bias[ids], self.alive[ids] = rows, 0 if bias is None else bias, True

    def check(self, engine: Any, hidden: np.ndarray = HIDDEN, k: int = 12) -> None:
        layer = hl.Layer(self.weight, self.bias, self.link)
        assert (engine.layer.vocab, engine.layer.dim) == (layer.vocab, DIM)
        true = truth(layer, hidden, self.alive[None])
        for eps in (None, math.inf):
            top = engine.topk(hidden, min(k, layer.vocab), eps=eps)
            assert top.proved.all() and not np.isin(top.ids, np.flatnonzero(~self.alive)).any()
            for row in range(len(hidden)):
                check_topk(true.logits[row], top.ids[row], top.logits[row], float(true.rounding[row]))
        found = engine.lse(hidden)
        check_within(found.lse, true.lse, found.error, 0.0)
        ids = np.random.default_rng(len(self.weight)).integers(0, layer.vocab, (len(hidden), 9))
        given = engine.log_prob(hidden, ids)
        expected = np.take_along_axis(true.log_probs, ids, 1)
        assert (np.isneginf(given.log_probs) == np.isneginf(expected)).all()
        live = np.isfinite(expected)
        gap = np.abs(np.where(live, given.log_probs, 0.0) - np.where(live, expected, 0.0))
        assert (gap <= given.error[:, None] + 1e-9).all()


def changed(engine: Any, model: Model) -> Any:
    """Some of everything: rows behind the last, in place of others, gone, and back again."""
    engine = engine.with_rows(MORE[:20])
    model.put(MORE[:20], None, None)
    ids = np.arange(30, 50)
    engine = engine.with_rows(MORE[20:40], np.arange(20, dtype=np.float32) / 10, ids)
    model.put(MORE[20:40], np.arange(20, dtype=np.float32) / 10, ids)
    gone = np.array([3, 35, 702, 719, 100, 101])
    engine = engine.without(gone)
    model.alive[gone] = False
    engine = engine.with_rows(MORE[40:42], ids=np.array([719, 100]))
    model.put(MORE[40:42], None, np.array([719, 100]))
    return engine


@pytest.mark.parametrize("kind", KINDS)
def test_changes_are_proved_and_so_is_what_they_come_to(kind: str) -> None:
    engine, model = compiled(kind), Model()
    before = engine.topk(HIDDEN, 5)
    found = changed(engine, model)
    model.check(found)
    assert isinstance(found, Changed) and "added rows" in repr(found) and str(found.promise) in repr(found)
    assert (engine.topk(HIDDEN, 5).ids == before.ids).all()  # the engine that was changed is what it was
    one = found.compact()
    model.check(one)
    settled = one.settled if isinstance(one, Changed) else one
    for part in ("codes", "blocks"):
        assert (getattr(settled.plan, part) is None) == (getattr(engine.plan, part) is None)
    back = found.with_rows(MORE[:4], ids=[3, 35, 702, 101]).compact()
    assert isinstance(back, hl.Engine) and back.layer.vocab == len(model.weight)


@pytest.mark.parametrize("kind", ["full", "blocks"])
@pytest.mark.parametrize("link", [None, hl.SoftCap(4.0), hl.Affine(0.5, 1.0)])
def test_samples_are_those_of_one_layer(kind: str, link: Any) -> None:
    model = Model(link)
    found = changed(compiled(kind, link=link), model)
    one = hl.compile(hl.Layer(model.weight, model.bias, link), "full")
    gone = np.flatnonzero(~model.alive)
    for filters in FILTERS:
        for class0 in (0, 11):
            asked = {"n": 3, "seed": 6, "position": 2 + np.arange(len(HIDDEN)), "class0": class0, **filters}
            expected, drawn = one.sample(HIDDEN, exclude=gone, **asked), found.sample(HIDDEN, **asked)
            assert (drawn.ids == expected.ids).all(), (filters, class0)
            np.testing.assert_allclose(drawn.score, expected.score, rtol=1e-9)
            assert drawn.proved.all()
    compact = found.compact()
    assert (compact.sample(HIDDEN, 3, seed=6).ids == found.sample(HIDDEN, 3, seed=6).ids).all()


def test_a_wide_nucleus_ranks_few_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without added rows, the settled engine filters; with some, all logits are read where many would be ranked."""
    model, ranked = Model(), []
    gone = compiled("codes").without([3])
    both = gone.with_rows(MORE)
    model.put(MORE, None, None)
    model.alive[3] = False
    ask = Changed.ask
    monkeypatch.setattr(Changed, "ask", lambda self, rows, question: ranked.append(question.k) or ask(self, rows, question))
    for engine, count in ((gone, VOCAB), (both, VOCAB + len(MORE))):
        one = hl.compile(hl.Layer(model.weight[:count], model.bias[:count]), "full")
        for filters in ({"top_p": 0.999, "temperature": 50.0}, {"min_p": 1e-9}, {"top_k": 600}):
            drawn = engine.sample(HIDDEN, 3, seed=6, eps=math.inf, **filters)
            assert (drawn.ids == one.sample(HIDDEN, 3, seed=6, exclude=[3], **filters).ids).all(), filters
            assert drawn.proved.all()
    assert max(ranked) <= (VOCAB + len(MORE)) // 8


def test_masks_join_what_is_gone() -> None:
    model = Model()
    found = changed(compiled("blocks"), model)
    logits = HIDDEN @ model.weight.T.astype(np.float64) + model.bias
    rows = [np.array([3, 35, 40, 705, 719, 5]), np.array([702, 3]), np.array([1, 2]), np.arange(720)]
    top = found.topk(HIDDEN, 4, allowed=rows)
    drawn = found.sample(HIDDEN[[0, 2, 3]], 2, seed=1, allowed=[rows[0], rows[2], rows[3]])
    for row, allowed in enumerate(rows):
        left = [int(one) for one in allowed if model.alive[one]]
        best = sorted(left, key=lambda one: (-logits[row, one], one))[:4]
        assert top.ids[row].tolist() == best + [-1] * (4 - len(best))
    assert all(set(ids) <= set(allowed) for ids, allowed in zip(drawn.ids.tolist(), (rows[0], rows[2], rows[3]), strict=True))
    few = found.topk(HIDDEN, 3, exclude=np.arange(10, 720))
    assert set(few.ids.ravel()) <= set(range(10)) - {3}
    assert np.isneginf(found.lse(HIDDEN[:1], allowed=[3, 35]).lse).all()
    assert found.at_temperature(2.0).topk(HIDDEN, 3).ids.tolist() == found.topk(HIDDEN, 3).ids.tolist()


def test_files_and_pickles_hold_the_changes(tmp_path: Path) -> None:
    model = Model()
    found, path = changed(compiled("blocks"), model), tmp_path / "engine.safetensors"
    found.save(path)
    for same in (hl.load(path), pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):  # noqa: S301
        model.check(same)
    found.save(tmp_path / "bare.safetensors", layer=False)
    model.check(hl.load(tmp_path / "bare.safetensors", found.settled.layer))
    compiled("full").without([5]).save(path)
    assert 5 not in hl.load(path).topk(HIDDEN, 700).ids  # type: ignore[union-attr]


def test_faults() -> None:
    engine = compiled("full")
    with pytest.raises(ShapeError, match=r"weight has shape \[2, 3\]; expected \[m, 24\]"):
        engine.with_rows(np.zeros((2, 3), np.float32))
    with pytest.raises(DtypeError, match="weight is float16; expected float32"):
        engine.with_rows(np.zeros((2, DIM), np.float16))
    with pytest.raises(NonFiniteError, match="NaN or infinity"):
        engine.with_rows(np.full((1, DIM), np.nan, np.float32))
    with pytest.raises(IdError, match="one id for each row, none twice"):
        engine.with_rows(MORE[:2], ids=[4, 4])
    with pytest.raises(IdError, match="expected the next ids after 699"):
        engine.with_rows(MORE[:2], ids=[4, 701])
    with pytest.raises(IdError):
        engine.without([VOCAB])
    more = engine.with_rows(MORE[:3])
    assert more.topk(HIDDEN, 3).ids.shape == (4, 3)
    assert more.compact(calibration=RNG.standard_normal((600, DIM))).layer.vocab == VOCAB + 3
    assert engine.compact() is engine
    tree = hl.compile(made("tree", 16, 300).layer)
    with pytest.raises(UnsupportedError, match="takes no rows in or out"):
        tree.with_rows(MORE)
    with pytest.raises(UnsupportedError, match="takes no rows in or out"):
        tree.without([1])
    assert tree.compact() is tree


@given(st.data())
def test_any_run_of_changes(data: st.DataObject) -> None:
    engine: Any = compiled(data.draw(st.sampled_from(["full", "codes", "blocks"])))
    model = Model()
    for _ in range(data.draw(st.integers(1, 5))):
        vocab = len(model.weight)
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        step = data.draw(st.sampled_from(["add", "replace", "remove", "compact"]))
        if step == "compact":
            engine = engine.compact()
        elif step == "remove":
            gone = rng.integers(0, vocab, data.draw(st.integers(0, 30)))
            engine, model.alive[gone] = engine.without(gone), False
        else:
            count = data.draw(st.integers(1, 20))
            ids = None if step == "add" else rng.choice(vocab, count, replace=False)
            rows = rng.integers(-2, 3, (count, DIM)).astype(np.float32)  # ties
            engine = engine.with_rows(rows, None, ids)
            model.put(rows, None, ids)
    model.check(engine)


def test_a_draw_among_classes_without_a_finite_logit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a damaged file may come to that was opened unverified: filters that find no class at all."""
    rng = np.random.default_rng(0)
    engine = hl.compile(hl.Layer(rng.standard_normal((300, 8)).astype(np.float32)), "codes")
    changed, hidden = engine.with_rows(rng.standard_normal((3, 8)).astype(np.float32)), rng.standard_normal((2, 8))
    assert changed.sample(hidden, 2, seed=1, top_p=0.9).ids.shape == (2, 2)
    monkeypatch.setattr(Changed, "every_logit", lambda *asked, **limits: (np.empty(0, np.int64), np.empty(0)))
    with pytest.raises(NonFiniteError, match="no class has a finite logit"):
        changed.sample(hidden, 2, seed=1, top_p=0.9, eps=math.inf)


@pytest.mark.parametrize("how", [{"method": "full"}, {"method": "codes", "blocks": True}])
def test_classes_that_came_and_went_leave_room_in_every_column(how: dict[str, Any]) -> None:
    weight = np.random.default_rng(0).standard_normal((10, 8)).astype(np.float32)
    engine = hl.compile(hl.Layer(weight), **how).with_rows(weight[:3]).without([10, 11, 12])
    for eps in (math.inf, None):
        top = engine.topk(weight[:2], 13, eps=eps)
        assert top.ids.shape == top.logits.shape == top.log_probs.shape == (2, 13)
        assert (top.ids[:, 10:] == -1).all() and np.isneginf(top.logits[:, 10:]).all()
        assert (np.isnan if eps else np.isneginf)(top.log_probs[:, 10:]).all()


def test_compacting_keeps_blocks_on_trial_and_wants_some_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADLONG_PLAN", raising=False)
    monkeypatch.setattr("headlong.engines.methods.blocks.timed", lambda asks, *_: np.array([[2.0] * 3, [1.0] * 3]))
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((1000, 32))[rng.integers(0, 1000, 40_000)] + 0.05 * rng.standard_normal((40_000, 32))
    engine = hl.compile(hl.Layer(weight.astype(np.float32)), "codes", eps=math.inf)
    assert engine.plan.blocks is not None and math.isfinite(engine.plan.blocks.trial)
    again = engine.without([0]).compact()
    assert math.isfinite(again.settled.plan.blocks.trial)
    with pytest.raises(hl.errors.ShapeError, match="calibration has no rows"):
        engine.without([0]).compact(np.empty((0, 32)))


numbers = st.floats(-1e4, 1e4)
errors = st.floats(0, 5)
parts = st.lists(st.tuples(numbers, errors, st.floats(-1, 1)), min_size=1, max_size=5)


@given(parts)
def test_the_sum_is_within_its_error(given_parts: list[tuple[float, float, float]]) -> None:
    """Each part is off by ``where`` of its error."""
    lses, off, where = (np.array(column) for column in zip(*given_parts, strict=True))
    lse, error = merged_lse(tuple(lses[:, None]), tuple(off[:, None]))
    with mp.workdps(60):
        exact = mp.log(mp.fsum(mp.exp(mpf(a) + mpf(b) * mpf(c)) for a, b, c in zip(lses, off, where, strict=True)))
        assert abs(exact - mpf(float(lse[0]))) <= mpf(float(error[0])) + mpf(10) ** -50  # the oracle's own digits
    assert error[0] <= off.max() + 8 * len(lses) * 2.0**-53 * (1 + abs(lse[0]) + off.max())


def test_parts_without_classes_or_limits() -> None:
    """A part without a class adds nothing; one without a limit leaves none."""
    empty, wide = merged_lse((np.array([2.0]), np.array([-np.inf])), (np.array([0.01]), np.array([0.0])))
    assert empty[0] == 2.0 and 0.01 <= wide[0] < 0.01 + 1e-13
    _, none = merged_lse((np.array([2.0]), np.array([1.0])), (np.array([0.01]), np.array([np.inf])))
    assert np.isinf(none[0])
    nothing, _ = merged_lse((np.array([-np.inf]), np.array([-np.inf])), (np.array([0.0]), np.array([0.0])))
    assert np.isneginf(nothing[0])


@pytest.mark.parametrize("link", [Affine(), SoftCap(1.0)], ids=["affine", "softcap"])
def test_removed_classes_are_never_drawn_or_listed(link: Link) -> None:
    """Nor do they make a search for ties endless: under a soft-cap the exponent of -inf is finite."""
    rng = np.random.default_rng(0)
    weight, x = rng.standard_normal((20, 8)).astype(np.float32), rng.standard_normal((50, 8))
    engine = hl.compile(hl.Layer(weight, link=link)).without(list(range(10)))
    for more in ({"top_k": 15}, {"top_k": 15, "ties": "all"}, {"min_p": 1e-6}, {"top_p": 0.999}, {}):
        drawn = engine.sample(x, n=4, seed=1, eps=0.1, support=True, **more)
        assert drawn.ids.min() >= 10 and np.isfinite(drawn.log_probs).all(), more
        assert drawn.support is not None and drawn.support.ids.min() >= 10, more
    with pytest.raises(HeadlongError):
        engine.sample(x, n=1, seed=1, top_k=3, allowed=[5])


def test_rows_join_blocks_whose_basis_is_damaged_by_another_way(tmp_path: Path) -> None:
    """What has no inverse bounds no added row; the answers are those of all rows then."""
    engine, path = hl.compile(hl.Layer(WEIGHT, BIAS), "codes", eps=math.inf, delta=0.0, blocks=True), tmp_path / "head"
    engine.save(path)
    file = open_file(path)
    tensors = {name: np.array(file.read(name)) for name in file.tensors}
    for number in (0.0, 1.0, 6e4):
        tensors["plan.blocks.leading"][:] = number
        write_file(path, tensors, file.metadata)
        more = hl.load(path).with_rows(MORE)
        assert more._takes_callers is None
        more.topk(HIDDEN, 5, eps=math.inf)


def test_rows_join_blocks_of_other_coordinates_by_another_way(tmp_path: Path) -> None:
    """A file's tree may have other segments than one that is made here: two such trees are no one search."""
    rng, path = np.random.default_rng(0), tmp_path / "head"
    weight, more = (rng.standard_normal((count, 40)).astype(np.float32) for count in (700, 60))
    engine: Any = hl.compile(hl.Layer(weight), "codes", eps=math.inf, delta=0.0, blocks=True)
    assert engine.with_rows(more)._takes_callers is not None
    engine.save(path)
    file = open_file(path)
    record = json.loads(file.metadata["engine"])
    assert record["blocks"]["edges"] == [16, 32, 40]
    record["blocks"]["edges"] = [16, 33, 40]
    write_file(path, {name: file.read(name) for name in file.tensors}, {**file.metadata, "engine": json.dumps(record)})
    changed = hl.load(path).with_rows(more)
    assert changed._takes_callers is None
    changed.topk(rng.standard_normal((4, 40)), 5, eps=math.inf)
