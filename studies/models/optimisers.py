"""Optimisers, learning rates that are functions of where a run stands, and types of products::

    adam       torch's, fused           sgd     torch's, plain

    rate       rate * (up over a tenth of the run, then a half cosine down to 1/100)

    products   in bfloat16 where it is wanted and the processor can, in float32 otherwise: PyTorch takes longer in bfloat16
               without such instructions, and cannot run an LSTM in it; records say which it was
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch import nn

from studies.models.recipe import Training

UP = 0.1
FLOOR = 0.01


@cache
def has_bfloat16() -> bool:
    """Whether oneDNN, which makes PyTorch's products on a CPU, has kernels for bfloat16 here."""
    there: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return there and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001


def product_type(wanted: bool = True) -> torch.dtype:
    return torch.bfloat16 if wanted and has_bfloat16() else torch.float32


def products(wanted: bool = True) -> AbstractContextManager[None]:
    """Autocast where products are bfloat16's; nothing where they are float32's."""
    half = product_type(wanted) is torch.bfloat16
    return torch.autocast("cpu", torch.bfloat16) if half else nullcontext()


def product_facts(wanted: bool = True) -> dict[str, str]:
    """For the environment of a record."""
    return {"products": str(product_type(wanted)).removeprefix("torch.")}


def build_optimiser(parameters: Iterable[nn.Parameter], training: Training) -> torch.optim.Optimizer:
    if training.optimiser == "adam":
        return torch.optim.Adam(parameters, training.rate, fused=True)  # one pass over the weights instead of a dozen
    return torch.optim.SGD(parameters, training.rate)


def rate_at(training: Training, step: int, total: int) -> float:
    """The learning rate of ``step`` out of ``total``."""
    done = step / max(1, total)
    if done < UP:
        return training.rate * max(FLOOR, done / UP)
    return training.rate * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * (done - UP) / (1 - UP))) / 2)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate
