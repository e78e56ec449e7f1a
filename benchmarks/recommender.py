"""The best items for users, and the nearest words and sentences: headlong, dense products and indexes.

    python benchmarks/recommender.py --layer catalogue --json results/search.json
    python benchmarks/recommender.py --layer movielens-als --json results/search.json

Ids only, k = 10, one user at a time and 64 at once; calibration vectors are other users. ``x`` is over the fastest dense
product.
"""

from __future__ import annotations

import argparse
import sys

from common.real_layers import load
from headlong.bench import measure

LAYERS = ("catalogue", "catalogue-items", "movielens-als", "movielens-bpr", "glove", "sentences")
OURS = ("headlong, ids only", "headlong, calibrated, ids only")
INDEXES = ("faiss flat", "faiss Panorama", "faiss IVF", "hnswlib", "usearch", "scann", "lorann")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--layer", default="catalogue", choices=LAYERS)
    parser.add_argument("--batch", default="1,64")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0, help="at most about so many for each batch size and way")
    parser.add_argument("--without", default="", help="contestants that are left out, such as usearch")
    parser.add_argument("--json", help="the file of a page's results; its runs of other layers stay")
    asked = parser.parse_args()
    measure.claim_threads(asked.threads)
    from headlong.bench import rivals, rows

    one = load(asked.layer)
    settings = rows.Settings(
        batches=rows.batches(asked.batch), threads=asked.threads, rounds=asked.rounds, seconds=asked.seconds
    )
    names = [*OURS, *rivals.dense_installed(), *(name for name in INDEXES if name in rivals.installed())]
    names = [name for name in names if name not in asked.without.split(",")]
    record = rows.run(one.layer, one.valid, names, settings, lambda label: measure.silent, one.train)
    record["layer"] |= one.facts()
    for row in record["rows"]:
        times = "  ".join(f"{way} {row[way]['us']:9,.0f} us {row[way]['x']:5.2f}x" for way in ("cold", "loop"))
        sys.stdout.write(f"{row['batch']:>4}  {row['contestant']:<32} {times} {row['same']:8.2%}\n")
    if asked.json:
        command = f"python benchmarks/recommender.py --layer {asked.layer} --batch {asked.batch}"
        command += f" --without '{asked.without}'" if asked.without else ""
        measure.keep(asked.json, "recommender", record, one.name, command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
