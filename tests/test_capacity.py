"""Ranks of log-probabilities against constructions whose rank is known; winners against hulls and full linear programs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import headlong as hl
from headlong.capacity import capacity, effective_rank, link_plot, log_probs, press_rank, ranks, winners
from headlong.cli.main import app
from headlong.errors import MissingPackageError, ShapeError
from headlong.layers.mixture import MixtureLayer
from headlong.links import Gss, Table
from headlong.store import write_file


def quietly(done: int, total: int) -> None:
    assert 0 <= done <= total


def stage(name: str) -> Any:
    return quietly


def mixture(rng: np.random.Generator, vocab: int, dim: int, *, pooled: bool = False) -> MixtureLayer:
    matrix = hl.Layer(2 * rng.standard_normal((vocab, dim)).astype(np.float32))
    project = rng.standard_normal((3 * dim, dim)).astype(np.float32)
    offset, prior = (rng.standard_normal(shape).astype(np.float32) for shape in ((3 * dim,), (3, dim)))
    return MixtureLayer(matrix, project, offset, prior, pooled=pooled)


def test_a_softmax_cannot_exceed_its_dimension_and_a_bent_link_does(rng: np.random.Generator) -> None:
    weight, hidden = 1.5 * rng.standard_normal((120, 6)).astype(np.float32), rng.standard_normal((150, 6))
    bias = rng.standard_normal(120).astype(np.float32)
    bent = Table.through(np.linspace(-4, 4, 9), np.cumsum([1, 0.2, 2, 0.5, 1.5, 0.3, 1, 0.7, 1.2]), 1.0, 1.0)
    plain = ranks(hl.Layer(weight, bias), hidden, quietly)
    assert plain.press == plain.most == 6 + 2
    assert ranks(hl.Layer(weight), hidden, quietly).press == 6 + 1
    for link in (Gss(), bent):
        assert ranks(hl.Layer(weight, bias, link), hidden, quietly).press > 3 * plain.most
    assert ranks(mixture(rng, 120, 6), hidden, quietly).press > 3 * plain.most
    assert ranks(mixture(rng, 120, 6, pooled=True), hidden, quietly).press == 6 + 1


def test_ranks_are_those_of_the_matrix(rng: np.random.Generator) -> None:
    left, right = rng.standard_normal((40, 5)), rng.standard_normal((5, 30))
    singular = np.linalg.svd(left @ right, compute_uv=False)
    assert press_rank(singular, 70) == 5 == np.linalg.matrix_rank(left @ right)
    assert effective_rank(np.array([3.0, 4.0, 0.0])[[1, 0, 2]], 0.5) == 1
    assert effective_rank(np.array([4.0, 3.0, 1e-9]), 1e-6) == 2


@pytest.mark.parametrize("pooled", [False, True])
def test_log_probabilities_are_the_engines(rng: np.random.Generator, pooled: bool) -> None:
    hidden = rng.standard_normal((4, 5))
    for layer in (hl.Layer(rng.standard_normal((30, 5)).astype(np.float32), None, Gss()), mixture(rng, 30, 5, pooled=pooled)):
        top = hl.compile(layer, eps=1e-9, delta=0.0).topk(hidden, k=30)
        exact = log_probs(layer, hidden)
        np.testing.assert_allclose(np.exp(exact).sum(1), 1)
        np.testing.assert_allclose(top.log_probs, np.take_along_axis(exact, top.ids, 1), atol=float(top.error.max()) + 1e-9)


def test_who_can_win_is_known_of_a_square() -> None:
    corners = [[1, 1], [1, -1], [-1, 1], [-1, -1]]
    weight = np.array([*corners, [0, 0.1], [0.5, 0.5], [1, 0]], np.float32)
    found = winners(hl.Layer(weight), quietly)
    assert found.found.tolist() == [True] * 4 + [False] * 3 and found.never.tolist() == [4, 5, 6] and not len(found.open)
    lifted = winners(hl.Layer(weight, np.array([0, 0, 0, 0, 3, 0, 0], np.float32)), quietly)
    assert lifted.found[4] and lifted.never.tolist() == [5, 6]
    twice = winners(hl.Layer(weight[[0, 1, 2, 3, 0]]), quietly)
    assert twice.never.tolist() == [0, 4], "a row that is there twice is never strictly first"
    assert winners(hl.Layer(weight[:1]), quietly).found.all()


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), dim=st.integers(1, 4), vocab=st.integers(2, 40), biased=st.booleans())
def test_winners_are_those_of_the_whole_linear_program(seed: int, dim: int, vocab: int, biased: bool) -> None:
    from scipy.optimize import linprog

    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((vocab, dim)).astype(np.float32)
    bias = rng.standard_normal(vocab).astype(np.float32) if biased else np.zeros(vocab, np.float32)
    found = winners(hl.Layer(weight, bias if biased else None), quietly)
    assert not len(found.open) and len(found.never) + found.found.sum() == vocab
    for one in range(vocab):
        others = np.arange(vocab) != one
        rows = np.c_[weight[others] - weight[one], np.ones(vocab - 1)].astype(np.float64)
        box = [*[(None, None)] * dim, (None, 1)]
        best = linprog([*np.zeros(dim), -1], A_ub=rows, b_ub=(bias[one] - bias[others]).astype(np.float64), bounds=box)
        if abs(best.fun) > 1e-5:  # nearer than that is rounding of either
            assert found.found[one] == (-best.fun > 0)


def test_what_no_program_decided_stays_open(rng: np.random.Generator) -> None:
    weight = np.concatenate([np.eye(3), -np.eye(3), 0.1 * rng.standard_normal((20, 3))]).astype(np.float32)
    found = winners(hl.Layer(weight), quietly, 5)
    assert len(found.never) == 5 and len(found.open) == 15 and found.found[:6].all()


def test_without_scipy_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy", None)
    with pytest.raises(MissingPackageError, match=r"headlong\[capacity\]"):
        winners(hl.Layer(np.array([[1.0], [-1.0], [0.0]], np.float32)), quietly)


def test_one_vector_has_no_rank(rng: np.random.Generator) -> None:
    with pytest.raises(ShapeError, match="expected two or more"):
        ranks(hl.Layer(np.eye(4, dtype=np.float32)), rng.standard_normal((1, 4)), quietly)


def test_the_command_line_shows_and_draws(tmp_path: Path, rng: np.random.Generator) -> None:
    path, hidden = tmp_path / "layer.safetensors", tmp_path / "hidden.npy"
    write_file(path, {"weight": rng.standard_normal((50, 4)).astype(np.float32)})
    np.save(hidden, rng.standard_normal((60, 4)).astype(np.float32))
    asked = ["capacity", str(path), str(hidden), "--threads", "1"]
    shown = CliRunner().invoke(app, [*asked, "--html", str(tmp_path / "page.html")])
    assert shown.exit_code == 0 and "press rank" in shown.stdout and "never first" in shown.stdout
    assert "<svg" in (tmp_path / "page.html").read_text()
    said = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert said["press_rank"] == said["softmax_rank"] == 5 and said["can_be_first"] + len(said["never_first"]) == 50

    mixed = tmp_path / "mixture.safetensors"
    mixture(rng, 50, 4).save(mixed)
    both = json.loads(CliRunner().invoke(app, ["capacity", str(mixed), *asked[2:], "--json"]).stdout)
    assert both["press_rank"] > 5 and "never_first" not in both


def test_links_are_drawn_from_their_zero() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is an extra")
    assert "identity: from -5 to 5; f(z): from" in link_plot(Gss(), 5.0).svg
    assert math.isclose(float(Gss()(0.0)), -math.log(2)), "the curve that is drawn is shifted"


def test_both_come_together(rng: np.random.Generator) -> None:
    found = capacity(hl.Layer(rng.standard_normal((20, 3)).astype(np.float32)), rng.standard_normal((30, 3)), stage)
    assert found.winners is not None and found.ranks.queries == 30 and found.link == hl.Layer(np.eye(2, dtype=np.float32)).link
