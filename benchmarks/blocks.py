"""What bounds on sixteen classes at once read of a layer: bytes a query, rows scored, and whether ids are float64's.

    python benchmarks/blocks.py LAYER HIDDEN results/blocks.json [--all]

LAYER and HIDDEN are the trained layer and its vectors; two more are made: a recommender of 12,000 x 64 (items around a few
hundred tastes, with popularity as bias) and one of 10,000 x 100 with the spectrum of a small LSTM's. Every query is one batch
of its own, asked for its ten best, ids proved. ``--all`` checks every hidden vector of the file. No clock: counts only.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import headlong as hl
from headlong.engines.base import Engine
from headlong.layers.matrix import Layer
from headlong.store import open_file

K, ASKED, CALIBRATION, RATE, EPS = 10, 300, 4096, 0.01, 0.01
Rows = NDArray[np.float32]


def recommender(seed: int = 0, count: int = 8000) -> tuple[Layer, Rows]:
    """Items of a few hundred tastes, each of its own size; users near some of them."""
    rng = np.random.default_rng(seed)
    energy = np.arange(1, 65.0) ** -0.35
    tastes = rng.standard_normal((300, 64)) * energy
    items = tastes[rng.integers(0, 300, 12_000)] + 0.35 * rng.standard_normal((12_000, 64)) * energy
    items *= np.exp(0.3 * rng.standard_normal((12_000, 1)))
    users = 1.5 * tastes[rng.integers(0, 300, count)] + rng.standard_normal((count, 64)) * energy
    return Layer(items.astype(np.float32), rng.normal(0, 0.5, 12_000).astype(np.float32)), users.astype(np.float32)


def recurrent(seed: int = 1, count: int = 8000) -> tuple[Layer, Rows]:
    """Rows and vectors whose logits' energy falls as j^-1.5, with the biases of Zipf's law."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((100, 100)))[0]
    energy = np.arange(1, 101.0) ** -0.375
    rows = (rng.standard_normal((10_000, 100)) * energy) @ turn
    vectors = (rng.standard_normal((count, 100)) * energy) @ turn
    bias = -np.log(np.arange(1, 10_001)) + rng.normal(0, 0.3, 10_000)
    return Layer(rows.astype(np.float32), bias.astype(np.float32)), vectors.astype(np.float32)


def wrong(engine: Engine, hidden: Rows) -> tuple[int, list[float], list[int]]:
    """Queries whose ids are not float64's (ties of rounding aside), bytes and rows of each."""
    weight = engine.layer.weight.astype(np.float64)
    bias = 0.0 if engine.layer.bias is None else engine.layer.bias.astype(np.float64)
    missed, read, rows = 0, [], []
    for start in range(0, len(hidden), 64):
        part = hidden[start : start + 64]
        exact = part.astype(np.float64) @ weight.T + bias
        best = np.argpartition(-exact, K, axis=1)[:, :K]
        for row, logits, found in zip(part, exact, best, strict=True):
            top = engine.topk(row[None], K)
            worst = logits[found].min()
            missed += not bool(np.all(logits[top.ids[0]] >= worst - 1e-9 * (1 + abs(worst))))
            read.append(float(top.cost.bytes[0]))
            rows.append(int(top.cost.rows[0]))
    return missed, read, rows


def normaliser(engine: Engine, hidden: Rows) -> dict[str, float]:
    """The same with log-probabilities within EPS: bytes, and how far off the normaliser is."""
    weight = engine.layer.weight.astype(np.float64)
    read, off = [], []
    for row in hidden:
        logits = weight @ row.astype(np.float64) + (0.0 if engine.layer.bias is None else engine.layer.bias)
        top = engine.topk(row[None], K, eps=EPS)
        off.append(abs(float(top.lse[0]) - logits.max() - math.log(np.exp(logits - logits.max()).sum())))
        read.append(float(top.cost.bytes[0]))
    assert max(off) <= EPS
    return {"share_of_float32": float(np.mean(read)) / (4.0 * weight.size), "off": max(off)}


def counted(name: str, layer: Layer, hidden: Rows, every: bool) -> dict[str, Any]:
    """One layer with blocks, without, and with learned bounds."""
    calibration, asked = hidden[:CALIBRATION], hidden[CALIBRATION:]
    few = asked[:: max(1, len(asked) // ASKED)]
    whole = 4.0 * layer.vocab * layer.dim
    found: dict[str, Any] = {"layer": name, "vocab": layer.vocab, "dim": layer.dim, "queries": len(few)}
    for way, options in (
        ("blocks", {"blocks": True}),
        ("classes", {"blocks": False}),
        ("learned", {"blocks": True, "delta_ids": RATE, "over": {"query", "calibration"}}),
    ):
        engine = hl.compile(layer, method="cascade", eps=math.inf, calibration=calibration, **options)
        assert isinstance(engine, Engine)
        missed, read, rows = wrong(engine, np.concatenate([asked, calibration]) if every and way == "blocks" else few)
        found[way] = {
            "share_of_float32": float(np.mean(read)) / whole, "p99_share": float(np.percentile(read, 99)) / whole,
            "rows": float(np.mean(rows)), "wrong": missed, "checked": len(read),
        }  # fmt: skip
        if way != "learned":
            found[way]["within 0.01"] = normaliser(engine, few)
        sys.stdout.write(f"{name}, {way}: {found[way]}\n")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layer", type=Path)
    parser.add_argument("hidden", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--all", action="store_true", help="check every hidden vector of the file")
    options = parser.parse_args()
    file = open_file(options.hidden)
    trained = Layer.load(options.layer, weight="weight", bias="bias")
    hidden = np.concatenate([file.read("train_hidden"), file.read("valid_hidden")]).astype(np.float32)
    runs = [
        counted("WikiText-2, a trained GPT's", trained, hidden, options.all),
        counted("a recommender's, made", *recommender(), every=False),
        counted("an LSTM's, made", *recurrent(), every=False),
    ]
    options.out.write_text(json.dumps({"k": K, "calibration": CALIBRATION, "rate": RATE, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
