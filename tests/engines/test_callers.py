"""Many callers at once, callers of other thread counts, and callers in forked processes: everyone gets the same answer."""

from __future__ import annotations

import multiprocessing
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.engines.base import Engine
from headlong.engines.method import METHODS

CALLERS = 6


def engines(threads: int | None = None) -> list[Engine]:
    """Every method over a float32 and a bfloat16 layer."""
    rng = np.random.default_rng(3)
    layers = [
        hl.Layer(rng.standard_normal((5000, 70)).astype(np.float32), rng.standard_normal(5000).astype(np.float32)),
        hl.Layer(rng.standard_normal((3001, 33)).astype(ml_dtypes.bfloat16)),
    ]
    return [hl.compile(layer, method, eps=0.05, threads=threads) for layer in layers for method in METHODS]


def hidden(engine: Engine, batch: int) -> Any:
    return np.random.default_rng(batch).standard_normal((batch, engine.layer.dim))


def answers(engine: Engine, batch: int) -> tuple[Any, ...]:
    """Everything that must not depend on who else is asking: ids, exact logits, samples."""
    rows = hidden(engine, batch)
    top, drawn = engine.topk(rows, 4), engine.sample(rows, 2, seed=1, top_p=0.9)
    given = engine.log_prob(rows, top.ids)
    assert (np.abs(given.lse - top.lse) <= given.error + top.error).all()
    return top.ids, top.logits, top.proved, drawn.ids, drawn.score, given.logits


def same(found: tuple[Any, ...], expected: tuple[Any, ...]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.fixture(params=native.levels()[1:])
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HEADLONG_ISA", request.param)
    return str(request.param)


def test_callers_at_once(isa: str) -> None:
    built = engines(threads=3)
    asked = [(engine, batch) for engine in built for batch in (1, 5, 70)] * 4
    expected = [answers(*one) for one in asked[: len(asked) // 4]] * 4
    with ThreadPoolExecutor(CALLERS) as pool:
        found = list(pool.map(lambda one: answers(*one), asked))
    assert all(same(*pair) for pair in zip(found, expected, strict=True))


ASKED: list[Engine] = []


def ask_in_child(number: int) -> tuple[Any, ...]:
    return answers(ASKED[number], 5)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="the system has no fork")
def test_forked_processes_grow_threads_of_their_own(isa: str) -> None:
    ASKED[:] = engines(threads=3)
    expected = [answers(engine, 5) for engine in ASKED]  # the pool of this process has its threads now
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: what is tested here
        with multiprocessing.get_context("fork").Pool(3) as pool:
            found = pool.map_async(ask_in_child, list(range(len(ASKED))) * 2).get(timeout=120)
    assert all(same(*pair) for pair in zip(found, expected * 2, strict=True))
