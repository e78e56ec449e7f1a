"""Queries that read more than those that a plan was made from would: they get a plan of their own, from the first one on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong.errors import InputError
from headlong.previews.expected_reads import Call, Expected, Usual, by_kind, held_out, watched
from learning import DIM, VOCAB, learned, world

pytestmark = pytest.mark.usefixtures("few_queries")
CALLS: dict[str, Callable[[Any, np.ndarray], Any]] = {
    "ids": lambda engine, rows: engine.topk(rows, 3, eps=np.inf),
    "many, and a proof": lambda engine, rows: engine.topk(rows, 300, eps=0.2),
    "targets": lambda engine, rows: engine.log_prob(rows, np.arange(len(rows))[:, None] + np.arange(40)),
    "normalisers": lambda engine, rows: engine.lse(rows, exclude=[1, 2]),
    "samples": lambda engine, rows: engine.sample(rows, 3, 0.7, top_k=5),
    "samples, seeded": lambda engine, rows: engine.sample(rows, seed=int(abs(rows[0, 0]) * 1000)),
    "masked": lambda engine, rows: engine.topk(rows, 3, allowed=np.arange(0, VOCAB, 2)),
}


def foreign() -> np.ndarray:
    """Queries in no direction that was seen."""
    return np.random.default_rng(9).standard_normal((1200, DIM)).astype(np.float32)


def judged(engine: Any) -> None:
    if engine._judge is not None:
        engine._judge.join()


def asked(engine: Any, queries: np.ndarray, batch: int) -> None:
    """Until a plan is being compiled for them."""
    for start in range(0, len(queries), batch):
        engine.topk(queries[start : start + batch], 5)
        judged(engine)
        if engine._queries is not None and engine._queries.enough:
            break
    engine.wait()


@pytest.mark.parametrize("batch", [1, 6])
def test_drift_compiles_again(batch: int) -> None:
    layer, hidden = world()
    engine = learned(layer, hidden, eps=np.inf)
    asked(engine, hidden[200:800], batch)
    assert engine.adapted == 1
    other = foreign()
    asked(engine, other, batch)
    assert engine.adapted == 2
    top = engine.topk(other[:50], 5)
    assert (top.ids == np.argsort(-(other[:50].astype(float) @ layer.weight.T.astype(float)), 1)[:, :5]).all()


# A proved normaliser of one query reads so much of this layer that no other can read twice as much.
ASKED = [(1, {"eps": np.inf}), (6, {"eps": np.inf})]
"""Proofs read no more of other queries: int8 codes of the rows as they are know no basis."""


@pytest.mark.parametrize(("batch", "options"), ASKED, ids=str)
def test_queries_unlike_those_of_the_plan_are_found_from_the_first_on(batch: int, options: dict[str, Any]) -> None:
    """After compiling with vectors and after a swap; once they have a plan, they are what is usual."""
    layer, hidden = world()
    engine: Any = hl.compile(layer, "cascade", adapt=True, calibration=hidden[:1024], threads=1, **options)
    other = foreign()
    asked(engine, other[:600], batch)
    assert engine.adapted == 1 and engine.trouble is None
    asked(engine, other[600:], batch)
    assert engine.adapted == 1
    swapped = learned(layer, hidden, **options)
    asked(swapped, other, batch)
    assert swapped.adapted == 2


@pytest.mark.parametrize("options", [{"eps": np.inf}, {}], ids=str)
def test_queries_like_the_vectors_are_no_drift(options: dict[str, Any]) -> None:
    """However they are asked: of each kind of call it is expected what that reads for the vectors held out."""
    layer, hidden = world()
    engine: Any = hl.compile(layer, "cascade", adapt=True, calibration=hidden[:1024], threads=1, **options)
    for batch, ask in (*itertools.product((1, 6), CALLS.values()), (80, CALLS["ids"])):
        for number in range(36):
            start = 1024 + 48 * number
            ask(engine, hidden[start : start + batch])
            judged(engine)
    assert engine._queries is None and engine.adapted == 0 and "watches for a drift" in engine.reason
    kinds = {(kind.verb, kind.queries) for kind in engine._expected._known}
    assert kinds == {*itertools.product(("topk", "log_prob", "lse", "sample"), (1, 6)), ("topk", 80)}


def test_calls_that_cannot_be_asked_again_are_not_judged() -> None:
    layer, hidden = world()
    engine: Any = hl.compile(layer, "cascade", adapt=True, calibration=hidden[:1024], threads=1)

    def fails() -> None:
        raise MemoryError("no room")

    engine._now._alone = fails
    asked(engine, foreign()[:100], 1)
    assert engine.trouble is None and engine.adapted == 0 and not engine._expected._known


@pytest.mark.parametrize(("dense", "drifts"), [(0, False), (2, False), (4, False), (16, True), (64, True)])
def test_a_few_dear_queries_are_no_drift(dense: int, drifts: bool) -> None:
    expected = Expected(np.zeros((64, 1), np.float32))
    (kind,) = by_kind([Call("lse", 1, {}, [1.0])])
    expected._known[kind] = Usual(1.0, 0.001)
    read = [68.0] * dense + [1.0] * (64 - dense)
    assert expected.drifted(by_kind([Call("lse", 1, {}, [each]) for each in read])) == drifts


def test_twice_as_much_is_expected_of_each_kind_alone() -> None:
    """A mix of calls is judged by the same mix, and what is not known by nothing."""
    expected = Expected(np.zeros((64, 1), np.float32))
    cheap, dear, other = ([Call(verb, 1, {}, [read])] * 32 for verb, read in (("topk", 1.0), ("lse", 9.0), ("sample", 1e9)))
    for calls in (cheap, dear):
        (kind,) = by_kind(calls)
        expected._known[kind] = Usual(float(calls[0].bytes[0]), 0.0)
    assert not expected.drifted(by_kind([*cheap[:2], *dear, *other]))
    assert expected.drifted(by_kind([*cheap, *(call._replace(verb="topk") for call in dear)]))


def test_vectors_that_judge_are_no_part_of_the_plan() -> None:
    vectors = np.arange(2000.0)[:, None]
    for count, held in ((2000, 64), (256, 32), (128, 16)):
        rest, judges = held_out(vectors[:count])
        assert len(judges) == held and not np.isin(judges, rest).any() and len(rest) == count - held
    rest, judges = held_out(vectors[:100])
    assert len(rest) == 100 and 0 < len(judges) <= 64 and np.isin(judges, rest).all()


def test_a_watched_call_keeps_no_masks_and_no_ids() -> None:
    ids = np.zeros((2, 7), np.int64)
    for options in ({"ids": ids}, {"ids": ids.tolist(), "eps": None}):
        call = watched("log_prob", 2, options, [1.0, 2.0])
        kind = None if call is None else call.kind()
        assert call is not None and kind is not None and dict(kind.options)["ids"] == 7
        assert not any(isinstance(kept, np.ndarray) for kept in call.options.values())
    assert watched("topk", 1, {"k": 5, "allowed": ids}, [1.0]) is None
    call = watched("topk", 1, {"k": 5, "allowed": None, "exclude": ids}, [1.0])
    assert call is not None and call.options == {"k": 5}
    assert Call("sample", 1, {"n": 1, "temperature": np.ones(3)}, [1.0]).kind() is None  # nothing to know it again by


def test_what_fails_when_it_is_asked_again_is_tried_once() -> None:
    class Refuses:
        asked = 0

        def lse(self, hidden: Any) -> Any:
            self.asked += 1
            raise InputError("not these")

    expected, engine = Expected(np.zeros((64, 1), np.float32)), Refuses()
    kinds = by_kind([Call("lse", 1, {}, [1e9])])
    for kind in expected.missing(kinds):
        expected.measure(kind, engine)
    assert engine.asked == 1 and not expected.missing(kinds) and not expected.drifted(kinds)
