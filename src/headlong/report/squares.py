"""Which things belong to which, as rows of squares in an SVG; the rest is in :mod:`headlong.report.plots`."""

from __future__ import annotations

from collections.abc import Sequence

from headlong.report.plots import RIGHT, WIDTH, _svg, _text


def cells(title: str, filled: Sequence[Sequence[int]], columns: int, names: tuple[str, str]) -> str:
    """Which of ``columns`` belong to each row: row r has the squares ``filled[r]``, counted from 0."""
    left, wide, tall = 60, (WIDTH - 60 - RIGHT) / columns, 24
    height = tall * len(filled) + 60
    marks = [f'<path class="grid" d="M{left} {24 + tall * row}H{WIDTH - RIGHT}"/>' for row in range(len(filled) + 1)]
    for row, places in enumerate(filled):
        y = 24 + tall * row
        marks.append(f'<text class="soft" x="{left - 8}" y="{y + 16}" text-anchor="end">{row + 1}</text>')
        boxes = "".join(f'<rect class="mark" x="{left + wide * at:.1f}" y="{y + 3}" width="{wide:.1f}" height="{tall - 6}"/>'
                        for at in places)  # fmt: skip
        marks.append(f"<g><title>{row + 1}: {_text(_runs(places))}</title>{boxes}</g>")
    ends = f"{names[0]}: 1 to {columns}"
    marks.append(f'<text class="soft" x="{WIDTH - RIGHT}" y="{height - 12}" text-anchor="end">{_text(ends)}</text>')
    marks.append(f'<text class="soft" x="{left}" y="14">{_text(names[1])}</text>')
    words = "; ".join(f"{row + 1}: {_runs(places)}" for row, places in enumerate(filled))
    return _svg(f"{title}. {words}", height, marks)


def _runs(places: Sequence[int]) -> str:
    """``[0, 1, 2, 7]`` as "1 to 3, 8"."""
    ends = sorted(places)
    starts = [at for index, at in enumerate(ends) if index == 0 or at != ends[index - 1] + 1]
    stops = [at for index, at in enumerate(ends) if index == len(ends) - 1 or at != ends[index + 1] - 1]
    return ", ".join(f"{a + 1} to {b + 1}" if a < b else f"{a + 1}" for a, b in zip(starts, stops, strict=True)) or "none"
