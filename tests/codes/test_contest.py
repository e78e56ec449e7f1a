"""Plans chosen by the clock."""

from __future__ import annotations

import numpy as np
import pytest

import headlong as hl
from headlong.engines import contest


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(contest.VARIABLE, raising=False)


def layer_of(vocab: int = 4096, dim: int = 96) -> tuple[hl.Layer, np.ndarray]:
    rng = np.random.default_rng(0)
    return hl.Layer(rng.standard_normal((vocab, dim)).astype(np.float32)), rng.standard_normal((200, dim))


def test_codes_are_taken_where_they_were_faster(clock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict follows the times: here they are planted."""
    layer, hidden = layer_of()
    table = np.ones((3, 3))
    table[2] = 0.4, 0.9, 1.1  # by all of them: a normaliser does not depend on its batch
    monkeypatch.setattr(contest, "timed", lambda engines, vectors: table[: len(engines)])
    engine = hl.compile(layer, calibration=hidden, delta=0.0)
    assert engine.plan.codes is not None
    assert "us a query, 1, 8, 64 at once" in engine.reason
    table[2] = 2.0
    table[1] = 0.99
    assert hl.compile(layer, calibration=hidden, delta=0.0).name == "full"


def test_a_real_contest_ends_and_answers_right(clock: None, tmp_path) -> None:
    layer, hidden = layer_of()
    engine = hl.compile(layer, calibration=hidden, delta=0.0)
    exact = hidden @ layer.weight.astype(np.float64).T
    order = np.argsort(-exact, axis=1, kind="stable")[:, :10]
    for batch in (1, 8, 64):
        np.testing.assert_array_equal(engine.topk(hidden[:batch]).ids, order[:batch])
    engine.save(tmp_path / "engine.safetensors")
    again = hl.load(tmp_path / "engine.safetensors")
    assert (again.plan.codes is None) == (engine.plan.codes is None)
    np.testing.assert_array_equal(again.topk(hidden).ids, order)


def test_every_contender_is_timed_on_every_batch() -> None:
    layer, hidden = layer_of(2100, 128)
    engines = [hl.compile(layer, name, delta=1e-6) for name in ("full", "codes")]
    seconds = contest.timed(engines, hidden[:64])
    assert seconds.shape == (2, 3) and (seconds > 0).all()
