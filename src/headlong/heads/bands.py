"""Adaptive bands: a short list of frequent classes, rarer ones in bands of falling width (Grave et al., ICML 2017)::

    head = log_softmax(hidden @ head_weight.T + head_bias)             short list, then one token for each band
    log p(class) = head[class]                                         in the short list
                 = head[token j] + log_softmax(x_j @ weight_j.T + bias_j)[class],  x_j = hidden @ projection_j.T      in band j

What ``torch.nn.AdaptiveLogSoftmaxWithLoss`` computes, with class ids in any order, biases in the bands, no band of width
0, bfloat16 autocast and ``torch.compile(fullgraph=True)``. Frozen, its top-k opens only bands that can matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional

from headlong.errors import OptionError
from headlong.heads.base import Head, HeadOutput, widened
from headlong.heads.dense import copied
from headlong.heads.frequency import frequency_order, places
from headlong.heads.grouped import grouped_log_prob, linear_log_prob
from headlong.layers.bands import Band, BandsLayer
from headlong.layers.matrix import Layer
from headlong.number_checks import flag, wholes

NARROWEST = 8
"""No band is narrower than this, or than the hidden vector where that is narrower."""


class BandsHead(Head):
    """Short list and bands, cut from the classes by falling frequency.

    ``counts``   how often each class occurs; None: ids are in that order already
    ``cutoffs``  where the short list and every band but the last end, rising, as in PyTorch; None: V/16 and V/4
    ``widths``   of each band, not below 8 or dim; None: dim/4, dim/16, ...
    """

    order: Tensor
    place: Tensor
    band: Tensor
    within: Tensor

    def __init__(
        self,
        dim: int,
        vocab: int,
        weight: Tensor | None = None,
        *,
        counts: ArrayLike | None = None,
        cutoffs: Sequence[int] | None = None,
        widths: Sequence[int] | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__(dim, vocab)
        self.refuse_tied(weight)
        self.cutoffs = checked_cutoffs(cutoffs, vocab)
        edges = [*self.cutoffs, vocab]
        self.short, self.sizes = edges[0], [stop - start for start, stop in pairwise(edges)]
        self.widths = checked_widths(widths, dim, len(self.sizes))
        self.has_bias = bias = flag(bias, "bias")
        self._place(frequency_order(counts, vocab), edges)
        self.head_weight = _uniform(self.short + len(self.sizes), dim)
        self.head_bias = nn.Parameter(torch.zeros(len(self.head_weight)), requires_grad=bias)
        self.weights = nn.ParameterList(_uniform(size, width) for size, width in zip(self.sizes, self.widths, strict=True))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(size), requires_grad=bias) for size in self.sizes)
        self.projections = nn.ParameterList(_uniform(width, dim) for width in self.widths)

    def _place(self, order: Tensor, edges: Sequence[int]) -> None:
        """Keeps for each class id its position, its band (-1: short list), and its place there."""
        place = places(order)
        band = torch.bucketize(place, torch.tensor(edges[:-1]), right=True) - 1
        first = torch.tensor([0, *edges[:-1]])[band + 1]
        buffers = {"order": order, "place": place, "band": band, "within": place - first}
        for name, values in buffers.items():
            self.register_buffer(name, values)

    def score(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        band, within = self.band[target], self.within[target]
        entry = torch.where(band < 0, within, self.short + band)
        total = linear_log_prob(hidden, self.head_weight, self.head_bias if self.has_bias else None, entry)
        for number, (weight, bias, projection) in enumerate(zip(self.weights, self.biases, self.projections, strict=True)):
            group = torch.where(band == number, 0, -1)
            starts = torch.tensor([0, len(weight)])
            added = bias if self.has_bias else None
            x = functional.linear(hidden.to(projection.dtype), projection)
            total = total + grouped_log_prob(x, group, within, weight, added, starts)
        return HeadOutput(-total.mean(), total)

    def _head(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden.to(self.head_weight.dtype), self.head_weight, self.head_bias)

    def log_prob(self, hidden: Tensor) -> Tensor:
        head = widened(self._head(hidden)).log_softmax(-1)
        hidden = hidden.to(self.head_weight.dtype)
        parts = [head[:, : self.short]]
        for number, (weight, bias, projection) in enumerate(zip(self.weights, self.biases, self.projections, strict=True)):
            band = functional.linear(functional.linear(hidden, projection), weight, bias)
            parts.append(widened(band).log_softmax(-1) + head[:, self.short + number, None])
        return torch.cat(parts, dim=1)[:, self.place]

    def to_layer(self) -> BandsLayer:
        def matrix(weight: Tensor, bias: Tensor) -> Layer:
            return copied(weight, bias if self.has_bias else None)

        bands = [
            Band(matrix(weight, bias), projection.detach().cpu().clone())
            for weight, bias, projection in zip(self.weights, self.biases, self.projections, strict=True)
        ]
        return BandsLayer(matrix(self.head_weight, self.head_bias), bands, self.order.cpu().numpy())

    def extra_repr(self) -> str:
        bands = " + ".join(f"{size} x {width}" for size, width in zip(self.sizes, self.widths, strict=True))
        return f"{super().extra_repr()}, short list {self.short}, bands {bands}"


def _uniform(rows: int, columns: int) -> nn.Parameter:
    """Torch's own start for a linear layer."""
    bound = columns**-0.5
    return nn.Parameter(torch.empty(rows, columns).uniform_(-bound, bound))


def checked_cutoffs(cutoffs: Sequence[int] | None, vocab: int) -> list[int]:
    """Rising, each band with a class in it."""
    if cutoffs is None:
        return sorted({max(1, vocab // 16), max(1, vocab // 4)})
    found = wholes(cutoffs, "cutoffs", 1, vocab - 1)
    if not found or any(a >= b for a, b in pairwise(found)):
        raise OptionError(f"cutoffs {found}; expected rising numbers from 1 to {vocab - 1}: where short list and bands end")
    return found


def checked_widths(widths: Sequence[int] | None, dim: int, bands: int) -> list[int]:
    """One width for each band, wide enough to distinguish its classes."""
    narrowest = min(NARROWEST, dim)
    if widths is None:
        return [max(narrowest, dim // 4 ** (number + 1)) for number in range(bands)]
    found = wholes(widths, "widths", narrowest, dim)
    if len(found) != bands:
        raise OptionError(f"widths {found} for {bands} bands; expected one for each, from {narrowest} to {dim:,}")
    return found
