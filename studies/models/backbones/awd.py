"""AWD-LSTM (Merity, Keskar, Socher 2017)::

    weight_hh = dropout(weight_hh)                      one mask per batch (weight drop)
    locked(x) = x * mask[1, batch, dim]                 one mask for all of time
    loss += alpha * mean(locked(h)^2) + beta * mean((h_t - h_{t-1})^2)          AR and TAR

Layers ``dim -> wide -> ... -> wide -> dim``; the embedding drops whole words. Training with NT-ASGD and windows of random
length belongs to the optimiser and the feed.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from studies.models.backbones.base import (
    DEEPEST,
    WIDEST,
    Backbone,
    Features,
    State,
    check_rates,
    check_sizes,
    check_weights,
)


@dataclass(frozen=True)
class AwdOptions:
    """The published Penn Treebank setting; drop rates in the order of the signal's way."""

    dim: int = 400
    wide: int = 1150
    layers: int = 3
    drop_words: float = 0.1
    drop_input: float = 0.4
    drop_weight: float = 0.5
    drop_hidden: float = 0.25
    drop_output: float = 0.4
    alpha: float = 2.0
    beta: float = 1.0
    tied: bool = True


class Awd(Backbone):
    """``ids [time, batch] -> hidden [time * batch, dim]``; state: h and c of each layer in turn."""

    def __init__(self, options: AwdOptions, vocab: int) -> None:
        super().__init__()
        check_sizes(options, WIDEST, "dim", "wide")
        check_sizes(options, DEEPEST, "layers")
        check_rates(options, *(name for name in vars(options) if name.startswith("drop_")))
        check_weights(options, "alpha", "beta")
        self.dim, self.options = options.dim, options
        self.embedding = nn.Embedding(vocab, options.dim)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        sizes = [options.dim, *[options.wide] * (options.layers - 1), options.dim]
        self.layers = nn.ModuleList(nn.LSTM(size, after) for size, after in itertools.pairwise(sizes))

    def forward(self, inputs: tuple[Tensor, ...], state: State = ()) -> Features:
        (ids,), options = inputs, self.options
        signal = locked(self._words(ids), options.drop_input, self.training)
        after: list[Tensor] = []
        raw = signal
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, nn.LSTM)
            raw, *tail = self._recur(layer, signal, state[2 * index : 2 * index + 2])
            after.extend(tail)
            last = index == len(self.layers) - 1
            signal = locked(raw, options.drop_output if last else options.drop_hidden, self.training)
        return Features(signal.flatten(0, 1), tuple(after), self._penalty(signal, raw))

    def _words(self, ids: Tensor) -> Tensor:
        weight = self.embedding.weight
        if self.training and self.options.drop_words:
            keep = 1 - self.options.drop_words
            weight = weight * (weight.new_empty(len(weight), 1).bernoulli_(keep) / keep)
        return functional.embedding(ids, weight)

    def _recur(self, layer: nn.LSTM, signal: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """``layer(signal)`` with its hidden-to-hidden weights dropped out, on PyTorch's fused kernel."""
        start = state or tuple(signal.new_zeros(1, signal.shape[1], layer.hidden_size) for _ in range(2))
        weights: list[Tensor] = list(layer.parameters())  # input to hidden, hidden to hidden, and their biases
        weights[1] = functional.dropout(weights[1], self.options.drop_weight, self.training)
        hidden, h, c = torch.lstm(signal, start, weights, True, 1, 0.0, self.training, False, False)
        return hidden, h, c

    def _penalty(self, dropped: Tensor, raw: Tensor) -> Tensor | None:
        if not self.training:
            return None
        penalty = self.options.alpha * dropped.float().square().mean()
        return penalty + self.options.beta * raw.float().diff(dim=0).square().mean() if len(raw) > 1 else penalty

    def tied(self) -> Tensor | None:
        return self.embedding.weight if self.options.tied else None


def locked(signal: Tensor, rate: float, training: bool) -> Tensor:
    """Dropout of ``[time, batch, dim]`` with one mask for all of time."""
    if not training or not rate:
        return signal
    keep = 1 - rate
    return signal * (signal.new_empty(1, *signal.shape[1:]).bernoulli_(keep) / keep)
