"""Ganea et al. (2019): what a curve alone adds to a softmax whose training is over.

::

    log p = log_softmax(f(z)),  z the logits of a finished layer, fixed;  f fitted on validation text, perplexity on test text

A word LSTM on Penn Treebank, 2 x 200. Training a model with a curve from its first step mixes what the curve can
express with how fast it lets the model learn; here only the first is left. "none" is the layer as it is; what PLIF adds
beyond a temperature, which only makes all logits larger or smaller, is what the bend is worth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from headlong import Layer
from headlong.store import open_file
from studies.papers import Context, PaperTable, Row, Setting, register

LAYER, HIDDEN = "harvest/ptb-lstm/layer.safetensors", "harvest/ptb-lstm/hidden.safetensors"
STEPS, BATCH, STRIDE = 100, 1024, 0.03
"""Adam's steps, rows of each, and how far a step moves a parameter at first; its rate falls along a line."""
MEASURED, PIECE = 20_480, 1024
"""Test vectors, evenly spread, and how many logits' rows are held at once."""
CURVES: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("dense", {}),
    "temperature": ("temperature", {}),
    "PLIF, 256 knots": ("plif", {}),
    "PLIF, 1e5 knots": ("plif", {"knots": 100_000}),
    "monotone network, K = 16": ("monotone", {}),
    "monotone network, K = 1,000": ("monotone", {"units": 1000}),
}


def planned() -> list[Setting]:
    return [(("curve", name),) for name in CURVES]


def run(context: Context) -> Iterator[Row]:
    """The rows that are not there yet."""
    todo = [row for row in planned() if row not in context.done and context.wants(row)]
    layer, file = Layer.load(context.data / LAYER), open_file(context.data / HIDDEN)
    valid, test = ((file.read(f"{split}_hidden"), file.read(f"{split}_target")) for split in ("valid", "test"))
    chosen = np.linspace(0, len(test[1]) - 1, min(MEASURED, len(test[1]))).astype(np.int64)
    for row in todo:
        name = row[0][1]
        found = fitted(layer, name, valid, (test[0][chosen], test[1][chosen]), context)
        yield Row(row, {key: float(f"{value:.6g}") for key, value in found.items()})


def fitted(layer: Layer, name: str, valid: Any, test: Any, context: Context) -> dict[str, float]:
    """Perplexities before and after, on both texts."""
    import torch

    from headlong.heads import build_head

    torch.manual_seed(0)
    kind, options = CURVES[name]
    head: Any = build_head(kind, layer.dim, layer.vocab, **options)
    bias = np.zeros(layer.vocab) if layer.bias is None else layer.bias
    rows = {
        "weight": torch.from_numpy(np.array(layer.weight, np.float32)),
        "bias": torch.from_numpy(np.array(bias, np.float32)),
    }
    head.load_state_dict(head.state_dict() | rows)

    def loss(hidden: Any, target: Any) -> Any:
        return head(torch.from_numpy(hidden.astype(np.float32)), torch.from_numpy(target.astype(np.int64))).loss

    def perplexity(rows: Any) -> float:
        with torch.no_grad():
            parts = [slice(at, at + PIECE) for at in range(0, len(rows[1]), PIECE)]
            total = sum(float(loss(rows[0][part], rows[1][part])) * len(rows[1][part]) for part in parts)
        return math.exp(total / len(rows[1]))

    learned = [one for part, one in head.named_parameters() if part not in rows]
    for part in rows:
        head.get_parameter(part).requires_grad_(False)
    if learned:
        progress, draw, stride = context.stage(name), np.random.default_rng(0), STRIDE / head.curve.gain
        optimiser = torch.optim.Adam(learned, stride)
        for step in range(STEPS):
            optimiser.param_groups[0]["lr"] = stride * (1 - step / STEPS)
            mine = np.sort(draw.integers(0, len(valid[1]), BATCH))
            optimiser.zero_grad()
            loss(valid[0][mine], valid[1][mine]).backward()
            optimiser.step()
            progress(step + 1, STEPS)
    return {"parameters": float(sum(one.numel() for one in learned)), "test": perplexity(test)}


register(
    PaperTable(
        paper="ganea2019",
        table="finished",
        claim="what a curve adds to a finished softmax if it is fitted alone, word LSTM on Penn Treebank",
        source="nothing of the kind was printed, the talk trains model and curve together; checked",
        needs=(LAYER, HIDDEN),
        run=run,
        planned=planned,
    )
)
