"""Optimisers whose whole memory is tensors, learning rates that are functions of where a run stands, and types of products::

    adam       torch's, fused           sgd     torch's, plain
    nt-asgd    w = w - rate * g;  once triggered  average += (w - average) / steps since       (Merity et al. 2017)

    onecycle   rate * (up over a tenth of the run, then a half cosine down to 1/100)
    plateau    rate / 4^(epochs without a better validation figure)

    products   in bfloat16 where it is wanted and the processor can, in float32 otherwise: PyTorch takes longer in bfloat16
               without such instructions, and cannot run an LSTM in it; records say which it was

Nothing here remembers where it is: a resumed run computes the same rates from its step and its history.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor, nn

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


class AveragedSgd(torch.optim.SGD):
    """SGD; from the first step with ``averaging`` on, the mean of the weights since then."""

    averaging = False

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # torch's is decorated, and untyped so
        super().step(closure)
        for parameter in self._parameters() if self.averaging else ():
            state = self.state[parameter]
            if "average" not in state:
                state["average"], state["averaged"] = parameter.detach().clone(), torch.zeros(())
            state["averaged"] += 1
            state["average"] += (parameter - state["average"]) / state["averaged"]

    def _parameters(self) -> Iterator[nn.Parameter]:
        for group in self.param_groups:
            yield from group["params"]

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averages in the place of the weights while the block runs."""
        kept = {p: p.detach().clone() for p in self._parameters() if "average" in self.state[p]}
        for parameter in kept:
            parameter.data.copy_(self.state[parameter]["average"])
        try:
            yield
        finally:
            for parameter, value in kept.items():
                parameter.data.copy_(value)


def build_optimiser(parameters: Iterable[nn.Parameter], training: Training) -> torch.optim.Optimizer:
    if training.optimiser == "adam":
        # decoupled, so that decay 0 is plain Adam; fused is one pass over the weights instead of a dozen
        return torch.optim.AdamW(parameters, training.rate, weight_decay=training.decay, fused=True)
    kind = AveragedSgd if training.optimiser == "nt-asgd" else torch.optim.SGD
    return kind(parameters, training.rate, weight_decay=training.decay)


def rate_at(training: Training, step: int, total: int, losses: Sequence[float]) -> float:
    """The learning rate of ``step`` out of ``total``; ``losses``: one validation figure per epoch, smaller is better."""
    if training.schedule == "onecycle":
        done = step / max(1, total)
        if done < UP:
            return training.rate * max(FLOOR, done / UP)
        return training.rate * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * (done - UP) / (1 - UP))) / 2)
    if training.schedule == "plateau":
        worse = sum(after >= min(losses[:epoch]) for epoch, after in enumerate(losses) if epoch)
        return float(training.rate / 4**worse)
    return training.rate


def is_triggered(losses: Sequence[float], nonmono: int) -> bool:
    """Whether any epoch was worse than the best of all but the ``nonmono`` epochs before it."""
    return any(losses[at] > min(losses[: at - nonmono]) for at in range(nonmono + 1, len(losses)))


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """``{"3.exp_avg": tensor}``: the state of each parameter, by its number."""
    state = optimiser.state_dict()["state"]
    return {f"{i}.{key}": value for i, one in state.items() for key, value in one.items() if torch.is_tensor(value)}


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """The inverse of :func:`optimiser_tensors`."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        number, _, key = name.partition(".")
        state.setdefault(int(number), {})[key] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
