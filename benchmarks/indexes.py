"""Indexes over the rows of a layer beside headlong: how many of the best ids, in what time, in how much memory.

    python benchmarks/indexes.py --layer smollm2 --json results/beside.json

All are built as their authors recommend for inner products; the bias is one more coordinate. ``x`` is over the fastest dense
product of the same run. One query at a time, k = 10.
"""

from __future__ import annotations

import argparse
import sys

from headlong.bench import measure
from headlong.bench.real_layers import LAYERS, load

OURS = ("headlong", "headlong, calibrated", "headlong, calibrated, ids only")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--layer", default="smollm2", help=f"{', '.join(LAYERS)}, or a folder of 'headlong harvest'")
    parser.add_argument("--only", default="", help="indexes, with semicolons; default: all that are installed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=10.0, help="at most about so many for each way")
    parser.add_argument("--json", help="the file of a page's results; its runs of other layers stay")
    asked = parser.parse_args()
    measure.claim_threads(asked.threads)
    from headlong.bench import rivals, rows

    chosen = [name.strip() for name in asked.only.split(";") if name.strip()]
    searching = chosen or [name for name in rivals.installed() if name not in rivals.DENSE]
    one = load(asked.layer)
    settings = rows.Settings(batches=(1,), threads=asked.threads, rounds=asked.rounds, seconds=asked.seconds)
    names = [*OURS, *rivals.dense_installed(), *searching]
    record = rows.run(one.layer, one.valid, names, settings, lambda label: measure.silent, one.train)
    record["layer"] |= one.facts()
    for row in sorted(record["rows"], key=lambda row: float(row["loop"]["us"])):
        times = f"{row['cold']['us']:9,.0f} us cold {row['loop']['us']:9,.0f} us in a loop"
        sys.stdout.write(f"{row['contestant']:<32} {times} {row['same']:8.2%}\n")
    if asked.json:
        measure.keep(asked.json, "indexes", record, one.name, f"python benchmarks/indexes.py --layer {asked.layer}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
