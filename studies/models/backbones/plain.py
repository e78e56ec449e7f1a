"""The same models as PyTorch's own parts make them, to be timed beside ours and compared number by number::

    logits = plain(*batch.inputs)          loss = cross_entropy(logits.flatten(0, 1), target, ignore_index=-1)

Each is what a tutorial writes: ``nn.LSTM``, ``nn.TransformerEncoderLayer``, a tied ``nn.Linear``, all logits at once, and
padded targets that the loss leaves out. ``like`` copies the weights of one of ours into it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from studies.models.backbones.base import Batch, Model, State
from studies.models.backbones.gpt import Gpt
from studies.models.backbones.lstm import Lstm
from studies.models.backbones.seq2seq import Seq2Seq
from studies.models.feeds import PADDING


class PlainLstm(nn.Module):
    """A word language model."""

    def __init__(self, model: Lstm, vocab: int) -> None:
        super().__init__()
        dim, rate = model.dim, model.dropout.p
        self.embedding, self.dropout = nn.Embedding(vocab, dim), nn.Dropout(rate)
        self.lstm, self.out = nn.LSTM(dim, dim, model.lstm.num_layers, dropout=model.lstm.dropout), nn.Linear(dim, vocab)
        self.out.weight = self.embedding.weight

    def forward(self, ids: Tensor, state: Any = None) -> tuple[Tensor, State]:
        hidden, after = self.lstm(self.dropout(self.embedding(ids)), state or None)
        return self.out(self.dropout(hidden)), tuple(part.detach() for part in after)


class PlainGpt(nn.Module):
    """Pre-norm blocks under a causal mask."""

    def __init__(self, model: Gpt, vocab: int) -> None:
        super().__init__()
        dim, options = model.dim, model.options
        self.embedding, self.dropout = nn.Embedding(vocab, dim), nn.Dropout(options.dropout)
        self.position = nn.Parameter(torch.empty(options.context, dim))
        heads, rate = options.heads, options.dropout
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, rate, "gelu", batch_first=True, norm_first=True)
        layer.dropout = nn.Dropout(0.0)  # inside the MLP, where ours has none
        self.blocks = nn.TransformerEncoder(layer, options.blocks, nn.LayerNorm(dim), enable_nested_tensor=False)
        self.out = nn.Linear(dim, vocab)
        self.out.weight = self.embedding.weight

    def forward(self, ids: Tensor, state: Any = None) -> tuple[Tensor, State]:
        time = len(ids)
        mask = nn.Transformer.generate_square_subsequent_mask(time)
        hidden = self.blocks(self.dropout(self.embedding(ids.T) + self.position[:time]), mask, is_causal=True)
        return self.out(hidden.transpose(0, 1)), ()


class PlainSeq2Seq(nn.Module):
    """Two-way encoder, decoder, global attention."""

    def __init__(self, model: Seq2Seq, vocab: int) -> None:
        super().__init__()
        dim, layers = model.dim, model.decoder.num_layers
        self.source, self.target = nn.Embedding(model.source.num_embeddings, dim), nn.Embedding(vocab, dim)
        self.encoder = nn.LSTM(dim, dim // 2, layers, dropout=model.encoder.dropout, bidirectional=True)
        self.decoder = nn.LSTM(dim, dim, layers, dropout=model.decoder.dropout)
        self.attention, self.join = nn.Linear(dim, dim, bias=False), nn.Linear(2 * dim, dim)
        self.dropout, self.out = nn.Dropout(model.dropout.p), nn.Linear(dim, vocab)
        self.out.weight = self.target.weight

    def forward(self, source: Tensor, before: Tensor, real: Tensor, state: Any = None) -> tuple[Tensor, State]:
        memory, (h, c) = self.encoder(self.dropout(self.source(source)))
        start = tuple(torch.cat([part[0::2], part[1::2]], -1) for part in (h, c))
        states, _ = self.decoder(self.dropout(self.target(before)), start)
        scores = torch.einsum("tbd,sbd->bts", self.attention(states), memory).softmax(-1)
        context = torch.einsum("bts,sbd->tbd", scores, memory)
        return self.out(self.dropout(torch.tanh(self.join(torch.cat([context, states], -1))))), ()


def like(model: Model) -> nn.Module:
    """The plain twin of a model, with the same weights."""
    backbone, vocab = model.backbone, model.head.vocab
    kinds: dict[type, Any] = {Lstm: PlainLstm, Gpt: PlainGpt, Seq2Seq: PlainSeq2Seq}
    twin: nn.Module = kinds[type(backbone)](backbone, vocab)
    ours = backbone.state_dict() | {"out.bias": model.head.bias}
    missing, left = twin.load_state_dict({_renamed(name): value for name, value in ours.items()}, strict=False)
    assert set(missing) <= {"out.weight"}, missing  # tied: it is the embedding
    assert not left, left
    return twin


def _renamed(name: str) -> str:
    """A GPT's parts as ``nn.TransformerEncoder`` calls them."""
    pairs = [("norm_attention", "norm1"), ("norm_mlp", "norm2"), ("qkv.", "self_attn.in_proj_"), (".up.", ".linear1.")]
    pairs += [(".down.", ".linear2."), ("blocks.", "blocks.layers.")]
    if name.startswith("blocks."):
        name = name.replace(".out.", ".self_attn.out_proj.")
        for ours, theirs in pairs:
            name = name.replace(ours, theirs)
    return name.replace("norm.", "blocks.norm.") if name.startswith("norm.") else name


def plain_step(
    twin: nn.Module, optimiser: torch.optim.Optimizer, batch: Batch, state: State, clip: float
) -> tuple[float, State]:
    """One training step, all logits at once; under autocast where the caller set it."""
    optimiser.zero_grad()
    logits, after = twin(*batch.inputs, state)
    target = batch.target
    if len(batch.inputs) == 3:  # sentence pairs: the padded places are there, and left out by the loss
        real = batch.inputs[2]
        target = torch.full(real.shape, PADDING).masked_scatter(real, target).flatten()
    loss = functional.cross_entropy(logits.flatten(0, 1), target, ignore_index=PADDING)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    torch.nn.utils.clip_grad_norm_(twin.parameters(), clip)
    optimiser.step()
    return float(loss.detach()), after
