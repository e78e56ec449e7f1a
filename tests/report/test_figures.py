"""Plots are SVG that says in words what it shows."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from headlong.report.axes import Axis, Even
from headlong.report.page import STYLE
from headlong.report.plots import Point, Range, dot_plot, functions, heat, ranges, scatter, standalone
from headlong.report.plots import Row as Dot
from headlong.report.squares import cells


def test_ranges_and_heat_are_svg() -> None:
    line = [Range(10.0**n, 2.0 * n + 1, 2.0 * n + 0.5, 2.0 * n + 1.5) for n in range(4)]
    plot = ranges("Samples", {"ours": line}, (str, str), ("D", "samples"))
    cells = heat("Entries", [[0.5, 0.0], [0.25, 0.25]], (Axis(-2, 0, 80, 520), Axis(-1, 1, 340, 24)), ("|A|", "|x|"))
    for svg, marks in ((plot, 4), (cells, 3)):
        root = ET.fromstring(standalone(svg, STYLE))
        assert root.get("aria-label")
        assert svg.count('class="mark"') == marks


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
