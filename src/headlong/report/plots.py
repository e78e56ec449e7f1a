"""The plots of a page, by matplotlib, as SVG that lies in the page. Without matplotlib there are none, and the page says so.

Text stays text, lines and labels take the page's colour, so that a plot follows a light or a dark setting.
"""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headlong.report.tables import batches, duration, ways

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS, DENSE, OTHER = "#3b7dd8", "#8a939d", "#c08a2e"
INK = "#123456"
"""Stands for the page's own colour of text while a plot is drawn."""
INSTALL = "Plots need matplotlib: pip install 'headlong[report]'."


class Figure(NamedTuple):
    """A plot and the sentence that says what it shows."""

    title: str
    svg: str
    caption: str = ""


def installed() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def drawn(draw: Callable[[Any], None], said: str, height: float = 3.2) -> str:
    """``draw(axes)`` on a plot of its own. ``said``: what it shows, for those who do not see it."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "headlong", "font.size": 9}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)
    with rc_context(style):
        canvas = Canvas(figsize=(7.4, height), layout="constrained")
        FigureCanvasSVG(canvas)
        axes = canvas.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes)
        file = io.StringIO()
        canvas.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    label = said.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def colour(row: Mapping[str, Any]) -> str:
    if "proved" in row:
        return OURS
    return DENSE if row["contestant"].startswith(("torch", "numpy")) else OTHER


def bars(record: Mapping[str, Any], batch: int, way: str) -> Figure:
    """The time of a query, everyone, slowest first, with quartiles."""
    rows = sorted((row for row in record["rows"] if row["batch"] == batch), key=lambda row: -row[way]["us"])
    said = "; ".join(f"{row['contestant']} {duration(1e-6 * row[way]['us'])}" for row in rows)

    def draw(axes: Axes) -> None:
        middle = [row[way]["us"] for row in rows]
        ends = [[row[way]["us"] - row[way]["q25"] for row in rows], [row[way]["q75"] - row[way]["us"] for row in rows]]
        axes.barh(range(len(rows)), middle, xerr=ends, color=[colour(row) for row in rows], ecolor=INK, error_kw={"lw": 0.8})
        axes.set_yticks(range(len(rows)), [row["contestant"] for row in rows])
        axes.set_xscale("log")
        axes.set_xlabel(f"microseconds of a query, {way}, {batch} at once")

    return Figure("Time of a query", drawn(draw, said, 0.6 + 0.24 * len(rows)), "Bar: median; line: quartiles. Blue: headlong.")


def misses(record: Mapping[str, Any], batch: int, way: str) -> Figure:
    """Time against the share of the best ids that were missed."""
    rows = [row for row in record["rows"] if row["batch"] == batch]
    foot = min([1 - row["same"] for row in rows if row["same"] < 1], default=1e-2) / 3
    said = "; ".join(f"{row['contestant']} misses {1 - row['same']:.2%}" for row in rows)

    def draw(axes: Axes) -> None:
        for row in rows:
            place = row[way]["us"], max(1 - row["same"], foot)
            axes.plot(*place, "o", color=colour(row))
            if row["same"] < 1:
                axes.annotate(row["contestant"], place, xytext=(5, 3), textcoords="offset points", fontsize=7)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(f"microseconds of a query, {way}")
        axes.set_ylabel("share of the ids missed")

    return Figure("Speed against misses", drawn(draw, said), "Left and down is better; the lowest line is none missed.")


def by_batch(record: Mapping[str, Any], way: str) -> Figure:
    """Where two lines cross, the better choice changes."""
    sizes = batches(record)
    names = dict.fromkeys(row["contestant"] for row in record["rows"])

    def draw(axes: Axes) -> None:
        for name in names:
            rows = sorted((row for row in record["rows"] if row["contestant"] == name), key=lambda row: row["batch"])
            style = "-" if "proved" in rows[0] else "--"
            axes.plot([row["batch"] for row in rows], [row[way]["us"] for row in rows], style, marker=".", label=name)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(one) for one in sizes])
        axes.set_yscale("log")
        axes.set_xlabel("queries at once")
        axes.set_ylabel(f"microseconds of a query, {way}")
        axes.legend(fontsize=7, labelcolor=INK, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))

    said = f"Microseconds of a query at {', '.join(map(str, sizes))} at once, {way}"
    return Figure("Time by batch size", drawn(draw, said, 3.8), "Where lines cross, the choice changes.")


class Closing(NamedTuple):
    """One query over a layer: classes by their estimates, best first, how far each can be off, the k-th logit found, and the
    exact logits of the rows that were read."""

    names: list[str]
    estimates: list[float]
    radii: list[float]
    threshold: float
    exact: list[float | None]


def closing(one: Closing) -> list[Figure]:
    """The intervals of one query; nothing without matplotlib."""
    if not installed():
        return []
    read = sum(exact is not None for exact in one.exact)
    places = range(len(one.names), 0, -1)

    def draw(axes: Axes) -> None:
        for place, estimate, radius, exact in zip(places, one.estimates, one.radii, one.exact, strict=True):
            axes.hlines(place, estimate - radius, estimate + radius, color=DENSE if exact is None else OURS)
            if exact is not None:
                axes.plot(exact, place, "o", color=OURS, markersize=4)
        axes.axvline(one.threshold, color=OTHER, linestyle="--", linewidth=1)
        axes.set_yticks(list(places), one.names)
        axes.set_xlabel("logit")

    said = f"Intervals of {len(one.names)} logits; {read} reach the threshold and are read, the others are ruled out"
    told = ("Line: where the logit can be, from a few bits of the row. Dot: the logit, of a row that was read. Dashed: the "
            "last of the best words; a line that ends left of it is ruled out unread.")  # fmt: skip
    return [Figure("One query", drawn(draw, said, 0.6 + 0.22 * len(one.names)), told)]


def spectrum(singular: Iterable[float]) -> list[Figure]:
    """Singular values, those of zero left out; nothing without matplotlib."""
    values = [float(one) for one in singular if one > 0]

    def draw(axes: Axes) -> None:
        axes.loglog(range(1, len(values) + 1), values, color=OURS)
        axes.set_xlabel("direction")
        axes.set_ylabel("singular value")

    if not values or not installed():
        return []
    said = f"Singular values: {len(values)} of them, from {max(values):.3g} to {min(values):.3g}"
    return [Figure("Singular values", drawn(draw, said))]


def of_run(record: Mapping[str, Any]) -> list[Figure]:
    """The plots of a run; none without matplotlib."""
    if not installed():
        return []
    way, sizes = ways(record)[0], batches(record)
    missed = any(row["same"] < 1 for row in record["rows"] if row["batch"] == sizes[0])  # else all points lie on one line
    found = [bars(record, sizes[0], way), *([misses(record, sizes[0], way)] if missed else [])]
    return [*found, by_batch(record, ways(record)[-1])] if len(sizes) > 1 else found
