"""One suite over every kind of engine: the same verbs, the same parameters, and a clear word where a kind has none."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong.compile import BUILT_IN, STRUCTURED
from headlong.engines.changed import Changed
from headlong.engines.device.build import OPTIONS
from headlong.engines.device.engine import DeviceEngine
from headlong.engines.method import METHODS, option_names
from headlong.engines.shards import here
from headlong.engines.structured.base import ENGINES
from headlong.errors import UnsupportedError
from structured_layers import made

VOCAB, DIM = 300, 16
VERBS = (
    "topk", "log_prob", "lse", "entropy", "ranked", "sample", "at_temperature", "save", "check", "with_rows", "without",
    "compact",
)  # fmt: skip
HEADS = {"tree": "tree", "bands": "bands", "blocks": "differentiated", "experts": "experts", "mixture": "mos"}


def matrix() -> hl.Layer:
    return hl.Layer(np.random.default_rng(3).standard_normal((VOCAB, DIM)).astype(np.float32))


def shards() -> Any:
    whole = matrix()
    return here([hl.compile(hl.Layer(whole.weight[part]), "codes") for part in (slice(0, 130), slice(130, VOCAB))])


def changed() -> Any:
    weight = matrix().weight
    return hl.compile(hl.Layer(weight[:290]), "codes").with_rows(weight[280:], ids=range(280, VOCAB))


MAKERS: dict[str, Callable[[], Any]] = {
    **{method.name: lambda name=method.name: hl.compile(matrix(), name) for method in BUILT_IN},  # type: ignore[misc]
    **{kind: lambda head=head: hl.compile(made(head, DIM, VOCAB).layer) for kind, head in HEADS.items()},  # type: ignore[misc]
    "shards": shards,
    "changed": changed,
    "adapting": lambda: hl.compile(matrix(), "codes", adapt=True),
    **{f"device {name}": lambda name=name: hl.compile(matrix(), name, device="interpreter") for name in OPTIONS},  # type: ignore[misc]
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
    placed = {f"device {name}" for name in OPTIONS}
    assert {kind.kind for kind in STRUCTURED} | {method.name for method in BUILT_IN} | placed <= set(MAKERS)


def test_every_verb_has_the_same_parameters(engine: Any) -> None:
    for verb in VERBS:
        expected = inspect.signature(getattr(hl.Engine, verb)).parameters
        found = inspect.signature(getattr(type(engine), verb)).parameters
        assert [(name, one.kind, one.default) for name, one in found.items()][: len(expected)] == [
            (name, one.kind, one.default) for name, one in expected.items()
        ], verb


def test_every_engine_answers_and_says_what_it_is(engine: Any, hidden: np.ndarray) -> None:
    assert engine.name in repr(engine) and engine.reason and isinstance(engine.promise, hl.Promise)
    record = METHODS[engine.name] if engine.name in METHODS else ENGINES[engine.name].Options
    expected = list(OPTIONS[engine.name]) if isinstance(engine, DeviceEngine) else option_names(record)
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
    for same in (hl.load(tmp_path / "engine.safetensors"), pickle.loads(pickle.dumps(engine)), copy.deepcopy(engine)):  # noqa: S301
        assert same.promise == engine.promise
        assert (same.topk(hidden, 3).ids == engine.topk(hidden, 3).ids).all()
