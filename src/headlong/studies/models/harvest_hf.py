"""The layer and the hidden vectors of a Hugging Face causal language model, read from a folder on this machine::

    hidden = model(ids, logits_to_keep=[], output_hidden_states=True).hidden_states[-1]

An empty ``logits_to_keep`` lets the model run without reading its own output layer. That the layer and the vectors
belong together is checked on a few tokens: ``link(hidden @ weight.T + bias)`` has to give the model's own logits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headlong.errors import DataError, MissingPackageError, OptionError
from headlong.layers.matrix import Layer
from headlong.studies.data import load
from headlong.studies.data.text import END, Corpus
from headlong.studies.models.harvest import Pieces, Stage, Vectors, Wish, collected, counted, write

WINDOW = 256
CHECKED = 4
TOLERANCE = 0.02
"""How far the logits of layer and model may be apart, relative to their spread: a model may run in bfloat16."""


def is_hf(source: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a Hugging Face model."""
    return (Path(source) / "config.json").is_file()


def harvest_hf(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    data: str,
    wish: Wish,
    window: int = WINDOW,
    stage: Stage | None = None,
) -> Path:
    """As ``harvest``; ``data`` is text that the model's own tokenizer reads, a registered corpus or a file."""
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingPackageError("Hugging Face models need transformers: pip install 'headlong[transformers]'") from error
    corpus = load(data)
    if not isinstance(corpus.content, Corpus):
        raise OptionError(f"{corpus.name} is {corpus.kind}; a language model reads text")
    try:
        model = AutoModelForCausalLM.from_pretrained(source, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    except (OSError, ValueError) as error:
        raise OptionError(f"{os.fspath(source)} is not a complete causal language model: {error}") from error
    model.eval()
    layer = Layer.load(source)
    window = min(window, getattr(model.config, "max_position_embeddings", window))
    tensors: dict[str, Vectors] = {}
    for split in wish.splits:
        ids = _tokens(corpus.content, split, tokenizer, wish.rows)
        _check_match(model, layer, ids[: min(window, len(ids))])
        tensors |= collected(split, _vectors(model, ids, window), wish, counted(stage, split, wish.rows, len(ids) - 1))
    folder = Path(out)
    write(folder, layer, tensors, f"{Path(source).name} on {corpus.name}")
    return folder


def _tokens(corpus: Corpus, split: str, tokenizer: Callable[..., Any], rows: int) -> torch.Tensor:
    words, stream = corpus.vocabulary.words, getattr(corpus, split)
    # a word is at least one token in any tokenizer that keeps them apart; twice as many are enough either way
    part = stream[: 2 * rows + 2] if rows else stream
    text = " ".join("\n" if words[i] == END else words[i] for i in part.tolist())
    ids = torch.tensor(tokenizer(text)["input_ids"])
    if len(ids) < 2:
        raise DataError(f"the {split} split has {len(ids)} tokens for this tokenizer; expected 2 or more")
    return ids


@torch.no_grad()
def _hidden(model: Callable[..., Any], ids: torch.Tensor, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``hidden [n, dim]`` of all tokens and ``logits`` of those in ``keep``."""
    out = model(ids[None], logits_to_keep=keep, output_hidden_states=True, use_cache=False)
    return out.hidden_states[-1][0], out.logits[0]


def _vectors(model: Callable[..., Any], ids: torch.Tensor, window: int) -> Pieces:
    nothing = torch.empty(0, dtype=torch.int64)
    for start in range(0, len(ids) - 1, window):
        inputs = ids[start : start + window + 1]
        hidden, _ = _hidden(model, inputs[:-1], nothing)
        yield hidden, inputs[1:]


def _check_match(model: Callable[..., Any], layer: Layer, ids: torch.Tensor) -> None:
    last = torch.arange(max(0, len(ids) - CHECKED), len(ids))
    hidden, logits = _hidden(model, ids, last)
    wide = hidden[last].double().numpy() @ layer.weight.astype(np.float64).T
    mine = layer.link(wide if layer.bias is None else wide + layer.bias)
    apart = float(np.abs(mine - logits.double().numpy()).max())
    if apart > TOLERANCE * max(1e-3, float(np.std(mine))):
        raise OptionError(
            f"the model's logits are up to {apart:.3g} from those of its layer ({layer!r}): its last hidden "
            "state is not the input of its output layer; expected a model where it is"
        )
