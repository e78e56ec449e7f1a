"""Ganea et al. (2019), *Breaking the softmax bottleneck via learnable monotonic pointwise non-linearities*: synthetic study.

::

    P*(. | c) ~ Dirichlet(alpha) over M outcomes, N contexts        P(. | c) = head(h_c), free h_c, shared rows w_x
    kl           mean over contexts of KL(P* || P)                  cross_entropy = kl + entropy of P*
    mode_match   % of contexts whose likeliest outcome is P*'s

N = M = 300, full-batch Adam at 0.03 under a cosine, 1,000 steps, h and w from 0.3 N(0, 1). Every row is one alpha, d, head
and seed; the study goes on where ``results/`` ends. The paper's own grid and values are not available: what is checked is
that a learned piecewise-linear link (PLIF) matches modes where a linear softmax of the same d does not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from studies.papers import Context, PaperTable, Row, Setting, register

if TYPE_CHECKING:
    from torch import Tensor

SIZE, STEPS, RATE = 300, 1000, 0.03
ALPHAS, DIMS, SEEDS = (0.01, 0.1), (4, 8, 2, 16, 32), (1, 2, 3)
COMPONENTS = 4
FITTED_HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("identity", {}),
    "PLIF, 256 knots": ("plif", {"knots": 256, "gain": 1.0}),
    "SigSoftmax": ("sigsoftmax", {}),
    "GSS(-1.5, 2.5)": ("gss", {"centre": -1.5, "power": 2.5}),
    "temperature": ("temperature", {"gain": 1.0}),
    "monotone network": ("monotone", {"gain": 1.0}),
    "PLIF, 1e5 knots, random": ("plif", {"knots": 100_000, "start": "random", "gain": 1.0}),
    "PLIF, 1e5 knots, random, frozen": ("plif", {"knots": 100_000, "start": "random", "gain": 1.0, "frozen": True}),
    f"mixture of {COMPONENTS}, own contexts": ("identity", {}),
}


def setting(alpha: float, dim: int, head: str, seed: int) -> Setting:
    return (("alpha", f"{alpha:g}"), ("d", str(dim)), ("head", head), ("seed", str(seed)))


def planned() -> list[Setting]:
    """Every row, the claim's first."""
    return [setting(alpha, dim, head, seed) for alpha in ALPHAS for dim in DIMS for seed in SEEDS for head in FITTED_HEADS]


def run(context: Context) -> Iterator[Row]:
    """The rows that are not there yet."""
    todo = context.left(planned())
    progress = context.stage(f"fit {len(todo)} of {len(planned())} rows")
    for done, row in enumerate(todo):
        facts = dict(row)
        yield Row(row, fit(float(facts["alpha"]), int(facts["d"]), facts["head"], int(facts["seed"])))
        progress(done + 1, len(todo))


def targets(alpha: float, seed: int, size: int = SIZE) -> np.ndarray[Any, np.dtype[np.float64]]:
    """``[contexts, outcomes]``, rows that sum to one; the same for every head and d."""
    rng = np.random.default_rng([seed, round(alpha * 1000)])
    # as exp(log gamma): with a small alpha most of a row would underflow to exact zeros otherwise
    logs = np.log(rng.gamma(alpha + 1, size=(size, size))) + np.log(rng.uniform(size=(size, size))) / alpha
    mass = np.exp(logs - logs.max(1, keepdims=True))
    return np.asarray(mass / mass.sum(1, keepdims=True))


def fit(alpha: float, dim: int, head: str, seed: int, steps: int = STEPS) -> dict[str, float]:
    """One row of the study."""
    import torch

    from headlong.heads import build_head

    started = time.process_time()
    torch.manual_seed(seed)
    wanted = torch.from_numpy(targets(alpha, seed)).float()
    size, own = len(wanted), COMPONENTS if head.startswith("mixture") else 1
    name, options = FITTED_HEADS[head]
    contexts, rows = (0.3 * torch.randn(size, own, dim)).requires_grad_(), (0.3 * torch.randn(size, dim)).requires_grad_()
    bias, prior = torch.zeros(size, requires_grad=True), torch.zeros(size, own, requires_grad=True)
    curve: Any = build_head(name, 1, 2, **options).curve if name != "identity" else torch.nn.Identity()

    def log_prob() -> Tensor:
        parts = [curve(contexts[:, k] @ rows.T + bias).log_softmax(-1) for k in range(own)]
        return parts[0] if own == 1 else torch.logsumexp(torch.stack(parts, 1) + prior.log_softmax(-1)[..., None], 1)

    learned = [contexts, rows, bias, *([prior] if own > 1 else []), *(p for p in curve.parameters() if p.requires_grad)]
    optimiser = torch.optim.Adam(learned, RATE)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * (1 + math.cos(math.pi * step / steps)) / 2
        optimiser.zero_grad()
        loss = -(wanted * log_prob()).sum(1).mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimiser.step()
    with torch.no_grad():
        found = log_prob().double()
    exact = torch.from_numpy(targets(alpha, seed))
    entropy = float(-torch.xlogy(exact, exact).sum(1).mean())
    crossed = float(-(exact * found).sum(1).mean())
    matched = 100 * float((found.argmax(1) == exact.argmax(1)).double().mean())
    values = {"kl": crossed - entropy, "cross_entropy": crossed, "mode_match": matched}
    values["seconds"] = time.process_time() - started
    return {key: float(f"{value:.5g}") for key, value in values.items()}


register(
    PaperTable(
        paper="ganea2019",
        table="synthetic",
        claim="a learned monotone link matches modes that a linear softmax of the same dimension cannot",
        source="the talk, checked: curves without values, nothing that a number could be judged by",
        needs=(),
        run=run,
        planned=planned,
    )
)
