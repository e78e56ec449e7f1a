"""Joint steps of any head on stored hidden vectors: Adam, at a rate that falls along a line to a hundredth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from studies.models.optimisers import products

BATCH, RATE = 512, 3e-3


def start(head: Any) -> None:
    """Small weights everywhere, so that every head starts near its own uniform distribution."""
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if "bias" in name:
                parameter.zero_()
            elif "projection" not in name:
                parameter.uniform_(-0.05, 0.05)


def train(
    head: Any, hidden: Any, target: Any, progress: Callable[[int, int], None], passes: int = 1, rate: float | None = None
) -> None:
    """``passes`` over ``hidden [n, dim]``, ``target [n]``; products in bfloat16 where the processor has them."""
    import torch

    steps = max(1, len(target) // BATCH)
    optimiser = torch.optim.Adam([one for one in head.parameters() if one.requires_grad], rate or RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, passes * steps)
    for number in range(passes):
        order = np.random.default_rng(number).permutation(len(target))
        for step in range(steps):
            rows = order[step * BATCH : (step + 1) * BATCH]
            optimiser.zero_grad(set_to_none=True)
            with products():
                loss = head(torch.from_numpy(hidden[rows].astype(np.float32)), torch.from_numpy(target[rows])).loss
            loss.backward()
            optimiser.step()
            schedule.step()
            progress(number * steps + step + 1, passes * steps)
