"""Differentiated softmax: many dimensions for frequent classes, few for rare ones (Chen, Grangier and Auli, ACL 2016)::

    z[class] = weight_j[class] @ x_j + bias[class]        x_j: the part of hidden that block j reads
    log_prob = log_softmax(z)                             one softmax over all blocks

``columns`` says what ``x_j`` is: ``"prefix"`` the first ``widths[j]`` numbers, ``"split"`` disjoint slices (as in the paper),
``"project"`` a learned ``projection_j @ hidden``. The default sizes and widths are those of the comparison in Liao et al.
(2019): a quarter of the classes at D, a quarter at D/2, half at D/4, which is half the multiplications of a full softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional

from headlong.errors import OptionError
from headlong.heads.base import Head, HeadOutput, widened
from headlong.heads.frequency import frequency_order, places
from headlong.layers.differentiated import Block, BlocksLayer
from headlong.layers.matrix import Layer
from headlong.number_checks import choice, flag, wholes

COLUMNS = ("prefix", "split", "project")


class DifferentiatedHead(Head):
    """Blocks of ``sizes`` classes by falling frequency, reading ``widths`` dimensions.

    ``counts``   how often each class occurs; None: ids are in that order already
    ``sizes``    classes of each block, adding up to ``vocab``; ``widths``  their dimensions, not rising
    """

    order: Tensor
    place: Tensor

    def __init__(
        self,
        dim: int,
        vocab: int,
        weight: Tensor | None = None,
        *,
        counts: ArrayLike | None = None,
        sizes: Sequence[int] | None = None,
        widths: Sequence[int] | None = None,
        columns: str = "prefix",
        bias: bool = True,
    ) -> None:
        super().__init__(dim, vocab)
        self.refuse_tied(weight)
        choice(columns, "columns", COLUMNS)
        self.sizes, self.widths = _blocks(dim, vocab, sizes, widths, columns)
        self.columns = columns
        self.register_buffer("order", frequency_order(counts, vocab))
        self.register_buffer("place", places(self.order))
        blocks = list(zip(self.sizes, self.widths, strict=True))
        self.weights = nn.ParameterList(torch.empty(size, width).uniform_(-0.1, 0.1) for size, width in blocks)
        self.bias = nn.Parameter(torch.zeros(vocab)) if flag(bias, "bias") else None
        shapes = [(width, dim) for width in self.widths] if columns == "project" else []
        self.projections = nn.ParameterList(nn.init.xavier_uniform_(torch.empty(shape)) for shape in shapes)

    def logits(self, hidden: Tensor) -> Tensor:
        """``[N, vocab]`` in the order of frequency, raw."""
        hidden = hidden.to(self.weights[0].dtype)
        parts = [functional.linear(x, weight) for x, weight in zip(self._views(hidden), self.weights, strict=True)]
        z = torch.cat(parts, dim=1)
        return z if self.bias is None else z + self.bias

    def _views(self, hidden: Tensor) -> list[Tensor]:
        if self.columns == "project":
            return [functional.linear(hidden, projection) for projection in self.projections]
        return [hidden[:, start : start + width] for start, width in zip(self._starts(), self.widths, strict=True)]

    def _starts(self) -> list[int]:
        return [0, *accumulate(self.widths[:-1])] if self.columns == "split" else [0] * len(self.widths)

    def score(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        losses = functional.cross_entropy(widened(self.logits(hidden)), self.place[target], reduction="none")
        return HeadOutput(losses.mean(), -losses)

    def log_prob(self, hidden: Tensor) -> Tensor:
        return widened(self.logits(hidden)).log_softmax(-1)[:, self.place]

    def predict(self, hidden: Tensor) -> Tensor:
        return self.order[self.logits(hidden).argmax(-1)]

    def to_layer(self) -> BlocksLayer:
        offsets: Sequence[Tensor | None] = [None] * len(self.sizes)
        if self.bias is not None:
            offsets = torch.split(self.bias.detach().cpu().clone(), self.sizes)
        blocks = []
        for number, (weight, start, offset) in enumerate(zip(self.weights, self._starts(), offsets, strict=True)):
            layer = Layer(weight.detach().cpu().clone(), offset)
            projection: Any = self.projections[number].detach().cpu().clone() if self.projections else None
            blocks.append(Block(layer, start, projection))
        return BlocksLayer(blocks, self.dim, self.order.cpu().numpy())

    def extra_repr(self) -> str:
        shown = " + ".join(f"{size} x {width}" for size, width in zip(self.sizes, self.widths, strict=True))
        return f"{super().extra_repr()}, {shown}, columns={self.columns!r}"


def _blocks(
    dim: int, vocab: int, sizes: Sequence[int] | None, widths: Sequence[int] | None, columns: str
) -> tuple[list[int], list[int]]:
    """The blocks that were asked for, or the default ones without the empty."""
    if (sizes is None) != (widths is None):
        raise OptionError("sizes and widths belong together; give both or neither")
    if sizes is None or widths is None:
        quarter = vocab // 4
        parts = [(quarter, 1), (quarter, 2), (vocab - 2 * quarter, 4)]
        share = 2 if columns == "split" else 1  # D/2 + D/4 + D/8 fit side by side
        found = [(size, max(1, dim // (cut * share))) for size, cut in parts if size]
        if columns == "split" and sum(width for _, width in found) > dim:
            raise OptionError(f"{dim:,} dimensions are too few to split; give sizes and widths, or columns='prefix'")
        return [size for size, _ in found], [width for _, width in found]
    sizes, widths = wholes(sizes, "sizes", 1, vocab), wholes(widths, "widths", 1, dim)
    if len(sizes) != len(widths) or sum(sizes) != vocab:
        raise OptionError(f"sizes {sizes} with {len(widths):,} widths; expected as many of each, from 1, adding up to {vocab}")
    if sorted(widths, reverse=True) != widths:
        raise OptionError(f"widths {widths}; expected numbers from {dim:,} down to 1, none larger than the one before")
    if columns == "split" and sum(widths) > dim:
        raise OptionError(f"widths {widths} add up to {sum(widths)}; slices side by side have {dim:,} dimensions to share")
    return sizes, widths
