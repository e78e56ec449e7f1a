"""The one native call of a plain question answers as the steps in Python do, and leaves to them what is not plain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.errors import HeadlongError, OptionError

RNG = np.random.default_rng(11)
ENERGY = (1 + np.arange(48)) ** -0.5
LAYER = hl.Layer(
    (RNG.standard_normal((9000, 48)) * ENERGY).astype(np.float32),
    RNG.standard_normal(9000).astype(np.float32),
    hl.links.Affine(0.8, 0.1),
)
HIDDEN = RNG.standard_normal((2600, 48)) * ENERGY * 3
ASKED: dict[str, dict[str, Any]] = {
    "full": {"method": "full"},
    "default": {"method": "cascade"},
    "ids": {"method": "cascade", "eps": math.inf, "calibration": HIDDEN[:1000], "blocks": False},
    "blocks": {"method": "cascade", "eps": math.inf, "calibration": HIDDEN[:1000], "blocks": True},
    "ids but for 0.01": {
        "method": "cascade",
        "eps": math.inf,
        "calibration": HIDDEN[:2500],
        "delta_ids": 0.01,
        "over": "calibration",
    },
    "everything proved": {"method": "cascade", "eps": 0.05, "delta": 0.0},
}
pytestmark = pytest.mark.skipif(native.module() is None, reason="the native module is not installed")


@pytest.fixture(scope="module")
def engines() -> dict[str, Any]:
    if native.isa() == native.REFERENCE:
        pytest.skip("the reference in NumPy has no native call")
    return {name: hl.compile(LAYER, **options) for name, options in ASKED.items()}


def both(engine: Any, hidden: Any, *args: Any, **more: Any) -> tuple[Any, Any]:
    """The answer of the native call, and that of the steps in Python."""
    assert engine._direct is not None
    ours = engine._direct(np.asarray(hidden), *(args or (10,)), more.get("eps"))
    call, engine._direct = engine._direct, None
    try:
        theirs = engine.topk(hidden, *args, **more)
    finally:
        engine._direct = call
    return ours, theirs


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("batch", [1, 2, 9])
def test_the_native_call_answers_as_the_steps_do(engines: dict[str, Any], name: str, dtype: Any, batch: int) -> None:
    hidden = HIDDEN[2500 : 2500 + batch].astype(dtype)
    for k in (1, 10, 70):
        ours, theirs = both(engines[name], hidden, k)
        assert type(ours) is type(theirs) and type(ours.cost) is type(theirs.cost)
        for field, mine, other in zip(ours._fields[:-1], ours, theirs, strict=False):
            np.testing.assert_array_equal(mine, other, err_msg=field)
            assert mine.dtype == other.dtype and mine.shape == other.shape, field
        for field in ("rows", "bytes", "dense"):
            np.testing.assert_array_equal(getattr(ours.cost, field), getattr(theirs.cost, field), err_msg=field)
        assert ours.cost.path == theirs.cost.path


def test_vectors_of_another_size_are_read_densely(engines: dict[str, Any]) -> None:
    ours, theirs = both(engines["ids but for 0.01"], 1e6 * HIDDEN[2500:2502])
    assert ours.cost.dense.all() and theirs.cost.dense.all() and ours.proved.all()
    near, _ = both(engines["ids but for 0.01"], HIDDEN[2500:2502])
    assert not near.cost.dense.all()


@pytest.mark.parametrize(
    "hidden",
    [
        HIDDEN[:2, ::2], HIDDEN[:2].astype(np.int64), HIDDEN[0], np.full((1, 48), np.nan), np.full((1, 48), 1e39),
        HIDDEN[:4:2], np.asfortranarray(HIDDEN[:3]), HIDDEN[:2].astype(">f8"), HIDDEN[:0],
    ],
)  # fmt: skip
def test_what_is_not_plain_goes_the_long_way(engines: dict[str, Any], hidden: Any) -> None:
    engine = engines["default"]
    if hidden.flags.c_contiguous or hidden.shape[1:] != (48,):
        assert engine._direct(hidden, 10, None) is None
    call, engine._direct = engine._direct, None
    try:
        try:
            expected: Any = engine.topk(hidden)
        except HeadlongError as error:
            expected = error
    finally:
        engine._direct = call
    if isinstance(expected, HeadlongError):
        with pytest.raises(type(expected)) as raised:
            engine.topk(hidden)
        assert str(raised.value) == str(expected)
    else:
        np.testing.assert_array_equal(engine.topk(hidden).ids, expected.ids)


def test_threads_that_are_none_are_refused_in_words(engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("none", "0", "-1", "99999999999", "2x"):
        monkeypatch.setenv("HEADLONG_THREADS", text)
        with pytest.raises(OptionError, match="HEADLONG_THREADS"):
            engines["default"].topk(HIDDEN[:1])


@pytest.mark.parametrize(("kind", "part"), [("default", "look: all classes"), ("blocks", "blocks: boxes and blocks")])
def test_marks_say_where_the_time_of_a_call_goes(engines: dict[str, Any], kind: str, part: str) -> None:
    module = native.loaded()
    module.trace_begin()
    engines[kind].topk(HIDDEN[:1])
    marks = module.trace_end()
    names = [name for name, _ in marks]
    assert names[0] == "Python before" and names[-1] == "hand-back" and part in names
    assert sorted(marks, key=lambda mark: mark[1]) == marks
    engines[kind].topk(HIDDEN[:1])
    assert module.trace_end() == []
