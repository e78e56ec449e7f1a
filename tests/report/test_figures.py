"""Figures drawn from stored runs: every plot is one SVG that says in words what it shows."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from headlong.layers.experts import ExpertsLayer
from headlong.report.axes import Axis, Even
from headlong.report.page import STYLE
from headlong.report.plots import Point, Range, dot_plot, functions, heat, ranges, scatter, standalone
from headlong.report.plots import Row as Dot
from headlong.report.squares import cells
from headlong.studies.papers.adaptive_softmax import figures as baharav2024_figures
from headlong.studies.papers.adaptive_softmax import variance as baharav2024_variance
from headlong.studies.papers.adaptive_softmax.variance import ESTIMATORS, Subject, tenth
from headlong.studies.papers.doubly_sparse import figures as liao2019_figures
from headlong.studies.papers.doubly_sparse.contents import contents, rank_correlation
from headlong.studies.papers.drawing import draw
from headlong.studies.papers.monotonic_softmax import figures as ganea2019_figures
from headlong.studies.papers.svd_hierarchical import figures as vlasova_figures

ROOT = Path(__file__).resolve().parents[2]


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
    draw("baharav2024", baharav2024_figures.figures(ROOT / "results"), tmp_path)
    names = {file.stem.removeprefix("baharav2024-") for file in tmp_path.iterdir()}
    assert names == {"synthetic-a", "synthetic-b", "variance"}


def test_heavy_coordinates_are_drawn_first(rng: np.random.Generator) -> None:
    rows, hidden = rng.standard_normal((3, 400)), rng.standard_normal((3, 400)) * np.linspace(3, 0.01, 400)
    heavy = np.abs(rows * hidden)
    about = Subject(rows * hidden, heavy / heavy.sum(axis=1, keepdims=True), rows, hidden, rows[:, None])
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
    assert not list(ganea2019_figures.figures(tmp_path / "nothing"))
    drawn = dict(ganea2019_figures.figures(tmp_path))
    assert {"match-0.01", "match-0.1", "loss-0.01", "loss-0.1", "ranks", "links"} == set(drawn)
    for svg in drawn.values():
        assert ET.fromstring(standalone(svg, STYLE)).get("aria-label")
    assert "PLIF, ours" in drawn["links"]


def test_functions_have_even_axes() -> None:
    svg = functions("Links", {"f": [(-2.0, -1.0), (0.0, 0.0), (2.0, 3.0)], "flat": [(-2.0, 0.0), (2.0, 0.0)]}, ("z", "f(z)"))
    root = ET.fromstring(standalone(svg, STYLE))
    assert "f: from -1 at -2 to 3" in str(root.get("aria-label"))
    axis = Even.over([-1.0, 3.0], 0.0, 100.0)
    assert axis.at(1.0) == 50.0 and axis.ticks() == [number / 2 for number in range(-2, 7)]
    assert Even.over([2.0, 2.0], 0.0, 1.0).at(2.0) == 0.0


def words_of(svg: str) -> str:
    """What a well-formed plot says of itself."""
    return str(ET.fromstring(standalone(svg, STYLE)).get("aria-label"))


def test_the_studies_of_structured_heads_are_drawn() -> None:
    drawn = dict(vlasova_figures.figures(ROOT / "results"))
    assert {"spectra", "spectra-weighted", "kl", "missed-10", "missed-1000", "loss-ptb-lstm"} <= set(drawn)
    assert ("perplexity" in drawn) == (ROOT / "results/vlasova-softmax.hierarchical.jsonl").is_file() == ("agreement" in drawn)
    assert {"time-10000", "time-793471"} <= set(drawn)
    assert "GPU: not run" in drawn["time-10000"] or "time-cuda" in drawn
    experts = dict(liao2019_figures.figures(ROOT / "results"))
    assert {"membership", "frequency-ptb", "frequency-wikitext2", "compute", "accuracy-ptb"} <= set(experts)
    assert "frequency-characters" not in experts, "characters come equally often"
    assert all(words_of(svg) for svg in [*drawn.values(), *experts.values()])
    for name in [*(f"vlasova-softmax-{name}" for name in drawn), *(f"liao2019-{name}" for name in experts)]:
        assert (ROOT / "docs/figures" / f"{name}.svg").is_file(), f"{name} is not in docs/figures"


def test_nothing_is_drawn_without_runs(tmp_path: Path) -> None:
    assert not dict(vlasova_figures.figures(tmp_path)) and not dict(liao2019_figures.figures(tmp_path))


def test_times_on_a_gpu_have_a_figure_of_their_own() -> None:
    got = {"us": 12.0, "plain": 40.0, "graph": 12.0}
    row = {"setting": {"layer": "small", "head": "cascade"}, "got": got, "environment": {}}
    assert words_of(vlasova_figures.times_on_a_gpu([row])) == "Time per token on a GPU, small. cascade: 12 µs"


def test_experts_are_told_by_their_words() -> None:
    ids, starts = np.array([0, 1, 0, 2, 3, 0, 1, 4]), np.array([0, 2, 5, 8])
    layer = ExpertsLayer(np.ones((3, 4), np.float32), np.ones((8, 4), np.float32), ids, starts, vocab=5)
    found = contents(layer, np.array([1000, 100, 10, 5, 0]), ["the", "of", "million", "shares", "unseen"])
    assert found["sizes"] == [2, 3, 3] and found["rank_correlation"] == pytest.approx(0.9487, abs=1e-4)
    assert found["smallest"][0] == {"size": 2, "words": ["the", "of"], "own": ["of", "the"]}
    assert found["smallest"][1]["own"] == ["million", "shares", "the"]
    assert found["held"][0] == {"experts": 1, "classes": 2, "frequency": 7.07, "low": 6.25, "high": 8.75}
    assert [one["experts"] for one in found["held"]] == [1, 2, 3], "a class that never comes has no frequency"
    assert rank_correlation(np.array([1, 2, 3]), np.array([7, 7, 7])) is None
    assert rank_correlation(np.array([1, 2, 3]), np.array([9, 5, 1])) == -1.0


def test_the_softmax_share_is_counted_where_a_model_multiplies() -> None:
    import torch

    from headlong.studies.models.backbones.base import Batch
    from headlong.studies.models.backbones.lstm import Lstm, LstmOptions
    from headlong.studies.papers.doubly_sparse.softmax_share import multiplications, one_more

    batch = Batch((torch.randint(50, (7, 3)),), torch.zeros(21, dtype=torch.long))
    model = Lstm(LstmOptions(dim=16, layers=2), 50).eval()
    assert multiplications(model, batch) == 2 * 8 * 16**2
    with torch.inference_mode():
        assert one_more(model, batch)().hidden.shape == (1, 16)


def test_squares_are_named_by_their_runs() -> None:
    svg = cells("Kept", [[0, 1, 2, 7], []], 8, ("class", "expert"))
    assert words_of(svg) == "Kept. 1: 1 to 3, 8; 2: none" and svg.count("<rect") == 4


def test_short_axes_and_crowded_labels() -> None:
    said = [label for _, label in Axis.over([0.991, 1.004], 0, 100).labels(lambda share: f"{share:.1%}")]
    assert len(said) >= 3 and len(set(said)) == len(said)
    points = [Point(f"a point with a long name {n}", 5.0 + 1e-6 * n, 5.0, "") for n in range(4)]
    svg = scatter("Crowd", [*points, Point("far", 1.0, 1.0, "")], (str, str), ("x", "y"))
    levels = [float(text.get("y", "0")) for text in ET.fromstring(svg).iter("text") if "long name" in (text.text or "")]
    assert min(abs(a - b) for a in levels for b in levels if a is not b) >= 13
    assert "below" in dot_plot("Times", [Dot("one", 1.0, 0.5, 2.0, "1 s")], str, "said below")
