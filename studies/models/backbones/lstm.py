"""Word-level LSTM language model (Zaremba et al. 2014; Press & Wolf 2017 for tying)::

    hidden = dropout(lstm(dropout(embedding[ids])))         logits = hidden @ embedding.T + bias    where tied

PyTorch's fused LSTM, so a step costs what the plain model costs. State runs on from window to window.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from studies.models.backbones.base import DEEPEST, WIDEST, Backbone, Features, State, check_rates, check_sizes


@dataclass(frozen=True)
class LstmOptions:
    """``dim`` of the embedding and of each of ``layers``; ``dropout`` between all of them."""

    dim: int = 200
    layers: int = 2
    dropout: float = 0.2
    tied: bool = True


class Lstm(Backbone):
    """``ids [time, batch] -> hidden [time * batch, dim]``."""

    def __init__(self, options: LstmOptions, vocab: int) -> None:
        super().__init__()
        check_sizes(options, WIDEST, "dim")
        check_sizes(options, DEEPEST, "layers")
        check_rates(options, "dropout")
        self.dim = options.dim
        self.embedding = nn.Embedding(vocab, options.dim)
        # PyTorch warns about dropout in a single layer, which it would not apply
        between = options.dropout if options.layers > 1 else 0.0
        self.lstm = nn.LSTM(options.dim, options.dim, options.layers, dropout=between)
        self.dropout = nn.Dropout(options.dropout)
        self._tied = options.tied
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, inputs: tuple[Tensor, ...], state: State = ()) -> Features:
        (ids,) = inputs
        hidden, after = self.lstm(self.dropout(self.embedding(ids)), state or None)
        return Features(self.dropout(hidden).flatten(0, 1), after)

    def tied(self) -> Tensor | None:
        return self.embedding.weight if self._tied else None
