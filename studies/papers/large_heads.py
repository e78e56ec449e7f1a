"""What SVD-softmax and our codes read of the heads of Gemma 3 270M and Qwen2.5-Coder-0.5B, and whether it is right.

    python benchmarks/fetch_models.py gemma3-270m qwen2.5-coder-0.5b
    python -m studies reproduce vlasova-softmax:large results/studies/large-heads.json

    read     bytes read for a query, of a full float32 matrix's          rows   rows read whole, of all
    top1, top10    how many of the best of a full product in float64 are found

On the same ``ASKED`` vectors of WikiText-2's validation text, one at a time: SVD-softmax as published (W = D/8, N = V/10), and
our codes, with a bound on each answer. AdaptiveSoftmax on these heads has tables of its own: ``baharav2024:gemma-wikitext2``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headlong as hl
from benchmarks.common import real_layers
from headlong import Layer
from studies.papers.adaptive_softmax.tables import LARGE
from studies.papers.scripts import keep

ASKED, TOP = 100, 10
Vectors = NDArray[Any]


def compared(layer: Layer, train: Vectors, hidden: Vectors) -> Iterator[dict[str, Any]]:
    """A row for each method."""
    exact = hidden.astype(np.float64) @ np.asarray(layer.weight, np.float64).T
    exact += 0.0 if layer.bias is None else np.asarray(layer.bias, np.float64)
    best = np.argsort(-exact, axis=1, kind="stable")[:, :TOP]
    svd = {"method": "svd", "width": layer.dim // 8, "rows": -(-layer.vocab // 10), "log_probs": False}
    for name, options in (("SVD-softmax", svd), ("ours", {"method": "codes", "calibration": train})):
        engine = hl.compile(layer, threads=1, **options)
        answers = [engine.topk(one[None], TOP) for one in hidden]  # one at a time: a batch shares what it reads
        held = [len(set(one.ids[0].tolist()) & set(wanted)) for one, wanted in zip(answers, best.tolist(), strict=True)]
        yield {
            "method": name,
            "read": round(float(np.mean([one.cost.bytes[0] for one in answers])) / (4 * layer.vocab * layer.dim), 5),
            "rows": round(float(np.mean([one.cost.rows[0] for one in answers])) / layer.vocab, 5),
            "top1": round(float(np.mean([one.ids[0, 0] for one in answers] == best[:, 0])), 4),
            "top10": round(float(np.mean(held)), 3),
        }


def main(file: str) -> None:
    runs = []
    for name, (_, about, _, _) in LARGE.items():
        one = real_layers.load(name)
        hidden = one.valid[np.linspace(0, len(one.valid) - 1, ASKED).astype(np.int64)]
        shape = {"name": name, "layer": about, "vocab": one.layer.vocab, "dim": one.layer.dim, "queries": ASKED}
        for got in compared(one.layer, one.train, hidden):
            sys.stderr.write(f"{about}: {got}\n")
            runs.append(shape | got)
    keep(file, "vlasova-softmax:large", {"runs": runs})
