"""What batches cost in the worst case of a storm: a recommender-like layer, every way of reading it, against the dense scan.

::

    python tests/storm/costs.py --cases 150 --json storm-costs.json      (`just storm-costs`; wants a quiet machine)

The cases are the storm's, on 12,103 classes of 64 numbers whose norms spread by exp(0.4 N), in batches of 8 and 64: methods,
options, links, biases, dtypes, calibrations, promises and how far logits spread are drawn as there. The dense scan is
``method="full"``; both have one thread, and times are processor times, the least of some turns.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "helpers")]

from again import ratio  # noqa: E402
from cases import Case, build, compiled, draw  # noqa: E402

import headlong as hl  # noqa: E402
from headlong.errors import HeadlongError  # noqa: E402

VOCAB, DIM, BATCHES = 12_103, 64, (8, 64)
READERS = ("codes", "auto")
TURNS = 7


def recommender(number: int, vocab: int = VOCAB, dim: int = DIM) -> Case | None:
    """The storm's case of this number on a recommender's layer; None where it reads no matrix by a promise."""
    case = draw(number)
    if case.method not in READERS:
        return None
    k = case.k if case.k < vocab else 10
    return replace(
        case, vocab=vocab, dim=dim, batch=BATCHES[number % 2], spectrum="long tail", mask="none", k=min(k, 100),
        threads=1,
    )  # fmt: skip


def cost(case: Case) -> dict[str, Any] | None:
    """Time over the dense scan's, and what was read; None where the case is refused."""
    thrown = build(case)
    options = dict(case.options) | {"eps": case.eps, "delta": case.delta, "seed": case.number}
    options |= {} if thrown.vectors is None else {"calibration": thrown.vectors}
    try:
        engine = compiled(case, thrown.layer, options)
    except HeadlongError:
        return None
    dense = hl.compile(thrown.layer, "full", eps=case.eps, threads=case.threads)
    spent = engine.topk(thrown.hidden, case.k).cost
    found = {
        "ratio": round(ratio(engine, dense, thrown.hidden, case.k, TURNS), 3),
        "rows": float(spent.rows.mean()) / case.vocab, "dense": float(spent.dense.mean()),
        "bytes": round(float(spent.bytes.sum() / dense.topk(thrown.hidden, case.k).cost.bytes.sum()), 3),
    }  # fmt: skip
    return found | asdict(case)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=150)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--classes", type=int, default=VOCAB)
    parser.add_argument("--dimensions", type=int, default=DIM)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found, number = [], given.first
    while len(found) < given.cases:
        case = recommender(number, given.classes, given.dimensions)
        one = None if case is None else cost(case)
        found += [] if one is None else [one]
        number += 1
    found.sort(key=lambda one: -one["ratio"])
    for one in found[:25]:
        words = ("ratio", "dense", "number", "batch", "method", "options", "link", "spread", "calibration", "eps", "delta")
        print({name: one[name] for name in words})
    beyond = sum(one["ratio"] > 1.1 for one in found)
    print(f"{len(found)} cases, {beyond} beyond 1.1 times the dense scan, worst {found[0]['ratio']}")
    if given.json is not None:
        about: dict[str, Any] = {"version": hl.__version__, "machine": platform.machine(), "turns": TURNS}
        about |= {"classes": given.classes, "dimensions": given.dimensions, "cases": len(found)}
        about |= {"beyond 1.1": beyond, "median": found[len(found) // 2]["ratio"]}
        given.json.write_text(json.dumps(about | {"worst": found[:25]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
