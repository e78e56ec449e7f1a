"""One suite over every kind of engine: the same verbs, parameters and refusals, and the ends of what may be asked."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import headlong as hl
from headlong.answers import named_fields
from headlong.compile import BUILT_IN, STRUCTURED
from headlong.engines.adapting import Adapting
from headlong.engines.changed import Changed
from headlong.engines.device.build import METHODS as ON_A_DEVICE
from headlong.engines.device.engine import DeviceEngine
from headlong.engines.method import METHODS, option_names
from headlong.engines.structured.base import ENGINES
from headlong.errors import (
    DtypeError,
    HeadlongError,
    IdError,
    InputError,
    NonFiniteError,
    OptionError,
    ShapeError,
    StoreError,
    UnsupportedError,
    WrongLayerError,
)
from kinds import KINDS, STILL, calibrated, codes
from oracle import truth
from structured_layers import made

VOCAB, DIM = 300, 16
VERBS = (
    "topk", "log_prob", "lse", "entropy", "ranked", "sample", "at_temperature", "save", "check", "certify", "with_rows",
    "without", "compact",
)  # fmt: skip
HEADS = {"tree": "tree", "bands": "bands", "blocks": "differentiated", "experts": "experts", "mixture": "mos"}


def matrix() -> hl.Layer:
    return hl.Layer(np.random.default_rng(3).standard_normal((VOCAB, DIM)).astype(np.float32))


MAKERS: dict[str, Callable[[], Any]] = {
    **{method.name: lambda name=method.name: hl.compile(matrix(), name) for method in BUILT_IN},  # type: ignore[misc]
    **{kind: lambda head=head: hl.compile(made(head, DIM, VOCAB).layer) for kind, head in HEADS.items()},  # type: ignore[misc]
    **{kind: lambda kind=kind: KINDS[kind](matrix()) for kind in ("shards", "changed", "adapting")},  # type: ignore[misc]
    **{f"device {name}": lambda name=name: hl.compile(matrix(), name, device="interpreter") for name in ON_A_DEVICE},  # type: ignore[misc]
}
ON_ONE_MATRIX = {method.name for method in BUILT_IN}


QUIET = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's inf - inf is NumPy's, which warns


@pytest.fixture(params=[pytest.param(name, marks=QUIET if name.startswith("device") else ()) for name in MAKERS])
def engine(request: pytest.FixtureRequest) -> Any:
    if request.param.startswith("device"):
        request.getfixturevalue("interpreter")
    return MAKERS[request.param]()


@pytest.fixture
def hidden() -> np.ndarray:
    return np.random.default_rng(4).standard_normal((2, DIM)).astype(np.float32)


def test_the_suite_covers_every_kind() -> None:
    placed = {f"device {name}" for name in ON_A_DEVICE}
    assert {kind.kind for kind in STRUCTURED} | {method.name for method in BUILT_IN} | placed <= set(MAKERS)


def test_every_verb_has_the_same_parameters(engine: Any) -> None:
    for verb in VERBS:
        expected = inspect.signature(getattr(hl.Engine, verb)).parameters
        found = inspect.signature(getattr(type(engine), verb)).parameters
        assert [(name, one.kind, one.default) for name, one in found.items()][: len(expected)] == [
            (name, one.kind, one.default) for name, one in expected.items()
        ], verb


def test_log_probabilities_that_are_not_asked_for_are_no_numbers(engine: Any, hidden: np.ndarray) -> None:
    """At eps=inf ids and exact logits stand, and all about the normaliser is NaN or refused, whatever was read on the way."""
    told, few = engine.topk(hidden, 5), [3, 7, 11, 13, 250]
    for limits in ({}, {"allowed": few}, {"exclude": list(range(20))}):
        top = engine.topk(hidden, 5, eps=np.inf, **limits)
        given = engine.log_prob(hidden, np.maximum(top.ids, 0), eps=np.inf, **limits)
        if engine.promise.delta >= 1:  # a published method's estimates, which nothing bounds
            continue
        assert np.isfinite(top.logits).any()
        for answer in (top, given):
            for name in ("log_probs", "lse"):
                part = getattr(answer, name)
                assert np.isnan(part).all() and part.dtype == np.float32 and len(part) == 2, name
            assert np.isposinf(answer.error).all()
        if np.isinf(getattr(engine, "exact_at", np.inf)):  # a mixture's are as good as its normalisers
            np.testing.assert_allclose(given.logits, top.logits, atol=1e-9)
        found = list(zip(engine.ranked(hidden, eps=np.inf, **limits), range(5), strict=False))
        assert all(np.isnan(log_probs).all() for (_, log_probs), _ in found)
        for verb in ("lse", "entropy"):
            with pytest.raises(OptionError, match=f"eps is inf, and {verb} is about log-probabilities; expected how far"):
                getattr(engine, verb)(hidden, eps=np.inf, **limits)
    if engine.promise.delta < 1:
        assert (engine.topk(hidden, 5, eps=np.inf).ids == told.ids).all()


@pytest.mark.parametrize("method", ["auto", "full", "codes"])
def test_an_engine_without_log_probabilities_says_none_and_how_to_ask_for_them(method: str, hidden: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    engine = hl.compile(matrix(), method, log_probs=False)
    ids = engine.topk(hidden, 5).ids
    for rows, kind in ((hidden, np.isnan), (hidden.astype(np.float64), np.isnan), (torch.from_numpy(hidden), torch.isnan)):
        for change in (engine, engine.without([299])):
            top = change.topk(rows, 5)
            assert kind(top.log_probs).all() and kind(top.lse).all() and kind(next(change.ranked(rows))[1]).all()
            assert change.topk(rows, 5, eps=0.01).error.max() <= 0.01
        for verb, more in (("lse", ()), ("entropy", ()), ("log_prob", (ids,))):
            with pytest.raises(OptionError, match=f"{verb} is about log-probabilities, and this engine was compiled without"):
                getattr(engine, verb)(rows, *more)
            assert getattr(engine, verb)(rows, *more, eps=0.01).error.max() <= 0.01
    assert engine.sample(hidden, seed=1).log_probs is None
    assert np.isnan(engine.check(hidden, 3).worst) and engine.check(hidden, 3).log_probs is None


def test_every_engine_answers_and_says_what_it_is(engine: Any, hidden: np.ndarray) -> None:
    assert engine.name in repr(engine) and engine.reason and isinstance(engine.promise, hl.Promise)
    assert "\n" not in repr(engine) and f"vocab={VOCAB}" in repr(engine) and f"dim={DIM}" in repr(engine)
    record = METHODS[engine.name] if engine.name in METHODS else ENGINES[engine.name].Options
    expected = [] if isinstance(engine, DeviceEngine) else option_names(record)
    assert list(engine.options) == expected and "aim" not in engine.options
    assert str(engine.promise) in repr(engine)
    assert (engine.layer.vocab, engine.layer.dim) == (VOCAB, DIM)
    top = engine.topk(hidden, 3)
    assert top.ids.shape == (2, 3) and top.cost.path
    given = engine.log_prob(hidden, top.ids)
    slack = np.asarray(given.error + top.error)[:, None] + 1e-9
    if engine.promise.delta == 0:
        assert (np.abs(given.log_probs - top.log_probs) <= slack).all()
    assert np.isfinite(np.asarray(engine.lse(hidden).lse)).all()
    drawn = engine.sample(hidden, 2, seed=5)
    assert drawn.ids.shape == (2, 2) and (drawn.ids == engine.sample(hidden, 2, seed=5).ids).all()
    assert (engine.sample(hidden, 20, seed=5).ids != engine.sample(hidden, 20, seed=6).ids).any()
    assert engine.topk(hidden[:0], 3).ids.shape == (0, 3) and engine.lse(hidden[:0]).lse.shape == (0,)
    assert engine.sample(hidden[:0], 2).ids.shape == (0, 2)
    assert engine.log_prob(hidden[:0], np.zeros((0, 4), np.int64)).log_probs.shape == (0, 4)
    counted = engine.check(hidden, 3)
    assert counted.holds and counted.promise == engine.promise
    assert (counted.ids is None) == (engine.promise.delta == 1)


def test_every_engine_answers_what_training_and_serving_ask(engine: Any, hidden: np.ndarray) -> None:
    _, log_p = engine.every_class(hidden.astype(np.float64))
    p, fits = np.exp(log_p), engine.promise.delta < 1  # an adaptive search promises nothing
    found = engine.entropy(hidden)
    assert (np.abs(found.entropy + (p * log_p).sum(axis=1)) <= found.error).all() and (found.error <= 0.01 + 1e-6).all()
    ids, log_probs = (np.stack(part, axis=1) for part in zip(*engine.ranked(hidden, until=lambda ids: ids == 7), strict=True))
    if fits:
        order = np.argsort(-log_p, axis=1, kind="stable")
        assert (ids == order[:, : ids.shape[1]]).all() and (ids == 7).any(axis=1).all()
        assert (np.abs(log_probs - np.take_along_axis(log_p, ids, 1)) <= 0.02).all()
    rules: dict[str, Any] = {"temperature": [0.8, 1.4], "top_k": [40, 12], "top_p": [0.9, 1.0], "min_p": [0.0, 0.01]}
    drawn = engine.sample(hidden, 3, seed=[5, 6], position=[70, 2**40], eps=0.01, support=True, **rules)
    for row in range(2):
        own = {name: part[row] for name, part in rules.items()}
        alone = engine.sample(hidden[row : row + 1], 3, seed=5 + row, position=[70, 2**40][row], eps=0.01, support=True, **own)
        for name in ("ids", "logits", "score", "log_probs", "kept", "error"):
            np.testing.assert_array_equal(getattr(drawn, name)[row], getattr(alone, name)[0], err_msg=name)
        part = drawn.support.ids[slice(*drawn.support.offsets[row : row + 2])]
        np.testing.assert_array_equal(part, alone.support.ids)
        warm = log_p[row] / own["temperature"]
        warm -= np.logaddexp.reduce(warm)
        if fits:
            assert np.isin(drawn.ids[row], part).all() and len(part) <= own["top_k"]
            assert np.abs(drawn.kept[row] - np.logaddexp.reduce(warm[part])) <= drawn.error[row] + 1e-9
            assert (np.abs(drawn.log_probs[row] - warm[drawn.ids[row]]) <= drawn.error[row] + 1e-9).all()


def test_tensors_get_tensors(engine: Any, hidden: np.ndarray) -> None:
    torch = pytest.importorskip("torch", reason="torch is an extra")
    expected, given = engine.topk(hidden, 3), torch.from_numpy(hidden)
    found = engine.topk(given, 3)
    assert found.ids.dtype == torch.int64 and found.log_probs.dtype == torch.float32 and found.proved.dtype == torch.bool
    assert isinstance(found.cost.rows, torch.Tensor)
    assert (found.ids.numpy() == expected.ids).all()
    np.testing.assert_array_equal(found.log_probs.numpy(), expected.log_probs)
    assert engine.topk(given.to(torch.bfloat16), 3).ids.shape == (2, 3)
    scored = engine.log_prob(given, found.ids)
    assert torch.allclose(scored.log_probs, found.log_probs, atol=0.05) or engine.promise.delta == 1
    assert engine.sample(given, seed=1).ids.tolist() == engine.sample(hidden, seed=1).ids.tolist()
    assert engine.lse(given, allowed=torch.tensor([1, 2])).lse.shape == (2,)


def test_what_a_kind_has_not_is_said(engine: Any, hidden: np.ndarray, tmp_path: Path) -> None:
    own_plan = engine.name in ON_ONE_MATRIX and hasattr(engine, "plan") and not hasattr(engine, "place")
    if own_plan or isinstance(engine, Changed):
        assert engine.sample(hidden, seed=1, class0=7).ids.shape == (2, 1)
        assert engine.at_temperature(2.0).layer.vocab == VOCAB
    else:
        with pytest.raises(UnsupportedError, match="has no at_temperature; pass temperature= to sample"):
            engine.at_temperature(2.0)
        if not engine.may_be_shard:
            with pytest.raises(UnsupportedError, match="class0 is 7; .* only an engine over one matrix"):
                engine.sample(hidden, seed=1, class0=7)
    if hasattr(engine, "place") or engine.reason.startswith("2 shards"):
        with pytest.raises(UnsupportedError, match="cannot be saved; save the engine from which it was made"):
            engine.save(tmp_path / "engine.safetensors")
        return
    engine.save(tmp_path / "engine.safetensors")
    engine.save(tmp_path / "bare.safetensors", layer=False)
    layer = engine.settled.layer if isinstance(engine, Changed) else engine.layer
    bare, stored = hl.load(tmp_path / "bare.safetensors", layer=layer), pickle.loads(pickle.dumps(engine))  # noqa: S301
    for same in (hl.load(tmp_path / "engine.safetensors"), bare, stored, copy.deepcopy(engine)):
        assert same.promise == engine.promise
        assert (repr(same), same.reason) == (repr(engine), engine.reason) or isinstance(engine, Adapting)
        mine, other = (one.topk(hidden, 9) for one in (engine, same))
        assert (mine.ids == other.ids).all() and (mine.logits == other.logits).all()
        assert (engine.sample(hidden, 2, seed=1).ids == same.sample(hidden, 2, seed=1).ids).all()
    with pytest.raises(StoreError, match="saved without its layer"):
        hl.load(tmp_path / "bare.safetensors")
    another = made(HEADS[engine.name], DIM, VOCAB + 1).layer if engine.name in HEADS else hl.Layer(matrix().weight + 1)
    for wrong in (another, hl.Layer(np.ones((2, 2), np.float32))):
        with pytest.raises(WrongLayerError):
            hl.load(tmp_path / "bare.safetensors", layer=wrong)


def with_entry(hidden: np.ndarray, place: tuple[int, int], value: float) -> np.ndarray:
    other = hidden.astype(np.float64)
    other[place] = value
    return other


OUT_OF_RANGE: dict[str, tuple[Any, ...]] = {
    "n": (0, -1, 2**70, 1.0, None, True), "temperature": (0, 1e-7, 1e7, np.nan, None, "1", 10**400),
    "top_k": (0, -1, 2**63, 2**70, 2.0), "top_p": (0, 0.0, 1.1, -1, np.nan, "a"), "min_p": (-0.1, 1.1, 1.5, np.nan, "a"),
    "seed": (-1, 2**64, 1.5, "a"), "position": (2**64,), "class0": (-1, 2**70, 1.0, True),
}  # fmt: skip
BAD: list[tuple[Callable[[Any, Any], Any], type[HeadlongError], str]] = [
    *((lambda e, h, k=k: e.topk(h, k), ShapeError, f"k is {k!r}") for k in (301, 0, -1, True, 2**63, 2**80, 1.5, None, "3")),
    (lambda e, h: e.topk(h, 301), ShapeError, "expected a whole number from 1 to the layer's 300"),
    *((lambda e, h, at=at: e.topk(h[at]), ShapeError, r"expected \[batch, 16\]") for at in (0, np.s_[:, :3], None)),
    (lambda e, h: e.topk(h.astype(np.float64) * 1e200), NonFiniteError, "float32's range"),
    *((lambda e, h, kind=kind: e.topk(h.astype(kind)), DtypeError, "hidden is") for kind in (np.int64, complex, str)),
    (lambda e, h: e.topk([[1, 2], [3]]), DtypeError, "hidden is"),
    *(
        (lambda e, h, verb=verb, eps=eps: getattr(e, verb)(h, eps=eps), OptionError, "eps is ")
        for verb in ("topk", "lse", "sample") for eps in (0, 0.0, -1.0, np.nan, "1", 1e-301, [0.1], 10**400, True)
    ),
    (lambda e, h: e.topk(h, allowed=[300]), IdError, "0 to 299"),
    (lambda e, h: e.log_prob(h, np.zeros((2, 1))), DtypeError, "integer class ids"),
    *((lambda e, h, wrong=wrong: e.log_prob(h, [[wrong]] * 2), IdError, "0 to 299") for wrong in (-1, 300, 2**63)),
    *((lambda e, h, wrong=wrong: e.log_prob(h, wrong), InputError, "ids") for wrong in ([[0.5]] * 2, [0], None)),
    (lambda e, h: e.log_prob(h, np.zeros(2, int)), ShapeError, r"ids\[:, None\]"),
    (lambda e, h: e.log_prob(h, np.zeros((5, 1), int)), ShapeError, r"shape \[5, 1\]"),
    (lambda e, h: e.sample(h, 2**31), OptionError, "ask again for more"),
    (lambda e, h: e.sample(h, temperature=0.0), OptionError, r"temperature is 0.0.*topk\(k=1\)"),
    (lambda e, h: e.sample(h, top_p=0.0), OptionError, "top_p is 0.0; expected a number above 0, up to 1"),
    *(
        (lambda e, h, name=name, wrong=wrong: e.sample(h, **{"seed": 1, name: wrong}), HeadlongError, f"{name} is")
        for name, wrongs in OUT_OF_RANGE.items() for wrong in wrongs
    ),
    (lambda e, h: e.sample(None), DtypeError, "hidden is"),
    (lambda e, h: e.sample(np.float32(1.0)), ShapeError, r"hidden has shape \[\]"),
    (lambda e, h: e.sample(h, top_p=[[0.5], [0.5, 0.6]]), ShapeError, "top_p has shape"),
    (lambda e, h: e.sample(h, seed={}), OptionError, "seed is"),
    *(
        (lambda e, h, verb=verb, wrong=wrong, at=at: getattr(e, verb)(with_entry(h, at, wrong)), NonFiniteError, "finite")
        for verb in ("topk", "lse", "sample") for wrong in (np.nan, np.inf, -np.inf) for at in ((0, 0), (1, DIM - 1))
    ),
]  # fmt: skip


def test_bad_calls_are_refused_in_the_same_words(engine: Any, hidden: np.ndarray) -> None:
    for call, error, message in BAD:
        if error is NonFiniteError and isinstance(engine, DeviceEngine):
            continue  # nobody waits for a GPU to look: such rows are answered with id -1 (device/test_answers.py)
        with pytest.raises(error, match=message):
            call(engine, hidden)


CLASSES, WIDE = 700, 24
RNG = np.random.default_rng(3)
WEIGHT = RNG.standard_normal((CLASSES, WIDE)).astype(np.float32)
HIDDEN = RNG.standard_normal((6, WIDE)).astype(np.float32)
BIAS = RNG.standard_normal(CLASSES).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("vocab", "dim"), [(1, 1), (1, WIDE), (2, 1), (CLASSES, 1), (17, 3)])
def test_layers_of_next_to_nothing(kind: str, vocab: int, dim: int) -> None:
    weight = WEIGHT[:vocab, :dim].copy()
    engine = KINDS[kind](hl.Layer(weight))
    exact = HIDDEN[:, :dim].astype(float) @ weight.T.astype(float)
    for k in {1, vocab}:
        top = engine.topk(HIDDEN[:, :dim], k)
        assert np.allclose(np.sort(exact, axis=1)[:, ::-1][:, :k], top.logits) and top.proved.all()
    lse = np.log(np.exp(exact).sum(axis=1))
    found = engine.lse(HIDDEN[:, :dim], eps=0.01)
    assert (np.abs(found.lse - lse) < 0.05).all()
    assert np.allclose(engine.log_prob(HIDDEN[:, :dim], np.zeros((6, 1), np.int64), eps=np.inf).logits[:, 0], exact[:, 0])
    assert (engine.sample(HIDDEN[:, :dim], 2, seed=1, top_p=0.9).ids < vocab).all()


ASKED: dict[str, Callable[..., Any]] = {
    "topk": lambda e, h, **limits: e.topk(h, 9, eps=0.5, **limits),
    "ids": lambda e, h, **limits: e.topk(h, 70, eps=np.inf, **limits),
    "log_prob": lambda e, h, **limits: e.log_prob(h, [[3, 7, 699]] * len(h), eps=0.1, **limits),
    "lse": lambda e, h, **limits: e.lse(h, eps=0.1, **limits),
    "entropy": lambda e, h, **limits: e.entropy(h, eps=0.1, **limits),
    "sample": lambda e, h, **more: e.sample(h, seed=2**64 - 1, **more),
}
FILTERS: list[dict[str, Any]] = [
    {}, {"n": 3, "temperature": 0.7}, {"temperature": 2}, {"top_k": 20, "n": 2}, {"top_k": 2**40}, {"top_p": 0.8, "n": 2},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3}, {"top_p": 0.95, "temperature": 0.2}, {"min_p": 0.3},
    {"top_p": 0.7, "min_p": 0.1}, {"min_p": 1e-4, "temperature": 1.5}, {"top_k": None, "top_p": 1.0, "min_p": 0.0},
]  # fmt: skip
MASKS: list[dict[str, Any]] = [
    {"allowed": [3, 5, 90, 444]}, {"allowed": [[3, 5], np.arange(0, 700, 2), [7], [8, 8, 9, -1], [1], [2]]},
    {"exclude": np.arange(0, 700, 3)}, {"allowed": np.arange(700) % 7 == 0, "exclude": [7, 14]},
]  # fmt: skip


@pytest.mark.one_of("link", "dtype")
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("link", [None, hl.SoftCap(5.0), hl.Gss()], ids=["plain", "soft-cap", "sigsoftmax"])
@pytest.mark.parametrize("kind", STILL)
def test_arrays_of_any_layout_get_one_answer_to_the_bit(kind: str, link: Any, dtype: Any) -> None:
    """Native code answers those that lie row by row at once; others are copied first, and asked by the steps in Python."""
    engine, hidden = KINDS[kind](hl.Layer(WEIGHT, BIAS, link)), HIDDEN.astype(dtype)
    wide = np.zeros((12, 2 * WIDE), dtype)
    wide[::2, ::2] = hidden
    read_only = hidden.copy()
    read_only.flags.writeable = False
    same = [np.asfortranarray(hidden), wide[::2, ::2], np.ascontiguousarray(hidden[::-1])[::-1], read_only]
    asked = [(verb, limits) for verb in ASKED for limits in ({}, *MASKS)] + [("sample", filters) for filters in FILTERS]
    for verb, more in asked:
        expected = ASKED[verb](engine, hidden, **more)
        for other in same:
            check_same(ASKED[verb](engine, other, **more), expected, f"{verb} {more}")
    for other in (hidden.astype(hidden.dtype.newbyteorder()), hidden.astype(np.float64), hidden.tolist()):
        assert (engine.topk(other, 4).ids == engine.topk(hidden, 4).ids).all()


def check_same(found: Any, expected: Any, what: str) -> None:
    """To the bit, in types and shapes."""
    for name, other in named_fields(expected).items():
        mine = getattr(found, name)
        if name == "cost":
            check_same(mine, other, what)
        elif other is not None:
            np.testing.assert_array_equal(mine, other, err_msg=f"{what}: {name}")
            assert isinstance(other, str) or mine.dtype == other.dtype, name


@pytest.mark.parametrize("masked", [{}, {"exclude": [5]}])
def test_a_top_k_that_keeps_all_costs_nothing(masked: dict[str, Any]) -> None:
    engine, asked = codes(hl.Layer(WEIGHT)), {"n": 2, "seed": 3, **masked}
    plain = engine.sample(HIDDEN, **asked)
    for top_k in (CLASSES, 2 * CLASSES):
        check_same(engine.sample(HIDDEN, top_k=top_k, **asked), plain, str(top_k))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_zeros_before_vectors_longer_than_float32(kind: str) -> None:
    """The vector's half of a radius is infinite, a zero row's is nothing: their product is no number, once below all."""
    weight = np.where(np.arange(CLASSES)[:, None] % 140, 0, -1e-38 * np.abs(WEIGHT)).astype(np.float32)
    engine = KINDS[kind](hl.Layer(weight))
    for eps in (1.0, np.inf):
        top = engine.topk(np.full((3, WIDE), 3e38), 5, eps=eps)
        assert (top.ids == np.arange(1, 6)).all() and (top.logits == 0).all() and top.proved.all()


@pytest.mark.parametrize("eps", [1.0, 1e4, 1e30])
@pytest.mark.parametrize("shift", [0.0, 1e10])
def test_an_eps_beyond_all_numbers_has_room_for_roundings(eps: float, shift: float) -> None:
    """What roundings took was once found by taking the rest from eps: nothing, where that was so large."""
    layer = hl.Layer(WEIGHT, link=hl.Affine(1.5, shift))
    expected, wide = truth(layer, HIDDEN), HIDDEN.astype(np.float64)  # float32 has no room beside 1e10
    for engine in (codes(layer, delta=0.0), calibrated(layer, delta=0.0)):
        for found in (engine.lse(wide, eps=eps), engine.topk(wide, 3, eps=eps)):
            assert (np.abs(found.lse - expected.lse) <= found.error + expected.rounding + 2.0**-50 * shift).all()
            assert (found.error <= eps).all()
