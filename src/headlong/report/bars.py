"""Bars from zero, to compare a few times at a glance; the other plots are in :mod:`headlong.report.plots`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headlong.report.plots import LETTER, WIDTH, _svg, _text


class Bar(NamedTuple):
    """A length from zero. ``kind`` chooses the colour: "ours", "dense" or "rival"."""

    label: str
    value: float
    note: str
    kind: str


def bars(title: str, rows: Sequence[Bar]) -> str:
    """One bar for each row from zero on an even axis, its value behind it; the title above."""
    left = LETTER * max(len(row.label) for row in rows) + 18
    room = WIDTH - left - LETTER * max(len(row.note) for row in rows) - 16
    most = max(row.value for row in rows)
    marks = [f'<text x="6" y="20" style="font-weight:600">{_text(title)}</text>']
    for index, row in enumerate(rows):
        y, wide = 34 + 30 * index, max(2.0, room * row.value / most)
        marks.append(
            f"<g><title>{_text(row.label)}: {_text(row.note)}</title>"
            f'<text x="{left - 10}" y="{y + 15}" text-anchor="end">{_text(row.label)}</text>'
            f'<rect class="mark {row.kind}" x="{left}" y="{y}" width="{wide:.1f}" height="21" rx="3"/>'
            f'<text x="{left + wide + 8:.1f}" y="{y + 15}">{_text(row.note)}</text></g>'
        )
    words = "; ".join(f"{row.label}: {row.note}" for row in rows)
    return _svg(f"{title}. {words}", 44 + 30 * len(rows), marks)
