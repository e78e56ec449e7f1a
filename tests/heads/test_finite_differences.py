"""Gradients of every head with every option, by finite differences: of losses and of log-probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from headlong.heads import HEADS, build_head

ROWS, DIM, VOCAB = 7, 6, 11
COUNTS = torch.arange(VOCAB).flip(0) + 1
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "bands": [{"cutoffs": [3, 7], "widths": [6, 6]}, {"cutoffs": [4], "widths": [6], "counts": COUNTS, "bias": False}],
    "differentiated": [{}, {"columns": "split", "sizes": [4, 7], "widths": [4, 2]}, {"columns": "project", "bias": False}],
    "dense": [{}, {"bias": False, "chunk": 0}],
    "experts": [{"experts": 3}, {"experts": 2, "load": 1.0, "lasso": 0.01, "expert_lasso": 0.01, "groups": "class"}],
    "mos": [
        {"components": 3}, {"components": 2, "latent": 4, "chunk": 3, "bias": False}, {"curve": "plif", "knots": 20},
        {"curve": "sigsoftmax"}, {"curve": "monotone", "units": 3}, {"curve": "softcap"}, {"components": 1},
    ],
    "moc": [{"components": 3}, {"components": 2, "latent": 4, "chunk": 2}],
    "monotone": [{"units": 4}, {"units": 3, "gain": 1.0, "chunk": 2}],
    "plif": [{"knots": 20}, {"knots": 20, "start": "random", "gain": 1.0}, {"knots": 20, "frozen": True}],
    "temperature": [{}, {"gain": 1.0, "bias": False}],
    "softcap": [{"cap": 3.0}], "gss": [{}, {"centre": 0.5, "power": 3.0}],
    "tree": [{}, {"counts": COUNTS}], "two-level": [{"count": 3}, {"classes": "random"}],
}  # fmt: skip
WEIGHT = torch.linspace(0.5, 2.0, VOCAB, dtype=torch.float64)
CALLS: dict[str, dict[str, Any]] = {
    "mean": {}, "smoothed": {"label_smoothing": 0.2}, "weighted": {"class_weight": WEIGHT}, "spread": {"label_smoothing": 1.0},
    "both": {"label_smoothing": 0.1, "class_weight": WEIGHT}, "ignored": {"ignore_index": 3}, "all": {"ignore_index": None},
}  # fmt: skip
CASES = [(kind, options) for kind in sorted(HEADS) for options in OPTIONS.get(kind, [{}])]


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_gradients_are_slopes(kind: str, options: dict[str, Any]) -> None:
    torch.manual_seed(5)
    head = build_head(kind, DIM, VOCAB, **options).double()
    for part in head.parameters():
        part.data.add_(0.3 * torch.randn_like(part))
    target = torch.randint(VOCAB, (ROWS,))
    target[2] = 3
    hidden = torch.randn(ROWS, DIM, dtype=torch.float64, requires_grad=True)
    own = {name: part for name, part in head.named_parameters() if part.requires_grad}

    def of(read: Callable[[Any], Tensor], *given: Any, **how: Any) -> Callable[..., Tensor]:
        def found(x: Tensor, *values: Tensor) -> Tensor:
            return read(torch.func.functional_call(head, dict(zip(own, values, strict=True)), (x, *given), how))

        return found

    asked = [of(lambda log_probs: log_probs)]
    for how in CALLS.values():
        if kind == "experts" and ("label_smoothing" in how or "class_weight" in how):
            continue  # refused: classes that an expert lacks have no probability
        asked += [of(lambda pair: pair.loss, target, **how), of(lambda pair: pair.output, target, **how)]
    for function in asked:
        assert torch.autograd.gradcheck(function, (hidden, *own.values()), fast_mode=True, atol=1e-6)
