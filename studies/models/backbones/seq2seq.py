"""Translation with attention (Luong, Pham, Manning 2015, global attention, without input feeding)::

    memory = lstm_both_ways(source);   state = lstm(target)                     both over the whole sentence at once
    context_t = softmax(state_t @ A @ memory.T) @ memory
    hidden_t = tanh(W [context_t; state_t])                                     logits = head(hidden)

All sentences of a batch have the same source length, so nothing on that side is padded; target padding is dropped before
the head. Without input feeding training needs no loop over time. Decoding is greedy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headlong.errors import OptionError
from studies.models.backbones.base import DEEPEST, WIDEST, Backbone, Features, State, check_rates, check_sizes


@dataclass(frozen=True)
class Seq2SeqOptions:
    """``dim`` of embeddings, memory and hidden vector; ``tied``: the head shares the target embedding."""

    dim: int = 256
    layers: int = 1
    dropout: float = 0.3
    tied: bool = True


class Seq2Seq(Backbone):
    """``source [time, batch]``, ``before [time', batch]``, ``real [time', batch]`` bool ``-> hidden [real words, dim]``."""

    def __init__(self, options: Seq2SeqOptions, source_vocab: int, target_vocab: int) -> None:
        super().__init__()
        check_sizes(options, WIDEST, "dim")
        check_sizes(options, DEEPEST, "layers")
        check_rates(options, "dropout")
        if options.dim % 2:
            raise OptionError(f"model.dim = {options.dim}; expected an even number: half of it reads in each direction")
        dim, layers = options.dim, options.layers
        between = options.dropout if layers > 1 else 0.0
        self.dim, self._tied = dim, options.tied
        self.source, self.target = nn.Embedding(source_vocab, dim), nn.Embedding(target_vocab, dim)
        for embedding in (self.source, self.target):
            nn.init.uniform_(embedding.weight, -0.1, 0.1)
        self.encoder = nn.LSTM(dim, dim // 2, layers, dropout=between, bidirectional=True)
        self.decoder = nn.LSTM(dim, dim, layers, dropout=between)
        self.attention, self.join = nn.Linear(dim, dim, bias=False), nn.Linear(2 * dim, dim)
        self.dropout = nn.Dropout(options.dropout)

    def encode(self, source: Tensor) -> tuple[Tensor, State]:
        """``memory [batch, time, dim]`` and the decoder's first state, both directions side by side."""
        memory, (h, c) = self.encoder(self.dropout(self.source(source)))
        return memory.transpose(0, 1), tuple(torch.cat([part[0::2], part[1::2]], -1).contiguous() for part in (h, c))

    def decode(self, before: Tensor, memory: Tensor, state: State) -> tuple[Tensor, State]:
        """``hidden [time', batch, dim]`` for the words that follow ``before``."""
        states, after = self.decoder(self.dropout(self.target(before)), state)
        scores = torch.bmm(self.attention(states).transpose(0, 1), memory.transpose(1, 2))
        context = torch.bmm(scores.softmax(-1), memory).transpose(0, 1)
        return self.dropout(torch.tanh(self.join(torch.cat([context, states], -1)))), after

    def forward(self, inputs: tuple[Tensor, ...], state: State = ()) -> Features:
        source, before, real = inputs
        memory, start = self.encode(source)
        hidden, _ = self.decode(before, memory, start)
        return Features(hidden[real])

    @torch.no_grad()
    def translate(
        self, source: Tensor, predict: Callable[[Tensor], Tensor], start: int, end: int, longest: int
    ) -> list[list[int]]:
        """The most probable next word, again and again, up to ``end`` or ``longest`` words; ids without ``end``."""
        memory, state = self.encode(source)
        word = torch.full((1, source.shape[1]), start)
        words = []
        done = torch.zeros(source.shape[1], dtype=torch.bool)
        for _ in range(longest):
            hidden, state = self.decode(word, memory, state)
            word = predict(hidden[0])[None]
            words.append(word[0])
            done |= word[0] == end
            if bool(done.all()):
                break
        rows: list[list[int]] = torch.stack(words, 1).tolist()
        return [row[: row.index(end)] if end in row else row for row in rows]

    def tied(self) -> Tensor | None:
        return self.target.weight if self._tied else None
