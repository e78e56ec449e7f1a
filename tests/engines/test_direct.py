"""A reader that takes the caller's arrays answers as it does after Python's checks, and leaves to these what is not plain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.answers import LogProb, named_fields
from headlong.dtypes import BFLOAT16
from headlong.errors import HeadlongError

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
    "default": {"method": "codes"},
    "ids": {"method": "codes", "eps": math.inf, "calibration": HIDDEN[:1000], "blocks": False},
    "blocks": {"method": "codes", "eps": math.inf, "calibration": HIDDEN[:1000], "blocks": True},
    "everything proved": {"method": "codes", "eps": 0.05, "delta": 0.0},
}
CAPPED = hl.Layer(LAYER.weight, LAYER.bias, hl.SoftCap(5.0))
SIGMOIDAL = hl.Layer(LAYER.weight, LAYER.bias, hl.Gss())
NAMES = [*ASKED, "soft-cap", "sigsoftmax"]
FILTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "three draws": {"n": 3, "temperature": 0.7, "class0": 4},
    "a whole number for the temperature": {"temperature": 2},
    "top_k": {"top_k": 20, "n": 2},
    "top_k and the others": {"top_k": 40, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3},
    "top_k of all": {"top_k": 2**40},
    "top_p": {"top_p": 0.8, "n": 2},
    "top_p, cold": {"top_p": 0.95, "temperature": 0.2},
    "top_p and min_p": {"top_p": 0.7, "min_p": 0.1},
    "min_p": {"min_p": 0.3, "n": 2},
    "a small min_p": {"min_p": 1e-4, "temperature": 1.5},
    "nothing filtered": {"top_k": None, "top_p": 1.0, "min_p": 0.0},
}
KINDS: dict[str, Any] = {
    "float16": np.float16, "bfloat16": BFLOAT16, "float32": np.float32, "float64": np.float64,
}  # fmt: skip
pytestmark = pytest.mark.skipif(native.module() is None, reason="the native module is not installed")


@pytest.fixture(scope="module")
def engines() -> dict[str, Any]:
    if native.isa() == native.REFERENCE:
        pytest.skip("the reference in NumPy has no native call")
    found: dict[str, Any] = {name: hl.compile(LAYER, threads=1, **options) for name, options in ASKED.items()}
    found |= {name: hl.compile(layer, threads=1) for name, layer in (("soft-cap", CAPPED), ("sigsoftmax", SIGMOIDAL))}
    return found


def vectors(name: str, batch: int, kind: str = "float32") -> Any:
    return HIDDEN[2500 : 2500 + batch].astype(KINDS[kind])


def both(engine: Any, verb: str, *args: Any, plain: bool | None = True, **more: Any) -> tuple[Any, Any]:
    """What the engine answers or raises with its native call, and by the steps in Python; ``plain``: the call answered."""
    call, answered = engine._takes_callers, []

    class Listening:
        every = True

        def show(self, *asked: Any) -> Any:
            answered.append(call.show(*asked))
            return answered[-1]

    def outcome() -> Any:
        try:
            return getattr(engine, verb)(*args, **more)
        except HeadlongError as error:
            return error

    try:
        engine._takes_callers = Listening()
        ours = outcome()
        engine._takes_callers = None
        theirs = outcome()
    finally:
        engine._takes_callers = call
    assert plain is None or sum(one is ours for one in answered) == plain
    return ours, theirs


def same(ours: Any, theirs: Any) -> None:
    """To the bit, in types and shapes, at any depth."""
    assert type(ours) is type(theirs)
    if isinstance(ours, HeadlongError):
        assert str(ours) == str(theirs)
        return
    names = ours._fields if isinstance(ours, tuple) else named_fields(ours)
    for field, mine, other in ((name, getattr(ours, name), getattr(theirs, name)) for name in names):
        if isinstance(mine, tuple):
            same(mine, other)
            continue
        assert type(mine) is type(other), field
        if mine is None:  # of a draw, what was not asked for
            continue
        np.testing.assert_array_equal(mine, other, err_msg=field)
        if not isinstance(mine, str):
            assert mine.dtype == other.dtype and mine.shape == other.shape, field


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 2, 9])
def test_the_native_call_answers_as_the_steps_do(engines: dict[str, Any], name: str, kind: str, batch: int) -> None:
    hidden, engine = vectors(name, batch, kind), engines[name]
    for k in (1, 10, 70):
        same(*both(engine, "topk", hidden, k))
    same(*both(engine, "topk", hidden, 3, eps=0.5))
    ids = RNG.integers(0, LAYER.vocab, (batch, 7))
    for more in ({}, {"eps": 0.3}, {"eps": 1}, {"eps": math.inf}):
        none = math.isinf(more.get("eps", engine.promise.eps))
        same(*both(engine, "lse", hidden, **more, plain=not none))  # refused before either is asked
        same(*both(engine, "log_prob", hidden, ids, **more, plain=bool(more) or not none))
    same(*both(engine, "topk", hidden, 3, eps=math.inf))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("filters", FILTERS)
def test_draws_are_those_of_the_steps(engines: dict[str, Any], name: str, filters: str) -> None:
    for batch, kind, seed in ((1, "float32", 3), (1, "bfloat16", 2**64 - 1), (5, "float64", 0)):
        same(*both(engines[name], "sample", vectors(name, batch, kind), **FILTERS[filters], seed=seed, eps=math.inf))


FEW = [3, 5, 90, 4444]
MASKS: dict[str, dict[str, Any]] = {
    "few": {"allowed": FEW},
    "none but padding in a row": {"allowed": [FEW, [-1, -1, -1, -1], [8, 8, 9, -1]]},
    "few of a row, many of another": {"allowed": [FEW, np.arange(0, 9000, 2), FEW[:1]]},
    "all but some": {"exclude": np.arange(0, 9000, 3)},
    "booleans": {"allowed": np.arange(9000) % 7 == 0, "exclude": FEW},
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mask", MASKS)
def test_masks_are_read_natively_as_by_the_steps(engines: dict[str, Any], name: str, mask: str) -> None:
    """Ids, logits and draws to the bit; of few classes the normaliser is within both errors, and both are of rounding alone."""
    engine, hidden, limits = engines[name], vectors(name, 3, "float64"), MASKS[mask]
    asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("topk", (hidden, 6), {"eps": eps}) for eps in (0.5, 1e-9, math.inf)
    ]
    asked += [("lse", (hidden,), {"eps": 0.1}), ("log_prob", (hidden, np.array([[5, 90, 6]] * 3)), {"eps": 0.1})]
    if mask != "none but padding in a row":
        filters: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.6, "n": 3}, {"top_k": 2}, {"top_p": 0.6, "min_p": 0.01})
        asked += [("sample", (hidden,), {"seed": 4, "eps": eps, **one}) for one in filters for eps in (0.1, math.inf)]
    for verb, args, more in asked:
        ours, theirs = both(engine, verb, *args, **more, **limits)
        mine, other = named_fields(ours), named_fields(theirs)
        for field in ("ids", "logits", "proved"):
            np.testing.assert_array_equal(mine.get(field), other.get(field), err_msg=f"{verb} {field}")
        if verb == "sample":  # of a curve's last bit
            np.testing.assert_allclose(mine["score"], other["score"], rtol=1e-14, atol=1e-14)
        if mine["error"] is None or math.isinf(more["eps"]):
            continue
        assert (np.abs(mine["error"] - other["error"]) <= 1e-5).all()  # a table's, which stands for sigsoftmax, is larger
        off = mine["error"] + other["error"]
        for field in {"lse", "log_probs", "kept"} & mine.keys():
            with np.errstate(invalid="ignore"):
                apart = np.where(mine[field] == other[field], 0.0, np.abs(mine[field] - other[field]))
            assert (apart <= (off if apart.ndim == 1 else off[:, None])).all(), (verb, field)


@pytest.mark.parametrize(("verb", "more"), [("topk", {}), ("sample", {}), ("sample", {"top_k": 20})], ids=str)
def test_blocks_answer_what_they_are_asked_first(engines: dict[str, Any], verb: str, more: dict[str, Any]) -> None:
    """The cases above go by blocks where blocks can answer: else they would compare one executor with itself."""
    by_blocks, by_codes = (getattr(engines[name], verb)(vectors(name, 1), **more).cost.bytes[0] for name in ("blocks", "ids"))
    assert by_blocks != by_codes


def test_tensors_get_tensors(engines: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    for kind in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        hidden, engine = torch.from_numpy(vectors("default", 2)).to(kind), engines["default"]
        ids = torch.tensor([[1, 2], [3, 4]])
        for verb, args in (("topk", (hidden, 5)), ("lse", (hidden,)), ("log_prob", (hidden, ids)), ("sample", (hidden, 2))):
            ours, theirs = both(engine, verb, *args, **({"seed": 1, "eps": math.inf} if verb == "sample" else {}))
            assert all(isinstance(part, torch.Tensor) for part in list(named_fields(ours).values())[:2])
            same(ours, theirs)


@pytest.mark.parametrize(
    "hidden",
    [
        HIDDEN[:2, ::2], HIDDEN[:2].astype(np.int64), HIDDEN[0], np.full((1, 48), np.nan), np.full((1, 48), 1e39),
        HIDDEN[:4:2], np.asfortranarray(HIDDEN[:3]), HIDDEN[:2].astype(">f8"),
    ],
)  # fmt: skip
def test_what_is_not_plain_goes_the_long_way(engines: dict[str, Any], hidden: Any) -> None:
    engine = engines["default"]
    asked: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("topk", (hidden, 10)), ("lse", (hidden,)), ("log_prob", (hidden, np.zeros((len(hidden), 3), np.int64))),
        ("sample", (hidden, 1, 1.0, None, None, None, 3)),
    )  # fmt: skip
    for verb, args in asked:
        same(*both(engine, verb, *args, plain=False))


REFUSED: list[tuple[str, dict[str, Any]]] = [
    *(("topk", {"k": k}) for k in (0, -1, 9001, 2**80, 1.5, None, True, "3")),
    *((verb, {"eps": eps}) for verb in ("topk", "lse") for eps in (0, 0.0, -1.0, math.nan, "1", 1e-301, [0.1], 10**400, True)),
    *(("log_prob", {"ids": ids}) for ids in ([[9000]], [[-1]], [[0], [1]], [0], [[0.5]], [[]], None, [[2**63]])),
    *(("sample", {name: value}) for name in ("n", "class0") for value in (-1, 2**70, 1.0, None, True)),
    *(("sample", {"temperature": value}) for value in (0, 1e-7, 1e7, math.nan, None, "1", 10**400)),
    *(("sample", {"top_k": value}) for value in (0, -1, 2**63, 2**70, 2.0)),
    *(("sample", {"top_p": value}) for value in (0, 0.0, 1.1, -1, math.nan, "a")),
    *(("sample", {"min_p": value}) for value in (-0.1, 1.1, math.nan, "a")),
    *(("sample", {"seed": value}) for value in (-1, 2**64, 1.5, "a")),
]


@pytest.mark.parametrize(("verb", "more"), REFUSED, ids=str)
def test_what_is_refused_is_refused_in_the_same_words(engines: dict[str, Any], verb: str, more: dict[str, Any]) -> None:
    more = {"seed": 1, "eps": math.inf, **more} if verb == "sample" else more
    ours, theirs = both(engines["default"], verb, vectors("default", 1), plain=None, **more)
    same(ours, theirs)
    assert isinstance(ours, (HeadlongError, LogProb))


@pytest.mark.parametrize("masked", [{}, {"exclude": [5]}])
def test_a_top_k_that_keeps_all_costs_nothing(masked: dict[str, Any]) -> None:
    engine, asked = hl.compile(LAYER, "codes", threads=1), {"n": 2, "seed": 3, **masked}
    plain = engine.sample(HIDDEN[:3], **asked)
    for top_k in (LAYER.vocab, 2 * LAYER.vocab):
        kept = engine.sample(HIDDEN[:3], top_k=top_k, **asked)
        assert (kept.ids == plain.ids).all() and (kept.score == plain.score).all()
        assert (kept.cost.rows == plain.cost.rows).all()
