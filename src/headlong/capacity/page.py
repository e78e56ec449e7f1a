"""Ranks and winners as a table, a page with plots, and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from headlong.bench.measure import Progress
from headlong.capacity.ranks import Ranks, ranks
from headlong.capacity.winners import Winners, winners
from headlong.layers.matrix import Layer
from headlong.layers.mixture import MixtureLayer
from headlong.links import IDENTITY, Link
from headlong.report import plots
from headlong.report.page import Part, page
from headlong.report.tables import ReportTable


class Capacity(NamedTuple):
    """The ranks and winners of a layer. A mixture has no ``winners``: its classes do not win by one vector alone."""

    layer: Layer | MixtureLayer
    ranks: Ranks
    winners: Winners | None

    @property
    def link(self) -> Link:
        return self.layer.link if isinstance(self.layer, Layer) else self.layer.matrix.link


def capacity(layer: Layer | MixtureLayer, hidden: Any, stage: Callable[[str], Progress], programs: int = 200) -> Capacity:
    """Ranks of the log-probabilities of ``hidden [queries, dim]``, and which classes can be first."""
    found = ranks(layer, hidden, stage("log-probabilities and their ranks"))
    won = winners(layer, stage("classes that can be first"), programs) if isinstance(layer, Layer) else None
    return Capacity(layer, found, won)


def lines(found: Capacity) -> Iterator[tuple[str, str, str]]:
    """``(what, number, what it means)``, for people."""
    rank, won = found.ranks, found.winners
    shape = f"{rank.queries:,} x {rank.classes:,}"
    yield "log-probabilities", shape, "hidden vectors by classes, evenly spread"
    bound = f"a softmax of {rank.dim:,} dimensions cannot exceed {rank.most:,} here"
    yield "press rank", f"{rank.press:,}", bound
    for eps, number in rank.effective.items():
        yield f"effective rank, {eps:g}", f"{number:,}", f"directions that hold all but {eps:g} of the energy"
    if won is None:
        return
    yield "can be first", f"{int(won.found.sum()):,}", "a hidden vector that puts the class before all others was found"
    named = ", ".join(map(str, won.never[:10].tolist())) + (", ..." if len(won.never) > 10 else "")
    yield "never first", f"{len(won.never):,}", f"no hidden vector does: {named}" if len(won.never) else "there is none"
    if len(won.open):
        yield "open", f"{len(won.open):,}", "neither was shown; more --programs decide more of them"


def as_json(found: Capacity) -> dict[str, Any]:
    """The numbers for programs."""
    rank, won = found.ranks, found.winners
    facts: dict[str, Any] = {"queries": rank.queries, "classes": rank.classes, "dim": rank.dim, "softmax_rank": rank.most}
    facts |= {"press_rank": rank.press, "effective_rank": {f"{eps:g}": number for eps, number in rank.effective.items()}}
    facts |= {"log_prob_singular_values": rank.singular.tolist(), "link": found.link.as_dict()}
    if won is not None:
        facts |= {"can_be_first": int(won.found.sum()), "never_first": won.never.tolist(), "open": won.open.tolist()}
    return facts


def table(found: Capacity) -> ReportTable:
    return ReportTable("Capacity", ("", "", "what it means"), tuple(lines(found)))


def html_page(found: Capacity, name: str) -> str:
    """The table, the curve of the singular values, and the link where there is one."""
    parts: list[Part] = [repr(found.layer), table(found)]
    if plots.installed():
        values = [float(value) for value in found.ranks.singular if value > 0]
        parts.append(plots.curve("Singular values of the log-probabilities", values, ("direction", "singular value")))
        if found.link != IDENTITY:
            parts.append(link_plot(found.link))
    return page(f"headlong capacity {name}", parts)


def link_plot(link: Link, reach: float = 20.0) -> plots.Figure:
    """``f(z) - f(0)`` over ``[-reach, reach]``, with the identity for comparison."""
    z = np.linspace(-reach, reach, 161)
    drawn = {"identity": z, "f(z)": np.asarray(link(z)) - float(link(0.0))}
    lines = {name: list(zip(z.tolist(), f.tolist(), strict=True)) for name, f in drawn.items()}
    return plots.functions("Link", lines, ("z", "f(z)"))
