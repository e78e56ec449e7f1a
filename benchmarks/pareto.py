"""Speed against recall of one benchmark run, as an SVG file.

    python benchmarks/pareto.py results/bench-wikitext2.json docs/figures/bench-wikitext2.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

from headlong.bench.measure import read_run
from headlong.report.page import STYLE, speed_and_misses
from headlong.report.plots import standalone
from headlong.report.summaries import summaries

if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    figure = speed_and_misses(summaries(read_run(sys.argv[1])))
    Path(sys.argv[2]).write_text(standalone(figure.svg, STYLE) + "\n", encoding="utf-8")
