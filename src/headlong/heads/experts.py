"""Doubly sparse softmax (Liao, Chen, Lin, Zhou, Wang 2019): a gate picks one expert, an expert knows some of the classes::

    x = [h, 1]  (bias=True)   or   h  (bias=False, the paper)
    G = softmax(U x)          k = argmax G          g = G[k]
    z_c = g <W^k_c, x>                                      for the classes c that are alive in expert k
    log p(c | h) = z_c - log(sum_{c alive in k} exp(z_c))   every other class has probability 0

    loss = -mean log p(target) + load CV^2(I) + lasso sum_{k,c} ‖W^k_c‖ + expert_lasso E,   I_k = sum of g over k's rows
    E = sum_k sqrt(sum_c ‖W^k_c‖^2)  (groups="expert")   or   sum_c sqrt(mean_k ‖W^k_c‖^2)  (groups="class")

All experts are one packed matrix: a class that was pruned from an expert is not there, neither as a zero logit nor as
memory (``expert_pruning.py`` prunes them, training divides experts). A target that its expert lacks has probability 0 and no
finite loss: there the gate is trained instead, by ``-log`` of its mass on the experts that have it. The gate's probability
scales the bias, too: it is a temperature and never changes an expert's ranking.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from headlong.errors import OptionError
from headlong.heads.base import Head, HeadOutput
from headlong.heads.dense import PIECE
from headlong.layers.experts import ExpertsLayer
from headlong.number_checks import choice, flag, real, whole

ABSENT = -100
"""The place of a target in an expert that lacks it; what ``linear_cross_entropy`` ignores."""
TINY = 1e-12
"""Under a norm's root, so that a row of zeros has a gradient."""
QUIET = 1e-2
"""The least noise of a noisy gate."""


class Route(NamedTuple):
    """``gate [N, K]`` probabilities, ``best [N]``, its probability ``value [N]``, and each expert's rows of the batch."""

    gate: Tensor
    best: Tensor
    value: Tensor
    rows: tuple[Tensor, ...]


class ExpertsHead(Head):
    """``gate [experts, width]``, ``weight [rows, width]``, ``ids [rows]`` ascending inside each expert; width: that of x.

    ``bias``     x has a last coordinate that is 1
    ``load``, ``lasso``, ``expert_lasso``  the weights of the three penalties
    ``groups``   "expert" or "class": which rows ``expert_lasso`` groups; the paper and its code differ
    ``gamma``    rows shorter than this are pruned, in ``units`` of "l2" (‖w‖) or "rms" (‖w‖ / sqrt(width))
    ``noise``    training adds N(0, 1) (softplus(V h) + 0.01) to the gate's logits
    """

    opaque: ClassVar[bool] = True

    def __init__(
        self,
        dim: int,
        vocab: int,
        weight: Tensor | None = None,
        *,
        experts: int = 2,
        bias: bool = True,
        load: float = 0.1,
        lasso: float = 0.0,
        expert_lasso: float = 0.0,
        groups: str = "expert",
        gamma: float = 0.01,
        units: str = "l2",
        noise: bool = False,
    ) -> None:
        super().__init__(dim, vocab)
        whole(experts, "experts", 1, vocab, "an expert has a class or more")
        self.refuse_tied(weight)
        self.load, self.lasso = real(load, "load", 0.0, math.inf), real(lasso, "lasso", 0.0, math.inf)
        self.expert_lasso, self.gamma = real(expert_lasso, "expert_lasso", 0.0, math.inf), real(gamma, "gamma", 0.0, math.inf)
        self.groups, self.units = choice(groups, "groups", ("expert", "class")), choice(units, "units", ("l2", "rms"))
        self.constant = bias = flag(bias, "bias")
        self.gate = nn.Parameter(torch.empty(experts, dim + bias))
        nn.init.kaiming_uniform_(self.gate, a=math.sqrt(5))
        self.noise = nn.Parameter(torch.zeros_like(self.gate)) if flag(noise, "noise") else None
        self.weight = nn.Parameter(torch.empty(experts * vocab, dim + bias).uniform_(-0.1, 0.1))
        self.ids: Tensor
        self.sizes: Tensor
        self.register_buffer("ids", torch.arange(vocab).repeat(experts))
        self.register_buffer("sizes", torch.full((experts,), vocab))

    @property
    def experts(self) -> int:
        return len(self.gate)

    def read(self, hidden: Tensor) -> Tensor:
        """``x [N, width]``: the hidden vectors, with a 1 behind them where there is a bias."""
        x = hidden.to(self.weight.dtype)
        return functional.pad(x, (0, 1), value=1.0) if self.constant else x

    def route(self, x: Tensor) -> Route:
        """Each row's expert. The softmax is over all experts, and the best one's probability is kept as it is."""
        logits = functional.linear(x, self.gate)
        if self.training and self.noise is not None:
            spread = functional.softplus(functional.linear(x, self.noise)) + QUIET
            logits = logits + torch.randn_like(logits) * spread
        gate = logits.softmax(-1)
        best = gate.argmax(-1)
        order = best.argsort(stable=True)
        rows = torch.split(order, torch.bincount(best, minlength=self.experts).tolist())
        return Route(gate, best, gate.gather(1, best[:, None])[:, 0], rows)

    def score(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        with torch.autocast(hidden.device.type, enabled=False):  # a gate in bfloat16 would route otherwise than the layer
            return self._score(hidden, target)

    def weighted(self, hidden: Tensor, target: Tensor, smoothing: float, weight: Tensor | None) -> HeadOutput:
        raise OptionError(
            "label_smoothing or class_weight for an experts head; expected neither: a class that an expert lacks has "
            "probability 0, and there the gate is taught instead"
        )

    def _score(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        x = self.read(hidden)
        route = self.route(x)
        losses, missed = self._losses(x * route.value[:, None], target, route)
        taught = -self._mass(route.gate[missed], target[missed]).log().sum()
        task = (losses.sum() + taught) / len(target)  # of no target NaN, as torch has it
        return HeadOutput(task + self.penalty(route), lambda: -losses.masked_fill(missed, math.inf))

    def penalty(self, route: Route) -> Tensor:
        """The load's squared coefficient of variation and the two lassos, each times its weight."""
        total = self.weight.new_zeros(())
        if self.load:
            importance = torch.zeros_like(self.gate[:, 0]).index_add(0, route.best, route.value)
            total = total + self.load * importance.var(correction=0) / (importance.mean().square() + 1e-10)
        if not (self.lasso or self.expert_lasso):
            return total
        square = self.weight.square().sum(-1)
        if self.lasso:
            total = total + self.lasso * (square + TINY).sqrt().sum()
        if self.expert_lasso and self.groups == "expert":
            of = torch.repeat_interleave(self.sizes)
            groups = torch.zeros_like(self.gate[:, 0]).index_add(0, of, square)
        elif self.expert_lasso:
            groups = square.new_zeros(self.vocab).index_add(0, self.ids, square) / self.experts
        if self.expert_lasso:
            total = total + self.expert_lasso * (groups + TINY).sqrt().sum()
        return total

    def _losses(self, scaled: Tensor, target: Tensor, route: Route) -> tuple[Tensor, Tensor]:
        """``-log p(target) [N]``, 0 where the expert lacks it, and where that is."""
        losses, places = [], torch.full_like(target, ABSENT)
        for expert, (weight, ids) in enumerate(self.parts()):
            rows = route.rows[expert]
            if len(rows) == 0:
                continue
            place = place_of(ids, target[rows])
            places[rows] = place
            piece = max(16, PIECE // len(ids))
            options = nn.LinearCrossEntropyOptions(batch_chunk_size=piece, chunking_method=None) if len(rows) > piece else None
            losses.append(
                functional.linear_cross_entropy(
                    scaled[rows], weight, place, reduction="none", ignore_index=ABSENT, options=options
                )
            )
        order = torch.cat(route.rows)
        found = torch.cat(losses) if losses else scaled.sum(1) * self.weight.sum()  # none, and a gradient for both
        return torch.zeros_like(route.value, dtype=found.dtype).index_put((order,), found), places == ABSENT

    def parts(self) -> list[tuple[Tensor, Tensor]]:
        """Each expert's weight and ids."""
        sizes = self.sizes.tolist()
        return list(zip(torch.split(self.weight, sizes), torch.split(self.ids, sizes), strict=True))

    def _mass(self, gate: Tensor, target: Tensor) -> Tensor:
        """How probable the gate finds the experts that have the target."""
        has = torch.stack([place_of(ids, target) != ABSENT for _, ids in self.parts()], 1)
        return (gate * has).sum(-1).clamp_min(torch.finfo(gate.dtype).tiny)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """``[N, vocab]``; -inf for the classes that a row's expert lacks."""
        x = self.read(hidden)
        route = self.route(x)
        scaled = x * route.value[:, None]
        out = scaled.new_full((len(hidden), self.vocab), -math.inf)
        for rows, (weight, ids) in zip(route.rows, self.parts(), strict=True):
            if len(rows):
                logits = functional.linear(scaled[rows], weight)  # autocast's type, where it is on
                out[rows[:, None], ids] = logits.to(out.dtype).log_softmax(-1)
        return out

    def predict(self, hidden: Tensor) -> Tensor:
        return self.topk(hidden, 1)[:, 0]

    def topk(self, hidden: Tensor, k: int) -> Tensor:
        """``[N, k]`` class ids, likeliest first; -1 where an expert has fewer."""
        x = self.read(hidden)
        route = self.route(x)
        scaled = x * route.value[:, None]
        out = self.ids.new_full((len(hidden), k), -1)
        for rows, (weight, ids) in zip(route.rows, self.parts(), strict=True):
            for some in torch.split(rows, max(16, PIECE // len(ids))):
                best = functional.linear(scaled[some], weight).topk(min(k, len(ids)), -1).indices
                out[some, : best.shape[1]] = ids[best]
        return out

    def replace(self, weight: Tensor, ids: Tensor, sizes: Tensor, gate: Tensor | None = None) -> None:
        """Other rows for the experts, packed, and other gates if given: as pruning and division of experts make them."""
        self.weight = nn.Parameter(weight.detach().clone())
        self.ids, self.sizes = ids.clone(), sizes.clone()
        if gate is not None:
            self.gate = nn.Parameter(gate.detach().clone())

    def to_layer(self) -> ExpertsLayer:
        starts = torch.cat([self.sizes.new_zeros(1), self.sizes.cumsum(0)])
        gate, weight, ids, starts = (part.detach().cpu().clone() for part in (self.gate, self.weight, self.ids, starts))
        return ExpertsLayer(gate.float(), weight, ids, starts, self.vocab, constant=self.constant)

    def _load_from_state_dict(self, state: dict[str, Tensor], prefix: str, *rest: object) -> None:
        """Experts change size as they train: take the shapes of what is loaded."""
        for name in ("gate", "noise", "weight"):
            if prefix + name in state and getattr(self, name) is not None:
                setattr(self, name, nn.Parameter(torch.empty_like(state[prefix + name])))
        for name in ("ids", "sizes"):
            if prefix + name in state:
                setattr(self, name, torch.empty_like(state[prefix + name]))
        super()._load_from_state_dict(state, prefix, *rest)

    def extra_repr(self) -> str:
        sizes = self.sizes.tolist()
        return f"{super().extra_repr()}, experts={self.experts}, alive={min(sizes)}..{max(sizes)}, rows={sum(sizes)}"


def place_of(ids: Tensor, target: Tensor) -> Tensor:
    """Where each target stands in ascending ``ids``; ABSENT where it does not."""
    place = torch.searchsorted(ids, target).clamp_max(len(ids) - 1)
    return torch.where(ids[place] == target, place, ABSENT)
