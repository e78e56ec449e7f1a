"""Figures drawn from stored runs: every plot is one SVG that says in words what it shows."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from headlong.papers import baharav2024_figures, baharav2024_variance, ganea2019_figures
from headlong.papers.baharav2024_variance import ESTIMATORS, Subject, tenth
from headlong.report.page import STYLE
from headlong.report.plots import Axis, Even, Range, functions, heat, ranges, standalone

ROOT = Path(__file__).resolve().parent.parent


def test_ranges_and_heat_are_svg() -> None:
    line = [Range(10.0**n, 2.0 * n + 1, 2.0 * n + 0.5, 2.0 * n + 1.5) for n in range(4)]
    plot = ranges("Samples", {"ours": line}, (str, str), ("D", "samples"))
    cells = heat("Entries", [[0.5, 0.0], [0.25, 0.25]], (Axis(-2, 0, 80, 520), Axis(-1, 1, 340, 24)), ("|A|", "|x|"))
    for svg, marks in ((plot, 4), (cells, 3)):
        root = ET.fromstring(standalone(svg, STYLE))
        assert root.get("aria-label")
        assert svg.count('class="mark"') == marks


def test_stored_runs_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADLONG_DATA", raising=False)
    baharav2024_figures.draw(ROOT / "results", tmp_path)
    names = {file.stem.removeprefix("baharav2024-") for file in tmp_path.iterdir()}
    assert names == {"synthetic-a", "synthetic-b", "variance"}


def test_heavy_coordinates_are_drawn_first(rng: np.random.Generator) -> None:
    rows, hidden = rng.standard_normal((3, 400)), rng.standard_normal((3, 400)) * np.linspace(3, 0.01, 400)
    heavy = np.abs(rows * hidden)
    about = Subject(rows * hidden, heavy / heavy.sum(axis=1, keepdims=True), rows, hidden)
    picked = tenth(about, "importance")
    assert (picked.sum(axis=1) == 40).all()
    assert heavy[picked].mean() > 2 * heavy[tenth(about, "uniform")].mean()


def test_every_estimator_is_drawn_for_any_number_of_coordinates(rng: np.random.Generator) -> None:
    terms = rng.standard_normal(50)
    shares = np.abs(terms) / np.abs(terms).sum()
    for m in (2, 25, 50):
        found = baharav2024_variance.drawn(terms, shares, m, rng)
        assert set(found) == set(ESTIMATORS)
        assert all(variance >= 0 for _, variance in found.values())
    assert found["importance, kept"] == (pytest.approx(terms.sum()), 0.0)


def test_figures_of_links_and_ranks_are_drawn(tmp_path: Path) -> None:
    for name in ("ganea2019.synthetic.jsonl", "ganea2019-trained.json"):
        (tmp_path / name).write_bytes((ROOT / "results" / name).read_bytes())
    assert ganea2019_figures.figures(tmp_path / "nothing") == {}
    drawn = ganea2019_figures.figures(tmp_path)
    assert {"match-0.01", "match-0.1", "loss-0.01", "loss-0.1", "ranks", "links"} == set(drawn)
    for svg in drawn.values():
        assert ET.fromstring(standalone(svg, STYLE)).get("aria-label")
    assert "PLIF, ours" in drawn["links"] and "a softmax" not in drawn["links"]


def test_functions_have_even_axes() -> None:
    svg = functions("Links", {"f": [(-2.0, -1.0), (0.0, 0.0), (2.0, 3.0)], "flat": [(-2.0, 0.0), (2.0, 0.0)]}, ("z", "f(z)"))
    root = ET.fromstring(standalone(svg, STYLE))
    assert "f: from -1 at -2 to 3" in str(root.get("aria-label"))
    axis = Even.over([-1.0, 3.0], 0.0, 100.0)
    assert axis.at(1.0) == 50.0 and axis.ticks() == [number / 2 for number in range(-2, 7)]
    assert Even.over([2.0, 2.0], 0.0, 1.0).at(2.0) == 0.0
