"""Races whose radii were learned for the answer: for which calls they stand, what files keep, how often they fail."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong.engines.adaptive.reader import RaceReader
from headlong.engines.base import Engine
from headlong.errors import MalformedFileError
from headlong.layers.matrix import Layer
from headlong.store import open_file, write_file
from oracle import truth
from rates import check_rate

RATE, K, CALIBRATION, ASKED = 0.05, 5, 1200, 400
IDS: dict[str, Any] = {"eps": math.inf, "delta_ids": RATE}


@pytest.fixture(scope="module")
def made() -> tuple[Layer, np.ndarray, Engine]:
    """Logits whose energy falls off: the tail leaves something open."""
    rng = np.random.default_rng(7)
    energy = np.arange(1, 129.0) ** -0.6
    layer = Layer((rng.standard_normal((1500, 128)) * energy).astype(np.float32), rng.standard_normal(1500).astype(np.float32))
    hidden = rng.standard_normal((CALIBRATION + ASKED, 128)) * energy
    engine = hl.compile(layer, "adaptive", calibration=hidden[:CALIBRATION], threads=1, **IDS)
    assert isinstance(engine, Engine)
    return layer, hidden[CALIBRATION:], engine


def reader_of(engine: Engine) -> RaceReader:
    reader = engine.executor
    assert isinstance(reader, RaceReader)
    return reader


def without_what_was_learned(engine: Engine) -> Engine:
    """As a file of before holds it."""
    assert engine.plan.arrays is not None
    arrays = {name: array for name, array in engine.plan.arrays.items() if name != "answers"}
    plan = engine.plan._replace(arrays=arrays)
    return Engine(engine.layer, engine.method, plan, engine.norms, engine.promise, threads=1, seed=engine.seed)


def test_calibration_vectors_that_may_be_relied_on_are(made: tuple[Layer, np.ndarray, Engine]) -> None:
    layer, asked, engine = made
    assert engine.promise.over == {"calibration", "query"} and reader_of(engine).widths.kind == "calibrated"
    answers = reader_of(engine).answers
    assert [k for k, _ in answers] == [1, 10, 64] and all(0 < factor < reader_of(engine).widths.factor for _, factor in answers)
    over_the_query = hl.compile(layer, "adaptive", calibration=asked, threads=1, over="query", **IDS)
    assert isinstance(over_the_query, Engine)
    assert over_the_query.promise.over == {"query"} and reader_of(over_the_query).widths.kind == "bernstein"


@pytest.mark.parametrize("k", [1, 5, 10, 40])
def test_answers_fail_no_more_often_than_promised_and_read_less(k: int, made: tuple[Layer, np.ndarray, Engine]) -> None:
    layer, asked, engine = made
    best = -np.sort(-truth(layer, asked).logits, axis=1)[:, :k]
    found, wide = engine.topk(asked, k), without_what_was_learned(engine).topk(asked, k)
    for top in (found, wide):
        check_rate(int((np.asarray(top.logits) < best - 1e-9).any(axis=1).sum()), ASKED, RATE)
    assert np.mean(found.cost.bytes) < np.mean(wide.cost.bytes)
    late = found.cost.dense
    assert not found.proved[~late].any() and np.isinf(found.error[~late]).all(), "narrow radii bound no normaliser"


def test_other_calls_are_answered_as_if_nothing_had_been_learned(made: tuple[Layer, np.ndarray, Engine]) -> None:
    layer, asked, engine = made
    plain, some = without_what_was_learned(engine), asked[:20]
    for call in ({"k": 65}, {"k": K, "exclude": [3]}):
        mine, theirs = engine.topk(some, **call), plain.topk(some, **call)
        np.testing.assert_array_equal(mine.ids, theirs.ids)
        np.testing.assert_array_equal(mine.cost.bytes, theirs.cost.bytes)
    both = hl.compile(
        layer, "adaptive", calibration=asked, threads=1, eps=0.1, delta=0.1, delta_ids=0.1, over=("calibration", "query")
    )
    assert isinstance(both, Engine)
    assert reader_of(both).widths.kind == "calibrated" and not reader_of(both).answers


def test_files_keep_what_was_learned_and_those_of_before_still_load(
    made: tuple[Layer, np.ndarray, Engine], tmp_path: Path
) -> None:
    _, asked, engine = made
    for number, one in enumerate((engine, without_what_was_learned(engine))):
        path = tmp_path / f"{number}.safetensors"
        one.save(path)
        loaded = hl.load(path, threads=1)
        assert isinstance(loaded, Engine)
        assert reader_of(loaded).answers == reader_of(one).answers
        np.testing.assert_array_equal(loaded.topk(asked[:20], K).cost.bytes, one.topk(asked[:20], K).cost.bytes)
    assert not reader_of(loaded).answers


NO_FACTORS = ([[5.0, 0.5], [1.0, 0.4]], [[1.0, 1.5]], [[1.0, 0.0]], [[9e9, 0.5]], [1.0, 0.5], [[1.0, np.nan]])


@pytest.mark.parametrize("answers", NO_FACTORS)
def test_a_file_that_holds_no_factors_is_refused(
    answers: list[Any], made: tuple[Layer, np.ndarray, Engine], tmp_path: Path
) -> None:
    path = tmp_path / "engine.safetensors"
    made[2].save(path)
    file = open_file(path)
    tensors = {key: np.array(file.read(key)) for key in file.tensors}
    tensors["plan.arrays.answers"] = np.array(answers)
    write_file(path, tensors, file.metadata)
    with pytest.raises(MalformedFileError):
        hl.load(path)
