"""The two diagrams of the documentation, computed on small made layers: what a look rules out, and what blocks rule out.

    python tools/diagrams.py docs/figures

writes ``cascade-steps.svg`` and ``blocks-steps.svg``. Intervals, thresholds and boxes are those of the numbers drawn.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from headlong.report.page import PICTURE
from headlong.report.plots import WIDTH, _svg, _text, standalone

BEST = 2
"""Of how many classes the diagrams decide."""


def cascade() -> str:
    """Fourteen classes looked at in four bits: intervals, the threshold of the two best, what is read, what is proved out."""
    rng = np.random.default_rng(7)
    rows, hidden = rng.standard_normal((14, 40)) * np.linspace(0.4, 1.5, 14)[:, None], rng.standard_normal(40)
    scale = np.abs(rows).max(1, keepdims=True) / 7
    coded = np.rint(rows / scale) * scale
    estimate, radius = coded @ hidden, np.linalg.norm(rows - coded, axis=1) * np.linalg.norm(hidden)
    order = np.argsort(-estimate)
    scored = order[:BEST]
    threshold = (rows[scored] @ hidden).min()
    low, high = (estimate - radius).min() - 1, (estimate + radius).max() + 1
    marks = []

    def at(value: float) -> float:
        return 70 + (WIDTH - 250) * (value - low) / (high - low)

    counts = {"scored first": 0, "reaches τ: read": 0, "proved out": 0}
    for line, name in enumerate(order):
        y = 46 + 22 * line
        reaches = "reaches τ: read" if estimate[name] + radius[name] >= threshold else "proved out"
        kind = "scored first" if name in scored else reaches
        counts[kind] += 1
        dim = ' style="opacity:.6"' if kind == "proved out" else ""
        ends = f"{at(estimate[name] - radius[name]):.1f} {y}H{at(estimate[name] + radius[name]):.1f}"
        place = at(rows[name] @ hidden)
        exact = "" if kind == "proved out" else f'<circle class="mark rival" cx="{place:.1f}" cy="{y}" r="4"/>'
        marks.append(
            f'<g{dim}><text class="soft" x="60" y="{y + 4}" text-anchor="end">class {name}</text>'
            f'<path class="span" d="M{ends}"/>'
            f'<circle class="mark" cx="{at(estimate[name]):.1f}" cy="{y}" r="3.5"/>{exact}'
            f'<text class="soft" x="{WIDTH - 165}" y="{y + 4}">{kind}</text></g>'
        )
    bottom = 46 + 22 * len(order)
    marks.append(f'<path class="cut" d="M{at(threshold):.1f} 26V{bottom}"/><text x="{at(threshold) + 6:.1f}" y="24">τ</text>')
    marks.append(_legend(bottom + 18))
    words = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    return _svg(f"Intervals of {len(order)} logits around cheap estimates, and the threshold: {words}", bottom + 34, marks)


def _legend(y: float) -> str:
    parts = ((10, "mark", "estimate"), (110, "mark rival", "exact logit, read"))
    dots = "".join(
        f'<circle class="{kind}" cx="{x}" cy="{y - 4}" r="4"/><text class="soft" x="{x + 10}" y="{y}">{_text(text)}</text>'
        for x, kind, text in parts
    )
    return f'{dots}<text class="soft" x="248" y="{y}">line: where the logit surely is. τ: the worse of the best {BEST}</text>'


def blocks() -> str:
    """Classes in two coordinates, boxes around neighbours, a query: a box whose best corner stays below τ is skipped."""
    rng = np.random.default_rng(3)
    middles = rng.uniform(-1, 1, (12, 2)) * [1.7, 1.0]
    points = (middles[:, None] + 0.13 * rng.standard_normal((12, 5, 2))).reshape(-1, 2)
    query = np.array([0.86, 0.51])
    logits = points @ query
    threshold = np.sort(logits)[-3 * BEST]
    height = 330
    marks = []

    def place(point: np.ndarray) -> tuple[float, float]:
        return WIDTH / 2 - 20 + 150 * point[0], height / 2 + 20 - 125 * point[1]

    opened = 0
    for group in points.reshape(12, 5, 2):
        low, high = group.min(0), group.max(0)
        corner = np.where(query > 0, high, low)
        reaches = corner @ query >= threshold
        opened += bool(reaches)
        (left, bottom), (right, top) = place(low), place(high)
        shade = "" if reaches else ' style="opacity:.6"'
        box = f'x="{left - 5:.1f}" y="{top - 5:.1f}" width="{right - left + 10:.1f}" height="{bottom - top + 10:.1f}" rx="4"'
        x, y = place(corner)
        dots = "".join(f'<circle class="mark" cx="{place(one)[0]:.1f}" cy="{place(one)[1]:.1f}" r="3"/>' for one in group)
        bound = f'<path class="cut" d="M{x - 5:.1f} {y:.1f}h10M{x:.1f} {y - 5:.1f}v10"/>'
        marks.append(f'<g{shade}><rect class="{"open" if reaches else "shut"}" {box}/>{dots}{bound}</g>')
    middle, along = query * threshold / (query @ query), np.array([-query[1], query[0]])
    (x0, y0), (x1, y1) = place(middle - 1.0 * along), place(middle + 1.15 * along)
    marks.append(f'<path class="cut" d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}"/>')
    marks.append(f'<text x="{x1 + 12:.1f}" y="{max(y1, 4) + 12:.1f}">z = τ</text>')
    (hx, hy), (ox, oy) = place(0.5 * query), place(np.zeros(2))
    marks.append(f'<path class="span" d="M{ox:.1f} {oy:.1f}L{hx:.1f} {hy:.1f}"/>')
    marks.append(f'<text x="{hx + 4:.1f}" y="{hy - 4:.1f}">h</text>')
    said = f"{opened} of 12 blocks are opened: the bound at their best corner (cross) reaches τ.", "The others are never read."
    for line, text in enumerate(said):
        marks.append(f'<text class="soft" x="8" y="{height + 10 + 18 * line}">{text}</text>')
    return _svg(f"Boxes around neighbouring classes and a query. {' '.join(said)}", height + 38, marks)


EXTRA = """
svg .cut { stroke: var(--rival); stroke-width: 2; fill: none; }
svg .open { fill: var(--accent); fill-opacity: .13; stroke: var(--accent); } svg .shut { fill: none; stroke: var(--soft); }
"""


def files() -> dict[str, str]:
    """What is written, by name."""
    drawn = {"cascade-steps.svg": cascade(), "blocks-steps.svg": blocks()}
    return {name: standalone(svg, PICTURE + EXTRA) + "\n" for name, svg in drawn.items()}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    for name, text in files().items():
        Path(sys.argv[1], name).write_text(text, encoding="utf-8")
