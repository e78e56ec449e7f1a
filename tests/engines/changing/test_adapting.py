"""Engines that learn from their own queries: what they promise and answer stays, and they read no more."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong.engines import adapting, kept_queries
from headlong.engines.adapting import Adapting
from headlong.errors import OptionError
from made_layers import DIM, learned, world


@pytest.fixture
def few_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning from few queries, so that tests need not ask thousands."""
    monkeypatch.setattr(kept_queries, "MOST_NUMBERS", 2 * DIM * DIM)


@pytest.mark.usefixtures("few_queries")
@pytest.mark.parametrize("options", [{}, {"eps": np.inf}, {"eps": 0.2, "delta": 0.0}], ids=str)
def test_reads_no_more_and_answers_the_same(options: dict[str, Any]) -> None:
    layer, hidden = world()
    engine = hl.compile(layer, "codes", adapt=True, threads=1, **options)
    plain = hl.compile(layer, "codes", threads=1, **options)
    promise = engine.promise
    assert f"adapts after {2 * DIM} more queries" in engine.reason and "adapts after" in repr(engine)
    for count, row in enumerate(hidden[: 2 * DIM]):
        assert (engine.topk(row[None], 5).ids == plain.topk(row[None], 5).ids).all()
        assert engine.adapted == 0 or count == 2 * DIM - 1
    engine.wait()
    assert engine.adapted == 1 and engine.trouble is None and "adapted to" in engine.reason and engine.promise == promise
    after = engine.topk(hidden[500:600], 5)
    assert (after.ids == np.argsort(-(hidden[500:600].astype(float) @ layer.weight.T.astype(float)), 1)[:, :5]).all()
    assert after.proved.all() or promise.delta > 0
    one = [float(each.topk(row[None], 5).cost.bytes[0]) for each in (plain, engine) for row in hidden[500:560]]
    assert np.mean(one[60:]) < 1.15 * np.mean(one[:60])


def test_goes_on_learning_until_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_queries, "counts", lambda dim: (dim, 2 * dim, 4 * dim))
    layer, hidden = world()
    seen: list[int] = []
    engine: Any = hl.compile(layer, adapt=True, threads=1)
    usual = engine._again
    monkeypatch.setattr(engine, "_again", lambda vectors: (seen.append(len(vectors)), usual(vectors))[1])
    for plan in (1, 2):
        engine.topk(hidden[: DIM - 1], 3)
        assert engine.adapted == plan - 1
        engine.topk(hidden[DIM - 1 : DIM], 3)
        engine.wait()
        assert engine.adapted == plan and "adapts again after" in engine.reason and engine.trouble is None
    engine.topk(hidden[2 * DIM :], 3)  # more than are wanted
    engine.wait()
    assert engine.adapted == 3 and "adapted to" in engine.reason and "again" not in engine.reason
    assert seen == [DIM, 2 * DIM, 4 * DIM]


def test_queries_that_came_meanwhile_are_learned_from_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_queries, "counts", lambda dim: (dim, 2 * dim, 4 * dim))
    layer, hidden = world()
    seen: list[int] = []
    engine: Any = hl.compile(layer, adapt=True, threads=1)
    usual, begun, may_go_on = engine._again, threading.Event(), threading.Event()

    def slowly(vectors: np.ndarray) -> Any:
        seen.append(len(vectors))
        begun.set()
        assert may_go_on.wait(60)
        return usual(vectors)

    monkeypatch.setattr(engine, "_again", slowly)
    engine.topk(hidden[:DIM], 3)
    assert begun.wait(60)
    engine.topk(hidden[: 2 * DIM], 3)
    may_go_on.set()
    engine.wait()
    assert engine.adapted == 2 and seen == [DIM, 3 * DIM] and f"again after {DIM} more" in engine.reason


@pytest.mark.usefixtures("few_queries")
def test_every_verb_teaches() -> None:
    layer, hidden = world()
    engine: Any = hl.compile(layer, adapt=True, threads=1)
    engine.topk(hidden[:169], 3)
    engine.sample(hidden[169:199], seed=1)
    engine.lse(hidden[199:229])
    engine.log_prob(hidden[229:255], np.zeros((26, 1), np.int64))
    assert "adapts after 1 more" in engine.reason
    engine.topk(hidden[255:280], 3)
    engine.wait()
    assert engine.adapted == 1
    drawn = engine.sample(hidden[:64], seed=7)
    assert (drawn.ids == hl.compile(layer, "full").sample(hidden[:64], seed=7).ids).all()


@pytest.mark.usefixtures("few_queries")
def test_a_plan_that_cannot_be_made_leaves_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, hidden = world()
    engine: Any = hl.compile(layer, "codes", adapt=True, threads=1)

    def fails(vectors: np.ndarray) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(engine, "_again", fails)
    engine.topk(hidden[: 2 * DIM], 5)
    engine.wait()
    assert engine.adapted == 0 and "adapts no more: MemoryError: no room" in engine.reason
    with pytest.warns(RuntimeWarning, match="this engine adapts no more: MemoryError: no room"):
        engine.topk(hidden[:2])
    engine.topk(hidden[: 3 * DIM])  # told once


@pytest.mark.usefixtures("few_queries")
def test_a_layer_that_was_written_to_gets_no_plan() -> None:
    layer, hidden = world()
    weight = layer.weight.copy()
    engine: Any = hl.compile(hl.Layer(weight), "codes", adapt=True, threads=1)
    engine.topk(hidden[: 2 * DIM - 1], 5)
    weight[3] += 1
    engine.topk(hidden[:1], 5)
    engine.wait()
    assert engine.adapted == 0 and "adapts no more: WrongLayerError" in engine.reason


@pytest.mark.usefixtures("few_queries")
def test_saved_copied_and_changed_as_it_is_now(tmp_path: Path) -> None:
    layer, hidden = world()
    engine = learned(layer, hidden)
    path = tmp_path / "engine.safetensors"
    engine.save(path)
    same = hl.load(path)
    assert (same.topk(hidden[:5]).ids == engine.topk(hidden[:5]).ids).all()
    for copied in (pickle.loads(pickle.dumps(engine)), copy.deepcopy(engine)):  # noqa: S301
        assert isinstance(copied, hl.Engine)  # nothing is left to be learned
        assert (copied.topk(hidden[:5]).ids == engine.topk(hidden[:5]).ids).all()
    fewer = engine.without([int(engine.topk(hidden[:1], 1).ids[0, 0])])
    assert fewer.topk(hidden[:1], 1).ids[0, 0] == engine.topk(hidden[:1], 2).ids[0, 1]


@pytest.mark.usefixtures("few_queries")
def test_threads_that_ask_while_the_plan_changes() -> None:
    layer, hidden = world()
    engine: Any = hl.compile(layer, "codes", adapt=True, threads=1)
    expected = np.argsort(-(hidden[:400].astype(float) @ layer.weight.T.astype(float)), 1)[:, :3]
    wrong: list[int] = []

    def ask(start: int) -> None:
        wrong.extend(i for i in range(start, 400, 4) if (engine.topk(hidden[i : i + 1], 3).ids[0] != expected[i]).any())

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.wait()
    assert not wrong and engine.adapted == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.usefixtures("few_queries")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_fork_before_the_plan_learns_by_itself() -> None:
    layer, hidden = world()
    engine: Any = hl.compile(layer, "codes", adapt=True, threads=1)
    engine.topk(hidden[: 2 * DIM - 1], 5)
    child = os.fork()
    if child == 0:
        engine.topk(hidden[:1], 5)
        engine.wait()
        os._exit(0 if engine.adapted == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert engine.adapted == 0


class SignalError(Exception):
    """As by a signal."""


def interrupted(ask: Any, name: str, after: int) -> bool:
    """Whether ``ask()`` ended before so many instructions of ``name`` in adapting.py; else it was interrupted there."""
    left = [after]

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != adapting.__file__ or frame.f_code.co_name != name:
            return None
        frame.f_trace_opcodes = True
        left[0] -= event == "opcode"
        if left[0] == 0:
            raise SignalError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        ask()
    except SignalError:
        return False
    finally:
        sys.settrace(before)
    return True


@pytest.mark.usefixtures("few_queries")
@pytest.mark.parametrize("name", ["__enter__", "own"])
def test_a_call_that_is_interrupted_keeps_no_other_waiting(name: str) -> None:
    layer, hidden = world()
    first: Any = hl.compile(layer, "codes", adapt=True, threads=1)
    for after in itertools.count(1, 3):
        engine = copy.copy(first)
        ended = interrupted(lambda one=engine: one.topk(hidden[: 2 * DIM], 3), name, after)
        other = threading.Thread(target=lambda one=engine: one.topk(hidden[:2], 3), daemon=True)
        other.start()
        other.join(120)
        assert not other.is_alive(), f"after {after} instructions of {name}"
        engine.wait()
        assert engine.trouble is None
        if ended:
            break


def test_what_cannot_adapt_is_said_or_left() -> None:
    layer, hidden = world()
    small = hl.Layer(layer.weight[:50])
    assert not isinstance(hl.compile(small, adapt=True), Adapting)
    given: Any = hl.compile(layer, "codes", adapt=True, calibration=hidden[:512], threads=1)
    assert isinstance(given, Adapting) and "adapts after" in given.reason
    with pytest.raises(OptionError, match="adapt is for methods auto and codes"):
        hl.compile(layer, "svd", adapt=True)
    with pytest.raises(OptionError, match="adapt"):
        hl.compile(layer, adapt=1)  # type: ignore[call-overload]
