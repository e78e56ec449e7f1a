"""What the published methods and ours read of the heads of Gemma 3 270M and Qwen2.5-Coder-0.5B, and whether it is right.

    python benchmarks/fetch_models.py gemma3-270m qwen2.5-coder-0.5b
    python -m studies reproduce vlasova-softmax:large results/studies/large-heads.json

    read     bytes read for a query, of a full float32 matrix's
    rows     rows read whole, of all
    top1, top10    how many of the best of a full product in float64 are found

On the same ``ASKED`` vectors of WikiText-2's validation text for every method, one at a time: SVD-softmax as published
(W = D/8, N = V/10, the ten best), AdaptiveSoftmax as published at a delta of 10 % with the multipliers that
``baharav2024:NAME-wikitext2`` fitted (the best class and its probability), and our codes (the ten best and their
probabilities, with a bound on each).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headlong as hl
from benchmarks.common import real_layers
from headlong import Layer
from headlong.errors import DataError
from studies.papers.adaptive_softmax.tables import EPS, LARGE, setting
from studies.papers.cells import RESULTS, lines_of
from studies.papers.scripts import keep

ASKED, TOP = 100, 10
Vectors = NDArray[Any]


def compared(layer: Layer, train: Vectors, hidden: Vectors, arm: float, total: float) -> Iterator[dict[str, Any]]:
    """A row for each method; ``arm`` and ``total`` are AdaptiveSoftmax's multipliers."""
    weight = np.asarray(layer.weight, np.float64)
    bias = 0.0 if layer.bias is None else np.asarray(layer.bias, np.float64)
    best = np.stack([np.argsort(-(weight @ one + bias), kind="stable")[:TOP] for one in hidden.astype(np.float64)])
    del weight
    svd = {"width": layer.dim // 8, "rows": -(-layer.vocab // 10), "log_probs": False}
    adaptive = {"eps": math.log1p(EPS), "delta": 0.1, "published": True, "arm": arm, "sum": total}
    for name, k, options in (
        ("SVD-softmax", TOP, {"method": "svd", **svd}),
        ("AdaptiveSoftmax", 1, {"method": "adaptive", **adaptive}),
        ("ours", TOP, {"method": "codes", "calibration": train}),
    ):
        engine = hl.compile(layer, threads=1, **options)
        answers = [engine.topk(one[None], k) for one in hidden]  # one at a time: a batch shares what it reads
        held = [len(set(one.ids[0].tolist()) & set(wanted)) for one, wanted in zip(answers, best[:, :k].tolist(), strict=True)]
        got = {
            "read": round(float(np.mean([one.cost.bytes[0] for one in answers])) / (4 * layer.vocab * layer.dim), 5),
            "rows": round(float(np.mean([one.cost.rows[0] for one in answers])) / layer.vocab, 5),
            "top1": round(float(np.mean([one.ids[0, 0] for one in answers] == best[:, 0])), 4),
        }
        yield {"method": name, **got} | ({"top10": round(float(np.mean(held)), 3)} if k == TOP else {})


def main(file: str) -> None:
    runs = []
    for name, (_, about, _, _) in LARGE.items():
        wanted = dict(setting("published", 0.1))
        row = next((one for one in lines_of(RESULTS / f"baharav2024.{name}-wikitext2.jsonl") if one["setting"] == wanted), None)
        if row is None:
            raise DataError(f"no multipliers for {about}; run baharav2024:{name}-wikitext2 first")
        one = real_layers.load(name)
        hidden = one.valid[np.linspace(0, len(one.valid) - 1, ASKED).astype(np.int64)]
        shape = {"layer": about, "vocab": one.layer.vocab, "dim": one.layer.dim, "queries": ASKED}
        for got in compared(one.layer, one.train, hidden, row["got"]["arm"], row["got"]["sum"]):
            sys.stderr.write(f"{about}: {got}\n")
            runs.append(shape | got)
    keep(file, "vlasova-softmax:large", {"runs": runs})
