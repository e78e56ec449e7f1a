"""Some joint steps of any head on stored hidden vectors: enough for an engine to have something to read.

Heads whose perplexity counts are trained to the end, by :mod:`separate`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

BATCH, RATE = 512, 3e-3
"""Rows of a step; Adam's first rate, which falls to a hundredth along a line."""


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


def train(head: Any, data: Any, progress: Callable[[int, int], None], epochs: int = 1) -> None:
    """The same steps for every head."""
    import torch

    torch.manual_seed(0)
    steps = len(data.target) // BATCH
    optimiser = torch.optim.Adam(head.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.01, epochs * steps)
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(data.target))
        for step in range(steps):
            rows = order[step * BATCH : (step + 1) * BATCH]
            optimiser.zero_grad(set_to_none=True)
            loss = head(torch.from_numpy(data.hidden[rows].astype(np.float32)), torch.from_numpy(data.target[rows])).loss
            loss.backward()
            optimiser.step()
            schedule.step()
            progress(epoch * steps + step + 1, epochs * steps)


def said(label: str) -> Callable[[int, int], None]:
    """A line on stderr every hundred steps."""

    def progress(done: int, total: int) -> None:
        if done % 100 == 0 or done == total:
            sys.stderr.write(f"{label}: {done}/{total}\n")

    return progress
