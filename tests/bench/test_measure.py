"""Timing is interleaved and settled, records are whole, and nothing in them says where they were made."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong
from headlong.bench.measure import (
    Contestant,
    Schedule,
    claim_threads,
    contest,
    environment,
    pinned,
    processors,
    read_run,
    write_run,
)
from headlong.errors import MalformedFileError

QUICK = Schedule(rounds=4, settle=1, calls=2, pause=0.0)


def watched(name: str, log: list[tuple[str, list[int]]]) -> Contestant:
    """Notes who was called with which queries; its queries are doubled beforehand."""

    def call(block: Any) -> None:
        log.append((name, [int(value) for value in block[:, 0]]))

    return Contestant(name, call, prepare=lambda block: 2 * block)


def test_turns_are_interleaved_and_see_the_same_queries() -> None:
    log: list[tuple[str, list[int]]] = []
    queries = np.arange(6)[:, None]
    timings = contest([watched("a", log), watched("b", log), watched("c", log)], queries, 2, QUICK)
    assert [(timing.contestant, timing.batch, len(timing.seconds)) for timing in timings] == [(n, 2, 8) for n in "abc"]
    assert all(value >= 0 for timing in timings for value in timing.seconds)
    turn = QUICK.settle + QUICK.calls
    names = [name for name, _ in log]
    orders = []
    for start in range(0, len(log), 3 * turn):
        one_round = log[start : start + 3 * turn]
        order = names[start : start + 3 * turn : turn]
        orders.append(order)
        assert sorted(order) == ["a", "b", "c"]
        seen = [[block for name, block in one_round if name == who] for who in "abc"]
        assert seen[0] == seen[1] == seen[2]
    assert len({tuple(order) for order in orders}) > 1
    assert [block for name, block in log if name == "a"][:6] == [[8, 10], [0, 2], [4, 6], [4, 6], [8, 10], [0, 2]]


def test_untimed_calls_go_on_for_as_long_as_the_pause() -> None:
    log: list[tuple[str, list[int]]] = []
    schedule = Schedule(rounds=1, settle=1, calls=2, pause=0.02)
    contest([watched("x", log)], np.arange(4)[:, None], 1, schedule)
    untimed = [block for _, block in log[:-2]]
    assert len(untimed) > 10
    assert untimed[:4] == [[6], [4], [2], [0]]
    assert [block for _, block in log[-2:]] == [[0], [2]]


def test_the_budget_ends_a_race_after_three_rounds() -> None:
    moved: list[tuple[int, int]] = []
    schedule = Schedule(rounds=50, settle=0, calls=1, pause=0.0, seconds=0.0)
    (timing,) = contest([Contestant("x", lambda _: None)], np.zeros((1, 1)), 1, schedule, lambda *at: moved.append(at))
    assert len(timing.seconds) == 3
    assert moved[-1] == (50, 50)


def test_a_run_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = {"settings": {"k": 3}, "answers": [{"ids": [[1, 2]]}, {"ids": []}], "runs": [{"seconds": [1e-3, 2.5]}]}
    path = tmp_path / "deep" / "run.json"
    write_run(path, record)
    found = read_run(path)
    assert {key: found[key] for key in record} == record
    assert [file.name for file in path.parent.iterdir()] == ["run.json"]
    assert len(path.read_text().splitlines()) == 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a headlong run"),
        ('{"format": "headlong-run", "version": 1}', "is not a headlong run"),
        ('{"format": "headlong-run", "version": 99, "runs": []}', "has version 99; this headlong reads 2"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(MalformedFileError, match=message):
        read_run(path)


def test_the_environment_names_machine_and_versions_but_no_place() -> None:
    made = environment(2, isa_used=["portable"])
    assert made["threads"] == 2
    assert made["isa_used"] == ["portable"]
    assert made["versions"]["numpy"] == np.__version__
    assert made["headlong"] == headlong.__version__
    assert re.fullmatch(r"[0-9a-f]{12}\+?", made["commit"] or "0" * 12)
    text = json.dumps(made)
    for place in (os.uname().nodename, str(Path.home()), os.getcwd()):
        assert len(place) < 4 or place not in text


def test_pinning_is_undone() -> None:
    before = processors()
    with pinned(1) as held:
        assert len(held) <= 1
        assert processors() == (1 if held else before)
    assert processors() == before


def test_claimed_threads_reach_every_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "HEADLONG_THREADS"):
        monkeypatch.setenv(name, "7")
    claim_threads(1)
    assert {os.environ[name] for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "HEADLONG_THREADS")} == {"1"}
