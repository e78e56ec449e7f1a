"""What a model does around its output layer, seen by running it once: the scores afterwards, and hidden vectors before.

::

    out  = model with the layer's answer replaced by a ramp of known scores          post_head: the link from ramp to out
    rows = what the layer was given                                                  calibration: token ids -> vectors

The layer's place is taken for the length of one call, in this model alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.logging import tqdm

import headlong
from headlong.arrays import as_numpy
from headlong.errors import IdError, InputError, OptionError, named
from headlong.integrations.generation.score_maps import link_between
from headlong.progress import stage

RAMP = 60.0
"""Scores from -RAMP to RAMP show what a model does to them."""
LONGEST, MOST = 256, 32
"""Tokens of text that are read at once; of a piece that has more, so many such windows at the most, evenly spread."""


def put(model: PreTrainedModel, old: nn.Module, new: nn.Module) -> None:
    """Every attribute under which the model holds ``old``; parameters stay where they are."""
    places = [(parent, name) for parent in model.modules() for name, child in parent.named_children() if child is old]
    if not places:
        raise InputError("the output layer is not a submodule of the model; expected one that it owns")
    for parent, name in places:
        setattr(parent, name, new)


class _Ramp(nn.Linear):
    """Answers every call with the same scores (None: all of -RAMP to RAMP), and keeps what it was given."""

    def __init__(self, linear: nn.Linear, scores: Tensor | None = None) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.weight.shape[1], linear.weight.shape[0]
        self.weight, self.bias = linear.weight, linear.bias
        mixed = torch.randperm(self.out_features, generator=torch.Generator().manual_seed(0))  # no function of the class id
        ramp = torch.linspace(-RAMP, RAMP, self.out_features)[mixed].to(linear.weight.dtype)
        self.scores = ramp if scores is None else scores
        self.hidden: list[Tensor] = []

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        self.hidden.append(input.reshape(-1, self.in_features))
        return self.scores.expand(*input.shape[:-1], -1)


def run(model: PreTrainedModel, linear: nn.Linear, ids: Tensor, scores: Tensor | None = None) -> tuple[_Ramp, Any]:
    ramp = _Ramp(linear, scores)
    put(model, linear, ramp)
    try:
        return ramp, model(**inputs_of(model, ids), use_cache=False, return_dict=True)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        said = f"the model could not be run over {ids.shape[1]} tokens alone ({type(error).__name__}: {error})"
        advice = "pass link=headlong.Affine(), or what it does to its scores, and vectors as calibration"
        raise InputError(f"{said}; {advice}") from error
    finally:
        put(model, ramp, linear)


def inputs_of(model: PreTrainedModel, ids: Tensor) -> dict[str, Any]:
    """Tokens alone; where the encoder reads sound or pictures, the decoder's, beside an encoder that saw nothing."""
    if not model.config.is_encoder_decoder:
        return {"input_ids": ids}
    if model.main_input_name == "input_ids":
        return {"input_ids": ids, "decoder_input_ids": ids}
    width = model.get_encoder().config.hidden_size
    nothing = torch.zeros(len(ids), 2, width, dtype=model.dtype)
    return {"decoder_input_ids": ids, "encoder_outputs": BaseModelOutput(last_hidden_state=nothing)}


class AfterLayer(NamedTuple):
    """What a model does after its output layer: a ``link``, or a ``bias`` of its own that ``beside`` holds."""

    link: headlong.Affine | headlong.SoftCap
    bias: Tensor | None = None
    beside: tuple[Tensor, ...] = ()


def post_head(model: PreTrainedModel, linear: nn.Linear) -> AfterLayer:
    ids = torch.zeros(1, 2, dtype=torch.int64)
    ramp, out = run(model, linear, ids)
    named = [getattr(model.config, name, None) for name in sorted(vars(model.config)) if "logit" in name]
    text = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    named += [getattr(text, name, None) for name in sorted(vars(text)) if "logit" in name]
    known = [float(value) for value in named if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0]
    given, found = ramp.scores.double().numpy(), out.logits[0, -1].double().numpy()
    try:
        return AfterLayer(link_between(given, found, known, str(linear.weight.dtype)))
    except InputError:
        bias = run(model, linear, ids, torch.zeros_like(ramp.scores))[1].logits[0, -1]
        beside = _holding(model, bias)
        if beside is None:  # no numbers of the model's own: nobody could tell when they change
            raise
        link = link_between(given, found - bias.double().numpy(), (), str(linear.weight.dtype))
        return AfterLayer(link, bias.float(), (beside,))


def _holding(model: PreTrainedModel, bias: Tensor) -> Tensor | None:
    """The buffer or parameter of the model that holds ``bias`` (``final_logits_bias`` of the BART family)."""
    parts = [*model.buffers(), *model.parameters()]
    same = [part for part in parts if part.numel() == bias.numel() and torch.equal(part.reshape(-1), bias.to(part.dtype))]
    return same[0].reshape(-1) if same else None


def calibration_of(host: Any, given: Any) -> Any:
    """Hidden vectors as they are, or those of token ids."""
    if given is None:
        return None
    try:
        array = given if isinstance(given, Tensor) else torch.as_tensor(as_numpy(given, "calibration"))
    except (TypeError, ValueError) as error:  # DtypeError, too
        raise OptionError("calibration is not an array of numbers; expected token ids [batch, length] of one length") from error
    if array.is_floating_point():
        return array
    return _hidden(host, _checked_ids(host.known, array))


def _checked_ids(known: int, ids: Tensor) -> Tensor:
    if ids.ndim != 2 or not ids.numel() or ids.dtype == torch.bool or ids.is_complex():
        raise OptionError(
            f"calibration has shape {list(ids.shape)} and type {ids.dtype}; expected token ids [batch, length], at least one, "
            "or vectors [n, dim]"
        )
    if not 0 <= int(ids.min()) <= int(ids.max()) < known:
        raise IdError(f"calibration has token ids from {int(ids.min())} to {int(ids.max())}; expected 0 to {known - 1}")
    return ids.long()


def _hidden(host: Any, ids: Tensor) -> Tensor:
    try:
        return torch.cat([host.read(row[None]) for row in ids])
    except InputError as error:
        raise OptionError(f"the model could not read rows of {ids.shape[1]} calibration tokens ({error}); cut them") from error


def bar(label: str) -> Callable[[int, int], None]:
    """A stage as transformers shows what takes long; nothing where it was told not to."""
    shown = tqdm(desc=label, leave=False)

    def move(done: int, total: int) -> None:
        shown.total = total
        shown.update(done - shown.n)
        if done >= total:
            shown.close()

    return move


def vectors_of_text(host: Any, text: str | Iterable[str], tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """What the layer is given over ``text``, a string or several, piece by piece: a stage counts them."""
    if tokenizer is None:
        raise OptionError("text without a tokenizer; pass tokenizer=AutoTokenizer.from_pretrained(...) as well")
    pieces = [text] if isinstance(text, str) else list(text)
    longest = min([LONGEST, *_positions(host.model.config)])
    rows = [row for piece in pieces for row in _windows(_tokens(tokenizer, piece), longest)]
    if not rows:
        raise OptionError(f"text has {len(pieces):,} pieces and no token in them; pass text like what will be generated")
    found, move = list[Tensor](), stage("calibration")
    with torch.no_grad():
        for row in rows:
            found.append(host.read(_checked_ids(host.known, torch.tensor([row]))))
            move(len(found), len(rows))
    return torch.cat(found)


def _windows(tokens: list[int], longest: int) -> list[list[int]]:
    starts = np.arange(0, len(tokens), longest)
    some = starts if len(starts) <= MOST else starts[np.linspace(0, len(starts) - 1, MOST).astype(int)]
    return [tokens[start : start + longest] for start in some]


def _positions(config: PretrainedConfig) -> list[int]:
    """The tokens that a model has positions for, as its config tells."""
    names = "max_position_embeddings", "max_target_positions"
    found = [getattr(part, name, 0) for part in (config, config.get_text_config(decoder=True)) for name in names]
    return [most for most in found if isinstance(most, int) and most > 0]


def _tokens(tokenizer: PreTrainedTokenizerBase, piece: str) -> list[int]:
    try:
        found = tokenizer(piece)
        ids = found["input_ids"] if hasattr(found, "keys") else found
        return [int(token) for token in ids]
    except Exception as error:  # whatever is called may raise anything
        raise OptionError(
            f"tokenizer is {named(tokenizer)}, which did not turn {piece!r:.60} into token ids ({error}); expected that of the "
            "model: AutoTokenizer.from_pretrained(...)"
        ) from error


def one_step(host: Any) -> tuple[Tensor | None, float]:
    """What the layer is given by a model that reads one token, and the milliseconds that takes without the layer."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        try:
            hidden = host.read(torch.zeros(1, 1, dtype=torch.int64))
        except InputError:  # the user said what there is to be said of this model
            return None, float("nan")
        times.append(time.perf_counter() - began)
    return hidden, 1e3 * min(times)
