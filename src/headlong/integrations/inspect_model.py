"""What a model does around its output layer, seen by running it once: the scores afterwards, and hidden vectors before.

::

    out  = model with the layer's answer replaced by a ramp of known scores          post_head: the link from ramp to out
    rows = what the layer was given                                                  calibration: token ids -> vectors

The layer's place is taken for the length of one call, in this model alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import headlong
from headlong.errors import IdError, InputError, OptionError
from headlong.integrations.score_maps import link_between

RAMP = 60.0
"""Scores from -RAMP to RAMP show what a model does to them."""


def put(model: Any, old: nn.Module, new: nn.Module) -> None:
    """Every attribute under which the model holds ``old``; parameters stay where they are."""
    places = [(parent, name) for parent in model.modules() for name, child in parent.named_children() if child is old]
    if not places:
        raise InputError("the output layer is no submodule of the model; expected one that it owns")
    for parent, name in places:
        setattr(parent, name, new)


class _Ramp(nn.Linear):
    """Answers every call with the same scores, all of -RAMP to RAMP, and keeps what it was given."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.weight.shape[1], linear.weight.shape[0]
        self.weight, self.bias = linear.weight, linear.bias
        mixed = torch.randperm(self.out_features, generator=torch.Generator().manual_seed(0))  # no function of the class id
        self.scores = torch.linspace(-RAMP, RAMP, self.out_features)[mixed].to(linear.weight.dtype)
        self.hidden: list[Tensor] = []

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        self.hidden.append(input.reshape(-1, self.in_features))
        return self.scores.expand(*input.shape[:-1], -1)


def _run(model: Any, linear: nn.Linear, ids: Tensor) -> tuple[_Ramp, Any]:
    ramp = _Ramp(linear)
    inputs = {"input_ids": ids}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids
    put(model, linear, ramp)
    try:
        return ramp, model(**inputs, use_cache=False, return_dict=True)
    finally:
        put(model, ramp, linear)


def post_head(model: Any, linear: nn.Linear) -> headlong.Affine | headlong.SoftCap:
    ramp, out = _run(model, linear, torch.zeros(1, 2, dtype=torch.int64))
    named = [getattr(model.config, name, None) for name in sorted(vars(model.config)) if "logit" in name]
    text = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    named += [getattr(text, name, None) for name in sorted(vars(text)) if "logit" in name]
    known = [float(value) for value in named if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0]
    return link_between(ramp.scores.double().numpy(), out.logits[0, -1].double().numpy(), known, str(linear.weight.dtype))


def calibration_of(model: Any, linear: nn.Linear, given: Any) -> Any:
    """Hidden vectors as they are, or those of token ids."""
    if given is None:
        return None
    try:
        array = given if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given))
    except (TypeError, ValueError) as error:
        raise OptionError("calibration is no rectangle of numbers; expected token ids [batch, length] of one length") from error
    if array.is_floating_point():
        return array
    return _hidden(model, linear, _checked_ids(model, array))


def _checked_ids(model: Any, ids: Tensor) -> Tensor:
    if ids.ndim != 2 or not ids.numel() or ids.dtype == torch.bool:
        raise OptionError(
            f"calibration has shape {list(ids.shape)} and type {ids.dtype}; expected token ids [batch, length], at least one, "
            "or vectors [n, dim]"
        )
    known = model.get_input_embeddings().weight.shape[0]
    if not 0 <= int(ids.min()) <= int(ids.max()) < known:
        raise IdError(f"calibration has token ids from {int(ids.min())} to {int(ids.max())}; expected 0 to {known - 1}")
    return ids.long()


def _hidden(model: Any, linear: nn.Linear, ids: Tensor) -> Tensor:
    try:
        ramps = [_run(model, linear, row[None])[0] for row in ids]
    except (IndexError, RuntimeError) as error:
        raise OptionError(f"the model could not read rows of {ids.shape[1]} calibration tokens ({error}); cut them") from error
    return torch.cat([hidden for ramp in ramps for hidden in ramp.hidden])
