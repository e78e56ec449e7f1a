"""A small pre-norm GPT::

    x = embedding[ids] + position[:time]
    x = x + attention(norm(x));  x = x + mlp(norm(x))          each block
    hidden = norm(x)                                           logits = hidden @ embedding.T + bias    where tied

Windows do not see each other: there is no state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from headlong.errors import OptionError, ShapeError
from studies.models.backbones.base import DEEPEST, WIDEST, Backbone, Features, State, check_rates, check_sizes


@dataclass(frozen=True)
class GptOptions:
    """``heads`` divides ``dim``; ``context`` is the longest window."""

    dim: int = 512
    blocks: int = 3
    heads: int = 8
    context: int = 64
    dropout: float = 0.2
    tied: bool = True


class Block(nn.Module):
    """Attention and a four times wider MLP, each on a normed copy and added back."""

    def __init__(self, options: GptOptions) -> None:
        super().__init__()
        self.heads, self.rate = options.heads, options.dropout
        self.norm_attention, self.norm_mlp = nn.LayerNorm(options.dim), nn.LayerNorm(options.dim)
        self.qkv, self.out = nn.Linear(options.dim, 3 * options.dim), nn.Linear(options.dim, options.dim)
        self.up, self.down = nn.Linear(options.dim, 4 * options.dim), nn.Linear(4 * options.dim, options.dim)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, dim = x.shape
        parts = self.qkv(self.norm_attention(x)).view(batch, time, 3, self.heads, dim // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        rate = self.rate if self.training else 0.0
        seen = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        mixed: Tensor = x + self.dropout(self.out(seen.transpose(1, 2).flatten(2)))
        after: Tensor = mixed + self.dropout(self.down(functional.gelu(self.up(self.norm_mlp(mixed)))))
        return after


class Gpt(Backbone):
    """``ids [time, batch] -> hidden [time * batch, dim]``."""

    def __init__(self, options: GptOptions, vocab: int) -> None:
        super().__init__()
        check_sizes(options, WIDEST, "dim", "heads", "context")
        check_sizes(options, DEEPEST, "blocks")
        check_rates(options, "dropout")
        if options.dim % options.heads:
            raise OptionError(f"model.heads = {options.heads}; expected a number that divides model.dim = {options.dim}")
        self.dim, self.options = options.dim, options
        self.embedding = nn.Embedding(vocab, options.dim)
        self.position = nn.Parameter(torch.empty(options.context, options.dim))
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.blocks))
        self.norm = nn.LayerNorm(options.dim)
        self.dropout = nn.Dropout(options.dropout)
        self._start()

    def _start(self) -> None:
        """GPT-2's: all weights N(0, 0.02), what is added to the stream scaled down by its depth."""
        nn.init.normal_(self.position, std=0.02)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                deep = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * self.options.blocks) ** 0.5 if deep else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, inputs: tuple[Tensor, ...], state: State = ()) -> Features:
        (ids,) = inputs
        if len(ids) > self.options.context:
            raise ShapeError(f"a window of {len(ids)} tokens; this model sees {self.options.context}: use window = that")
        x = self.dropout(self.embedding(ids.T) + self.position[: len(ids)])
        for block in self.blocks:
            x = block(x)
        return Features(self.norm(x).transpose(0, 1).flatten(0, 1))

    def tied(self) -> Tensor | None:
        return self.embedding.weight if self.options.tied else None
