"""Plots as inline SVG text: dots with ranges, points on two axes, a falling curve, functions.

Axes are logarithmic, since times, errors and singular values span decades; those of functions are not. Every plot carries its
content in words (``aria-label``) and names its marks on hover (``<title>``); colours are the classes of
:mod:`headlong.report.page`'s style.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from headlong.report.axes import Axis, Even

WIDTH, LEFT, RIGHT, ROW = 600, 130, 40, 26
LETTER = 7
"""About as wide as a letter of a label."""
FEW = 12
"""Points of lines that each have a mark of their own on the axis."""
COLOURS = ("#1f5fc4", "#c4501f", "#2a8a4a", "#8a4fb5", "#a8801c", "#1d8f9c", "#b83a72", "#6b6b6b")
"""Of lines that share a plot; a ninth starts again, dashed."""


class Row(NamedTuple):
    """A dot with the range around it."""

    label: str
    value: float
    low: float
    high: float
    note: str


class Point(NamedTuple):
    label: str
    x: float
    y: float
    note: str


class Series(NamedTuple):
    """A named line: ``(x, y, note)`` from left to right."""

    label: str
    points: tuple[tuple[float, float, str], ...]


def dot_plot(title: str, rows: Sequence[Row], show: Callable[[float], str], caption: str = "") -> str:
    """One line for each row, on a logarithmic axis; a caption below where there is one."""
    left = min(max([LEFT, *(LETTER * len(row.label) + 16 for row in rows)]), WIDTH // 2)
    axis = Axis.over([end for row in rows for end in (row.low, row.high)], left, WIDTH - RIGHT)
    height = ROW * len(rows) + 40
    marks = [_grid(axis.at(tick), 6, height - 24, label) for tick, label in axis.labels(show)]
    for index, row in enumerate(rows):
        y = ROW * index + 20
        low, high, middle = axis.at(row.low), axis.at(row.high), axis.at(row.value)
        marks.append(
            f"<g><title>{_text(row.label)}: {_text(row.note)}</title>"
            f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{_text(row.label)}</text>'
            f'<path class="span" d="M{low:.1f} {y}H{high:.1f}"/><circle class="mark" cx="{middle:.1f}" cy="{y}" r="5"/></g>'
        )
    if caption:
        height += 22
        marks.append(f'<text class="soft" x="{WIDTH - RIGHT}" y="{height - 8}" text-anchor="end">{_text(caption)}</text>')
    words = "; ".join([*(f"{row.label}: {row.note}" for row in rows), *([caption] if caption else [])])
    return _svg(f"{title}. {words}", height, marks)


def scatter(
    title: str, points: Sequence[Point], show: tuple[Callable[[float], str], Callable[[float], str]], names: tuple[str, str],
    foot: float | None = None,
) -> str:  # fmt: skip
    """Points on two logarithmic axes; where a ``foot`` is given the upright one begins there and has a decade at least."""
    height, bottom = 320, 280
    across = Axis.over([point.x for point in points], 80, WIDTH - 100)
    up = Axis.over([*(point.y for point in points), *([] if foot is None else [foot, 10 * foot])], bottom, 24)
    marks = [_grid(across.at(tick), 14, bottom, label) for tick, label in across.labels(show[0])]
    marks += _levels(up, WIDTH - 100, show[1])
    places = [(across.at(point.x), up.at(point.y)) for point in points]
    taken = _round(places)
    for point, (x, y) in zip(points, places, strict=True):
        label = _label(x, y, bottom, point.label, taken)
        circle = f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
        marks.append(f"<g><title>{_text(point.label)}: {_text(point.note)}</title>{circle}{label}</g>")
    marks.append(f'<text class="soft" x="{WIDTH - 100}" y="{height - 6}" text-anchor="end">{_text(names[0])}</text>')
    marks.append(f'<text class="soft" x="80" y="12">{_text(names[1])}</text>')
    words = "; ".join(f"{point.label}: {point.note}" for point in points)
    return _svg(f"{title}. {words}", height, marks)


def _label(x: float, y: float, foot: float, label: str, taken: list[tuple[float, float, float]]) -> str:
    """A label beside a mark, or before it where the plot ends, at the nearest height above the ``foot`` of the plot that meets
    none of what is ``taken``."""
    wide = LETTER * len(label)
    start = x + 9 if x + 9 + wide <= WIDTH else x - 9 - wide
    levels = [y + 14 * step * sign for step in range(20) for sign in (1, -1)]
    level = next((one for one in levels if 22 < one <= foot and not _meets(start, start + wide, one, taken)), y)
    taken.append((start, start + wide, level))
    at = f'x="{start:.1f}"' if start > x else f'x="{x - 9:.1f}" text-anchor="end"'
    return f'<text {at} y="{level + 4:.1f}">{_text(label)}</text>'


def _round(places: Sequence[tuple[float, float]]) -> list[tuple[float, float, float]]:
    """What marks take up."""
    return [(x - 6, x + 6, y) for x, y in places]


def _meets(start: float, stop: float, y: float, taken: Sequence[tuple[float, float, float]]) -> bool:
    return any(start < right and left < stop and abs(y - level) < 13 for left, right, level in taken)


def _levels(up: Axis, right: float, show: Callable[[float], str]) -> list[str]:
    """Lines across the plot at the ticks of its upright axis."""
    return [
        f'<path class="grid" d="M80 {up.at(tick):.1f}H{right}"/>'
        f'<text class="soft" x="72" y="{up.at(tick) + 4:.1f}" text-anchor="end">{_text(label)}</text>'
        for tick, label in up.labels(show)
    ]


def curve(title: str, values: Sequence[float], names: tuple[str, str], show: Callable[[float], str]) -> str:
    """Positive values in their order, the value axis logarithmic."""
    height, bottom = 280, 240
    up = Axis.over(values, bottom, 24)
    step = (WIDTH - 80 - RIGHT) / max(1, len(values) - 1)
    marks = _levels(up, WIDTH - RIGHT, show)
    path = " ".join(f"{80 + step * index:.1f},{up.at(value):.1f}" for index, value in enumerate(values))
    marks.append(f'<polyline class="span" points="{path}"/>')
    marks.append(f'<text class="soft" x="80" y="{bottom + 18}">1</text>')
    ends = f"{names[0]}: 1 to {len(values)}"
    marks.append(f'<text class="soft" x="{WIDTH - RIGHT}" y="{bottom + 18}" text-anchor="end">{_text(ends)}</text>')
    marks.append(f'<text class="soft" x="80" y="12">{_text(names[1])}</text>')
    return _svg(f"{title}. From {show(values[0])} down to {show(values[-1])}", height, marks)


def lines(
    title: str, series: Sequence[Series], show: tuple[Callable[[float], str], Callable[[float], str]], names: tuple[str, str]
) -> str:
    """Lines on two logarithmic axes, each named at its right end; a mark below every point, unless they are many."""
    height, bottom, right = 360, 320, WIDTH - 210
    across = Axis.over([x for one in series for x, _, _ in one.points], 80, right)
    up = Axis.over([y for one in series for _, y, _ in one.points], bottom, 24)
    places = sorted({x for one in series for x, _, _ in one.points})
    below = [(x, show[0](x)) for x in places] if len(places) <= FEW else across.labels(show[0])
    marks = [_grid(across.at(x), 14, bottom, label) for x, label in below]
    marks += _levels(up, right, show[1])
    taken = _round([(across.at(x), up.at(y)) for one in series for x, y, _ in one.points])
    for one in sorted(series, key=lambda one: one.points[-1][1]):
        path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y, _ in one.points)
        marks.append(f'<polyline class="span" points="{path}"/>')
        for x, y, note in one.points:
            spot = f'<circle class="mark" cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="4"/>'
            marks.append(f"<g><title>{_text(one.label)}: {_text(note)}</title>{spot}</g>")
        marks.append(_label(across.at(one.points[-1][0]), up.at(one.points[-1][1]), bottom, one.label, taken))
    marks.append(f'<text class="soft" x="{right}" y="{height - 4}" text-anchor="end">{_text(names[0])}</text>')
    marks.append(f'<text class="soft" x="80" y="12">{_text(names[1])}</text>')
    words = "; ".join(f"{one.label}: {', '.join(note for _, _, note in one.points)}" for one in series)
    return _svg(f"{title}. {words}", height, marks)


class Range(NamedTuple):
    """A measured value and the bar around it."""

    x: float
    y: float
    low: float
    high: float


def ranges(
    title: str, series: Mapping[str, Sequence[Range]], show: tuple[Callable[[float], str], Callable[[float], str]],
    names: tuple[str, str],
) -> str:  # fmt: skip
    """Lines with error bars on two logarithmic axes, named beside them."""
    height, bottom = 360, 320
    right = _room(series)
    every = [one for line in series.values() for one in line]
    across = Axis.over([one.x for one in every], 80, right)
    up = Axis.over([end for one in every for end in (one.y, one.low, one.high) if end > 0], bottom, 24)
    ticks = [(across.at(tick), label) for tick, label in across.labels(show[0], 6)]
    marks = _frame(ticks, [(up.at(tick), label) for tick, label in up.labels(show[1])], right)
    for number, (label, line) in enumerate(series.items()):
        path = " ".join(f"{across.at(one.x):.1f},{up.at(one.y):.1f}" for one in line)
        colour = COLOURS[number % len(COLOURS)]
        marks.append(f'<polyline class="span" {_stroke(number)} points="{path}"/>')
        for one in line:
            x, low, high = across.at(one.x), up.at(max(one.low, 1e-300)), up.at(one.high)
            note = f"{label}: {show[1](one.y)} at {show[0](one.x)}"
            spot = f'<circle class="mark" style="fill:{colour}" cx="{x:.1f}" cy="{up.at(one.y):.1f}" r="3"/>'
            bar = f'<path class="span" {_stroke(number)} d="M{x:.1f} {low:.1f}V{high:.1f}"/>'
            marks.append(f"<g><title>{_text(note)}</title>{bar}{spot}</g>")
    marks += [*_legend(list(series), right), *_names(names, right, height)]
    ends = (f"{label}: from {show[1](line[0].y)} to {show[1](line[-1].y)}" for label, line in series.items())
    return _svg(f"{title}. {'; '.join(ends)}", height, marks)


def heat(title: str, shares: Sequence[Sequence[float]], edges: tuple[Axis, Axis], names: tuple[str, str]) -> str:
    """A 2-D histogram: ``shares[row][column]`` from low to high on both axes, darker for more, its logarithm."""
    height = 380
    most = max((value for row in shares for value in row), default=0.0) or 1.0
    wide = (edges[0].stop - edges[0].start) / len(shares[0])
    tall = (edges[1].start - edges[1].stop) / len(shares)
    marks = []
    for number, row in enumerate(shares):
        y = edges[1].start - tall * (number + 1)
        for place, value in enumerate(row):
            if value > 0:
                depth = max(0.04, 1 + math.log10(value / most) / 4)
                x = edges[0].start + wide * place
                size = f'width="{wide:.1f}" height="{tall:.1f}" opacity="{depth:.2f}"'
                box = f'<rect class="mark" x="{x:.1f}" y="{y:.1f}" {size}/>'
                marks.append(f"<g><title>{value:.3%}</title>{box}</g>")
    marks += [_grid(edges[0].at(tick), edges[1].stop, edges[1].start, f"{tick:g}") for tick in edges[0].ticks(6)]
    for tick in edges[1].ticks(6):
        y = edges[1].at(tick) + 4
        marks.append(f'<text class="soft" x="{edges[0].start - 8:.1f}" y="{y:.1f}" text-anchor="end">{tick:g}</text>')
    marks.append(f'<text class="soft" x="{edges[0].stop}" y="{height - 4}" text-anchor="end">{_text(names[0])}</text>')
    marks.append(f'<text class="soft" x="{edges[0].start}" y="12">{_text(names[1])}</text>')
    return _svg(f"{title}. The fullest cell holds {most:.2%}", height, marks)


def functions(title: str, series: Mapping[str, Sequence[tuple[float, float]]], names: tuple[str, str]) -> str:
    """Functions by their points from left to right, named beside them; both axes linear."""
    height, bottom = 360, 320
    right = _room(series)
    across = Even.over([x for line in series.values() for x, _ in line], 80, right)
    up = Even.over([y for line in series.values() for _, y in line], bottom, 24)
    marks = _frame(
        [(across.at(tick), f"{tick:g}") for tick in across.ticks()], [(up.at(tick), f"{tick:g}") for tick in up.ticks()], right
    )
    for number, (label, line) in enumerate(series.items()):
        path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in line)
        marks.append(f'<g><title>{_text(label)}</title><polyline class="span" {_stroke(number)} points="{path}"/></g>')
    marks += [*_legend(list(series), right), *_names(names, right, height)]
    ends = (f"{label}: from {line[0][1]:.3g} at {line[0][0]:.3g} to {line[-1][1]:.3g}" for label, line in series.items())
    return _svg(f"{title}. {'; '.join(ends)}", height, marks)


def _room(labels: Iterable[str]) -> int:
    """Where the plot ends, so that the labels find room to its right."""
    return WIDTH - min(LETTER * max(map(len, labels)) + 50, WIDTH // 2)


def _frame(across: Sequence[tuple[float, str]], up: Sequence[tuple[float, str]], right: int) -> list[str]:
    """The grid of a plot from 80 to ``right`` and from 24 to 320, and what it says at the ticks."""
    marks = [_grid(x, 14, 320, text) for x, text in across]
    for y, text in up:
        marks.append(f'<path class="grid" d="M80 {y:.1f}H{right}"/>')
        marks.append(f'<text class="soft" x="72" y="{y + 4:.1f}" text-anchor="end">{_text(text)}</text>')
    return marks


def _stroke(number: int) -> str:
    dash = ";stroke-dasharray:6 4" if number >= len(COLOURS) else ""
    return f'style="stroke:{COLOURS[number % len(COLOURS)]}{dash}"'


def _legend(labels: Sequence[str], right: int) -> list[str]:
    """A short stroke and a name for each line, from the top down."""
    return [
        f'<path class="span" {_stroke(number)} d="M{right + 14} {30 + 20 * number}h18"/>'
        f'<text x="{right + 38}" y="{34 + 20 * number}">{_text(label)}</text>'
        for number, label in enumerate(labels)
    ]


def _names(names: tuple[str, str], right: int, height: int) -> list[str]:
    return [
        f'<text class="soft" x="{right}" y="{height - 4}" text-anchor="end">{_text(names[0])}</text>',
        f'<text class="soft" x="80" y="12">{_text(names[1])}</text>',
    ]


def standalone(svg: str, style: str) -> str:
    """A plot as a file of its own, in the page's colours."""
    return svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">\n", f">\n<style>{style}</style>\n", 1)


def _grid(x: float, top: float, bottom: float, label: str) -> str:
    return (
        f'<path class="grid" d="M{x:.1f} {top}V{bottom}"/>'
        f'<text class="soft" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{_text(label)}</text>'
    )


def _svg(words: str, height: int, marks: Sequence[str]) -> str:
    inside = "\n".join(marks)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{_text(words)}">\n{inside}\n</svg>'


def _text(text: str) -> str:
    return html.escape(text, quote=True)
