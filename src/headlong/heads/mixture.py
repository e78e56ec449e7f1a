"""Mixtures of softmaxes (Yang, Dai, Salakhutdinov, Cohen, ICLR 2018)::

    h_k = tanh(U_k g + c_k)        pi = softmax(Q g)                            g the hidden vector
    MoS   p(x) = sum_k pi_k softmax_x(f(weight h_k + bias))                     not bounded by the rank of one matrix
    MoC   p(x) = softmax_x(weight (sum_k pi_k h_k) + bias)                      the control: as many parameters, one softmax

``f`` is any curve of ``curves.py``: with SigSoftmax this is MoSS, with PLIF the paper's MoS+PLIF. The loss is taken in log
space from one cross-entropy per component (``chunked_loss.py``): memory grows with ``N K``, never with ``N K vocab``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headlong.heads.base import MOST, Head, HeadOutput, product_type, widened
from headlong.heads.chunked_loss import Problem, scored
from headlong.heads.curves import Identity
from headlong.heads.dense import copied, rows_of_a_piece
from headlong.heads.links import build_curve
from headlong.layers.matrix import Layer
from headlong.layers.mixture import MixtureLayer
from headlong.number_checks import flag, real, whole


class _Components(Head):
    """What both have: ``weight [vocab, latent]``, ``bias``, the projections ``U_k, c_k`` and the prior ``Q``."""

    opaque: ClassVar[bool] = True

    def __init__(
        self, dim: int, vocab: int, weight: Tensor | None = None, *, components: int = 5, latent: int | None = None,
        dropout: float = 0.0, bias: bool = True, chunk: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(dim, vocab)
        latent = dim if latent is None else whole(latent, "latent", 1, MOST)
        self.check_tied(weight, (vocab, latent), ": set latent")
        self.components, self.latent = whole(components, "components", 1, MOST), latent
        self.rows = rows_of_a_piece(chunk, vocab)
        self.weight = nn.Parameter(torch.empty(vocab, latent).uniform_(-0.1, 0.1)) if weight is None else weight
        self.bias = nn.Parameter(torch.zeros(vocab)) if flag(bias, "bias") else None
        self.project = nn.Linear(dim, components * latent)
        self.prior = nn.Linear(dim, components, bias=False)
        self.dropout = nn.Dropout(real(dropout, "dropout", 0.0, 1.0))

    def contexts(self, hidden: Tensor) -> Tensor:
        """``h [N, components, latent]``."""
        made: Tensor = self.dropout(torch.tanh(self.project(hidden.to(self.project.weight.dtype))))
        return made.view(-1, self.components, self.latent)

    def log_prior(self, hidden: Tensor) -> Tensor:
        """``log pi [N, components]``."""
        return widened(self.prior(hidden.to(self.prior.weight.dtype))).log_softmax(-1)

    def logits(self, contexts: Tensor) -> Tensor:
        """``weight h + bias``, in float32 at the least."""
        return widened(nn.functional.linear(contexts.to(self.weight.dtype), self.weight, self.bias))

    def predict(self, hidden: Tensor) -> Tensor:
        rows = max(1, (self.rows or len(hidden)) // self.components)
        return torch.cat([self.log_prob(piece).argmax(-1) for piece in torch.split(hidden, rows)])

    def _frozen(self, layer: Layer, pooled: bool) -> MixtureLayer:
        parts = (self.project.weight, self.project.bias, self.prior.weight)
        project, offset, prior = (part.detach().cpu().float().numpy().copy() for part in parts)
        return MixtureLayer(layer, project, offset, prior, pooled=pooled)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, components={self.components}, latent={self.latent}"


class MixtureHead(_Components):
    """MoS. ``components`` K, ``latent`` the length of ``h_k`` (None: ``dim``), ``dropout`` on ``h_k``, ``curve``, its options.

    ``chunk``  rows of logits (contexts times components) in one piece; None: a power of two with at most 2^24 logits
    """

    def __init__(
        self, dim: int, vocab: int, weight: Tensor | None = None, *, components: int = 5, latent: int | None = None,
        dropout: float = 0.0, curve: str = "identity", bias: bool = True, chunk: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        shared = {"components": components, "latent": latent, "dropout": dropout, "bias": bias, "chunk": chunk}
        super().__init__(dim, vocab, weight, **shared)  # type: ignore[arg-type]  # each as declared above
        self.curve = build_curve(curve, **options)

    def score(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        kind = product_type(hidden, self.weight)
        contexts, prior = self.contexts(hidden).flatten(0, 1), self.log_prior(hidden)
        problem = Problem(contexts, self.weight, self.bias, prior, target, self.curve, self.rows, kind)
        return scored(problem)

    def log_prob(self, hidden: Tensor) -> Tensor:
        """Added up over components one by one: nothing is ``[N, components, vocab]``."""
        contexts, prior = self.contexts(hidden), self.log_prior(hidden)
        total: Tensor | None = None
        for k in range(self.components):
            one = self.curve(self.logits(contexts[:, k])).log_softmax(-1) + prior[:, k, None]
            total = one if total is None else torch.logaddexp(total, one)
        assert total is not None
        return total

    def to_layer(self) -> MixtureLayer:
        return self._frozen(copied(self.weight, self.bias, self.curve.to_link()), pooled=False)


class MixedContextsHead(_Components):
    """MoC, the control: the contexts are mixed before one softmax, so the rank stays that of one matrix."""

    def pooled(self, hidden: Tensor) -> Tensor:
        """``sum_k pi_k h_k``, ``[N, latent]``."""
        contexts = self.contexts(hidden)
        return torch.einsum("nk,nkd->nd", self.log_prior(hidden).exp().to(contexts.dtype), contexts)

    def score(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        pooled, kind = self.pooled(hidden), product_type(hidden, self.weight)
        problem = Problem(pooled, self.weight, self.bias, None, target, Identity(), self.rows, kind)
        return scored(problem)

    def log_prob(self, hidden: Tensor) -> Tensor:
        return self.logits(self.pooled(hidden)).log_softmax(-1)

    def to_layer(self) -> MixtureLayer:
        return self._frozen(copied(self.weight, self.bias), pooled=True)
