"""What stands beside learned experts at the same frozen backbone (Liao et al. 2019).

::

    frequent      the V / ratio most frequent classes of the trained layer: one expert, no gate, no training
    full          the layer as it is
    full-tuned    trained on with the experts' batches, dropout and optimiser: is a gain the experts' or the training's?
    d-softmax     the first D, D/2 and D/4 columns of the layer's rows by falling frequency, trained on in the same way
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headlong.bench.measure import Progress
from studies.papers.doubly_sparse import tasks as study

if TYPE_CHECKING:
    from torch import Tensor

    from headlong.heads import DenseHead, DifferentiatedHead
    from studies.models.experts.lasso_ramp_plan import TrainingPlan

PIECE = 1024
TUNED = 600
"""Steps of the controls; the experts' own, of all stages together, are in their rows."""


Logits = Callable[["Tensor"], "Tensor"]


def full(data: study.Data) -> dict[str, float]:
    weight, bias = rows_of(data)
    return {**accuracy(data, lambda hidden: hidden @ weight.T + bias), "flops": 1.0}


def accuracy(data: study.Data, logits: Logits, place: NDArray[np.int64] | None = None) -> dict[str, float]:
    """A target is among the k likeliest where fewer than k logits are above its own; never where ``place`` has none for it."""
    import torch

    target = torch.from_numpy(data.target if place is None else place[data.target])
    hits = torch.zeros(len(study.TOPS))
    with torch.inference_mode():
        for hidden, mine in zip(torch.split(torch.from_numpy(data.hidden), PIECE), torch.split(target, PIECE), strict=True):
            z = logits(hidden)
            above = (z > z.gather(1, mine.clamp_min(0)[:, None])).sum(1)
            hits += torch.stack([((above < top) & (mine >= 0)).sum() for top in study.TOPS])
    return {f"top{top}": round(float(hit) / len(target), 4) for top, hit in zip(study.TOPS, hits, strict=True)}


def frequent(data: study.Data, ratio: float) -> dict[str, float]:
    """The layer's rows of the ``V / ratio`` classes that come most often in training: one expert, no gate, no training."""
    weight, bias = rows_of(data)
    vocab = len(weight)
    counts = np.bincount(np.asarray(data.train.target), minlength=vocab)
    kept = np.sort(np.argsort(-counts, kind="stable")[: round(vocab / ratio)])
    place = np.full(vocab, -1, np.int64)
    place[kept] = np.arange(len(kept))
    few, offset = weight[kept], bias[kept]
    found = accuracy(data, lambda hidden: hidden @ few.T + offset, place)
    return {**found, "flops": round(vocab / len(kept), 2), "hit": round(float((place[data.target] >= 0).mean()), 4)}


def tuned(
    data: study.Data, plan: TrainingPlan, method: str, seed: int, progress: Progress, state: Path | None = None
) -> dict[str, float]:
    """The layer, or its blocks of falling width, trained on at the frozen backbone with the experts' batches and dropout.

    A training that was stopped goes on from the file ``state``.
    """
    import torch
    from torch.nn import functional

    from headlong.heads import DenseHead
    from studies.models.checkpoint import Paused
    from studies.models.optimisers import products

    head = _from_layer(data, method)
    optimiser = torch.optim.Adam(head.parameters(), plan.rate, betas=(0.9, 0.99), fused=True)
    paused = Paused(state, head, optimiser)
    for step in range(paused.begin(), TUNED):
        torch.manual_seed(seed * TUNED + step)
        for group in optimiser.param_groups:
            group["lr"] = plan.rate * (1 - 0.9 * step / TUNED)
        rows = torch.randint(len(data.train.target), (plan.batch,))
        hidden = functional.dropout(data.train.hidden[rows].float(), plan.dropout)
        with products():
            loss = head(hidden, data.train.target[rows]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        paused.done(step + 1)
        progress(step + 1, TUNED)
    head.eval()
    if isinstance(head, DenseHead):
        return {**accuracy(data, head.logits), "flops": 1.0, "steps": TUNED}
    vocab, dim = data.layer.vocab, data.layer.dim
    cost = sum(size * width for size, width in zip(head.sizes, head.widths, strict=True))
    found = accuracy(data, head.logits, head.place.numpy())
    return {**found, "flops": round(vocab * dim / cost, 2), "steps": TUNED}


def _from_layer(data: study.Data, method: str) -> DenseHead | DifferentiatedHead:
    import torch

    from headlong.heads import DenseHead, DifferentiatedHead
    from headlong.heads.frequency import class_counts

    weight, bias = rows_of(data)
    vocab, dim = weight.shape
    if method == "full-tuned":
        dense = DenseHead(dim, vocab)
        dense.load_state_dict({"weight": weight, "bias": bias})
        return dense
    head = DifferentiatedHead(dim, vocab, counts=class_counts(np.asarray(data.train.target), vocab))
    with torch.no_grad():
        for part, ids in zip(head.weights, torch.split(head.order, head.sizes), strict=True):
            part.copy_(weight[ids, : part.shape[1]])
        if head.bias is not None:
            head.bias.copy_(bias[head.order])
    return head


def rows_of(data: study.Data) -> tuple[Tensor, Tensor]:
    import torch

    weight = torch.from_numpy(np.array(data.layer.weight, np.float32))
    bias = torch.zeros(len(weight)) if data.layer.bias is None else torch.from_numpy(np.array(data.layer.bias, np.float32))
    return weight, bias
