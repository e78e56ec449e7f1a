"""What a bet over the query takes, and what the best bound could: rows of a normaliser, by the logits of real queries.

    python benchmarks/bets.py NAME LAYER HIDDEN --json results/bets.json
    python benchmarks/bets.py --made --json results/bets.json

    e        eps * sum of terms / sum of gaps: how far off the mean of X = (term - middle) / gap in [-1, 1] may be
    bet      2 (ln(2 / delta) + 0.8) (s^2 + e / 2) / e^2 draws, s^2 = E[X^2]: what betting.h expects to be enough
    any      ln(1 / (2 delta)) / -ln(1 - e') draws, e' = eps * sum of terms / sum of half widths of the terms' intervals: with
             fewer, classes with a share e' of these are missed by all draws more often than 2 delta. They may be at the upper
             ends of their intervals or at the lower ones, 2 eps apart; what is answered is wrong of one of the two
    own      rows in all, scored and drawn, where as many are scored as make that least: the others have the bet's number
    known    z^2 (Var X) / e^2 draws, z the normal quantile: enough for one who knows the variance, so a normal error
    closer   any, in rows, if a closer look (``price`` rows) is made at what is drawn and only what that leaves is drawn again

Classes with the widest gaps are scored first, as many as make the rows of a bet fewest, but for ``own``. No clock: counts only.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from blocks import recommender, recurrent
from numpy.typing import NDArray

import headlong as hl
from headlong.arrays import evenly
from headlong.bench import measure
from headlong.cli import inputs
from headlong.engines.base import Engine
from headlong.engines.reference.query import Matrix, Query
from headlong.layers.matrix import Layer

QUERIES, CALIBRATION, BEST, DRAWN = 64, 6000, 10, 400
PROMISES = ((0.01, 0.001), (0.05, 0.05))
PRICE = 0.39
"""Of a row of 512 numbers in 16 bits, by its bytes: 384 of codes, and what scales and slacks add."""
Floats = NDArray[np.float64]


def bet(e: Any, spread: Any, delta: float) -> Any:
    """Draws, where the mean of X^2 is ``spread``."""
    return 2 * (math.log(2 / delta) + 0.8) * (spread + 0.5 * e) / e**2


def least(e: Any, delta: float) -> Any:
    """Draws that any valid rule takes."""
    return math.log(2 * delta) / np.log1p(-np.minimum(e, 0.999))


def one(matrix: Matrix, hidden: Floats, eps: float, delta: float, rng: np.random.Generator) -> dict[str, float]:
    """One query: its rows by each rule."""
    query, every = Query(matrix, hidden, np.ones(len(matrix.weight), bool)), np.arange(len(matrix.weight))
    query.look(every)
    estimate, radius = query.estimate.copy(), query.radius.copy()
    logits = matrix.weight.astype(np.float64) @ hidden + (0 if matrix.bias is None else matrix.bias)
    shift = logits.max()
    middle, term = np.exp(estimate - shift), np.exp(logits - shift)
    gap = middle * np.expm1(radius)
    order = np.argsort(-gap)
    rest, squares = (values[order][::-1].cumsum()[::-1] for values in (gap, (term - middle) ** 2 / gap))
    e, spread = eps * term.sum() / rest, squares / rest
    scored = BEST + int(np.argmin((np.arange(len(gap)) + np.where(e < 1, bet(e, spread, delta), 0))[BEST:]))
    drawn = order[scored:]
    e, spread, share = float(e[scored]), float(spread[scored]), gap[drawn] / gap[drawn].sum()
    if e >= 1:
        return {"scored": scored, **dict.fromkeys(("bet", "any", "closer", "known", "error"), 0.0), "own": scored}
    x = (term - middle)[drawn] / gap[drawn]
    variance = float(share @ x**2 - (share @ x) ** 2)
    some = rng.choice(drawn, DRAWN, p=share)
    query.look(np.unique(some))
    left = float(np.mean(np.exp(query.estimate[some] - shift) * np.expm1(query.radius[some]) / gap[some]))
    count, z = float(bet(e, spread, delta)), NormalDist().inv_cdf(1 - delta / 2)
    halves = eps * term.sum() / (middle * np.sinh(radius))[order][::-1].cumsum()[::-1]  # of what as many rows leave, its e'
    lowest = float(least(halves[scored], delta))
    own = float((np.arange(len(gap)) + np.where(halves < 1, least(halves, delta), 0))[BEST:].min())
    closer = lowest * min(1.0, (math.sqrt(PRICE) + math.sqrt(left)) ** 2) if len(matrix.plan.levels) > 1 else lowest
    found = {"scored": scored, "bet": count, "any": lowest, "closer": closer, "known": z * z * variance / e**2}
    return {**found, "error": math.sqrt(variance / count) / e, "own": own}


def rows(name: str, layer: Layer, calibration: Any, asked: Any) -> list[dict[str, Any]]:
    """Each promise: means over queries; ``error`` is the standard deviation that a bet's draws leave, in units of eps."""
    found = []
    for eps, delta in PROMISES:
        engine = hl.compile(layer, "cascade", calibration=calibration, eps=eps, delta=delta, threads=1)
        assert isinstance(engine, Engine)
        matrix, rng = Matrix(layer.weight, layer.bias, engine.norms, layer.link, engine.plan), np.random.default_rng(0)
        each = [one(matrix, row, eps, delta, rng) for row in np.asarray(asked, np.float64)]
        means = {key: float(np.mean([query[key] for query in each])) for key in each[0]}
        found.append({"layer": name, "eps": eps, "delta": delta, "queries": len(each), **means})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("layer", nargs="?", default="")
    parser.add_argument("hidden", nargs="?", default="")
    parser.add_argument("--made", action="store_true", help="the layers that benchmarks/blocks.py makes")
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    if asked.made:
        made = {"a recommender's, made": recommender, "an LSTM's, made": recurrent}
        there = {name: make(count=CALIBRATION + QUERIES) for name, make in made.items()}
        found = [
            row for name, (layer, some) in there.items() for row in rows(name, layer, some[:CALIBRATION], some[CALIBRATION:])
        ]
    else:
        calibration = np.asarray(inputs.hidden(f"{asked.hidden}:train_hidden"))[:CALIBRATION]
        queries = evenly(inputs.hidden(f"{asked.hidden}:valid_hidden"), QUERIES)
        found = rows(asked.name, inputs.layer(asked.layer), calibration, queries)
    known = json.loads(asked.json.read_text(encoding="utf-8"))["rows"] if asked.json.is_file() else []
    kept = [row for row in known if row["layer"] not in {one["layer"] for one in found}]
    record = {"environment": measure.environment(1), "facts": {"price of a closer look": PRICE}, "rows": kept + found}
    asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
