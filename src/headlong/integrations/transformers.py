"""Hugging Face models: swap the output layer, decode from candidates, undo.

::

    head = accelerate(model)                                              # one submodule is swapped, nothing is patched
    model.generate(**inputs, custom_generate=headlong_generate)           # candidate-level decoding: decoding.py
    model.generate(**inputs, num_beams=4)                                 # everything else runs, too
    restore(model)                                                        # the submodule that was there before

The module keeps ``weight`` and ``bias`` (the same parameters, so tying, saving and resizing work) and is an ``nn.Linear``
to whoever asks. What the model does to the scores afterwards (soft-cap, scale) is found by running the model once over a
ramp of known scores, so there is no code for any one architecture. Models on the CPU only.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import headlong
from headlong.errors import DtypeError, InputError, OptionError
from headlong.integrations.links import link_between
from headlong.integrations.tail import scattered

RAMP = 60.0
"""Scores from -RAMP to RAMP show what a model does to them."""


class Limits(NamedTuple):
    """``rows``  a call on more rows than this is one dense product (prefill, training)
    ``candidates``  how many classes of a row the drop-in scores exactly; the others share what mass is left
    """

    rows: int = 64
    candidates: int = 256


LIMITS = Limits()


class FastHead(nn.Linear):
    """``hidden [..., dim] -> scores [..., vocab]``: exact on the best classes, the rest filled so that the mass is right.

    With ``C`` the ``candidates`` best classes, ``z`` their exact logits and ``f`` the model's soft-cap or scale::

        scores[i] = z[i]                                              i in C
        scores[i] = f^-1(log((exp(lse) - sum_C exp(f(z))) / (vocab - |C|)))      otherwise

    so that ``softmax(f(scores))`` is exact on C. ``paths`` counts rows by the way they were answered. Gradients, many
    rows and weights that changed since :func:`accelerate` take the dense product of ``nn.Linear``.
    """

    def __init__(self, linear: nn.Linear, engine: Any, limits: Limits) -> None:
        nn.Module.__init__(self)  # not nn.Linear's: it would allocate a second weight
        self.in_features, self.out_features = linear.weight.shape[1], linear.weight.shape[0]
        self.weight, self.bias = linear.weight, linear.bias
        self.engine, self.limits = engine, limits
        self.paths: Counter[str] = Counter()
        self._before = (linear,)  # a tuple hides the module from state_dict and named_modules
        self._versions = self._now()
        self._said: set[str] = set()
        self._taken = threading.local()
        self.train(linear.training)

    @property
    def replaced(self) -> nn.Linear:
        """The module that was here before."""
        return self._before[0]

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # nn.Linear's name
        if getattr(self._taken, "asked", False):
            self._taken.hidden = input
            return input.new_zeros(*input.shape[:-1], 1)
        rows = input.reshape(-1, self.in_features)
        why = self._dense(rows)
        if why:
            self.count(f"dense: {why}", len(rows))
            return functional.linear(input, self.weight, self.bias)
        top = self.engine.topk(rows.detach(), k=min(self.limits.candidates, self.out_features))
        self.count(top.cost.path, len(rows))
        filled = scattered(top, self.engine.layer.link, self.out_features)
        return filled.to(input.dtype).reshape(*input.shape[:-1], self.out_features)

    def taking(self) -> Taking:
        """``with head.taking() as taken: model(...)``: the model runs, the head only keeps what it was given."""
        return Taking(self._taken)

    @contextmanager
    def dense(self, why: str) -> Iterator[None]:
        """In this thread and block every call is the dense product, counted as ``why``."""
        self._taken.dense = why
        try:
            yield
        finally:
            self._taken.dense = ""

    def count(self, path: str, rows: int) -> None:
        self.paths[path] += rows

    def fall_back(self, why: str, rows: int) -> None:
        """Counted always, said once."""
        self.count(f"dense: {why}", rows)
        if why not in self._said:
            self._said.add(why)
            warnings.warn(f"headlong reads the whole output layer for this: {why}", RuntimeWarning, stacklevel=4)

    @property
    def stale(self) -> bool:
        """Whether the weights have been written to, moved or replaced since the engine was compiled."""
        return self._now() != self._versions

    def _now(self) -> tuple[Any, ...]:
        parts = [part for part in (self.weight, self.bias) if part is not None]
        # an inference tensor keeps no version; nobody can train it either
        return tuple((part.data_ptr(), 0 if part.is_inference() else part._version) for part in parts)  # noqa: SLF001

    def _dense(self, rows: Tensor) -> str:
        if why := getattr(self._taken, "dense", ""):
            return str(why)
        if torch.is_grad_enabled() and (rows.requires_grad or self.weight.requires_grad):
            return "gradients"
        if len(rows) > self.limits.rows:
            return f"more than {self.limits.rows} rows"
        if self.stale:
            self.fall_back("the weights have changed since accelerate(); call it again", 0)
            return "changed weights"
        return ""

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.engine!r}"


class Taking:
    """Asks a head, in this thread only, to keep its input instead of answering."""

    def __init__(self, taken: threading.local) -> None:
        self.taken = taken

    def __enter__(self) -> Taking:
        self.taken.asked, self.taken.hidden = True, None
        return self

    def __exit__(self, *exception: object) -> None:
        self.taken.asked = False

    @property
    def hidden(self) -> Tensor:
        """What the head was given by the last call, ``[..., dim]``."""
        if self.taken.hidden is None:
            raise InputError("the model ran without calling its output layer; expected one that ends in it")
        hidden: Tensor = self.taken.hidden
        return hidden


def accelerate(
    model: Any,
    calibration: Any = None,
    eps: float = 0.01,
    delta: float = 1e-3,
    *,
    limits: Limits = LIMITS,
    link: headlong.Affine | headlong.SoftCap | None = None,
    **options: Any,
) -> FastHead:
    """Replace ``model.get_output_embeddings()`` by a :class:`FastHead` over the same parameters, and return it.

    ``calibration``  hidden vectors ``[n, dim]``, or token ids ``[batch, length]`` that the model turns into them
    ``eps, delta``   as :func:`headlong.compile`; so are ``options`` (``method=``, ``threads=``, ...)
    ``link``         what the model does to the scores afterwards; None: found by running the model once
    InputError where the model has no plain output layer, is not on the CPU or is accelerated already.
    """
    linear = model.get_output_embeddings()
    _check(model, linear)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            found = _post_head(model, linear) if link is None else link
            hidden = _calibration(model, linear, calibration)
    finally:
        for module, training in modes:  # each its own: parts may be frozen in evaluation
            module.training = training
    options.setdefault("threads", torch.get_num_threads())
    bias = None if linear.bias is None else linear.bias.detach()
    layer = headlong.Layer(linear.weight.detach(), bias, found, name="lm_head.weight")
    head = FastHead(linear, headlong.compile(layer, eps=eps, delta=delta, calibration=hidden, **options), limits)
    _put(model, linear, head)
    return head


def restore(model: Any) -> nn.Linear:
    """Put back the module that :func:`accelerate` replaced; it reads the weights that the model has now."""
    head = model.get_output_embeddings()
    if not isinstance(head, FastHead):
        raise InputError(f"the model's output layer is a {type(head).__name__}; expected one that accelerate() put there")
    before = head.replaced
    before.weight, before.bias = head.weight, head.bias
    before.train(head.training)
    _put(model, head, before)
    return before


def _check(model: Any, linear: Any) -> None:
    if isinstance(linear, FastHead):
        raise InputError("the model is accelerated already; call restore(model) first")
    if type(linear) is not nn.Linear:
        raise InputError(f"the model's output layer is {type(linear).__name__}; expected torch.nn.Linear over all classes")
    if linear.weight.device.type != "cpu":
        raise DtypeError(f"the model is on {linear.weight.device}; this reads from the CPU's memory: pass model.cpu()")
    if linear._forward_hooks or linear._forward_pre_hooks:  # noqa: SLF001  # torch has no other way to ask
        raise InputError("the output layer has forward hooks, which would be lost; remove them first")


def _put(model: Any, old: nn.Module, new: nn.Module) -> None:
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
    _put(model, linear, ramp)
    try:
        return ramp, model(**inputs, use_cache=False, return_dict=True)
    finally:
        _put(model, ramp, linear)


def _post_head(model: Any, linear: nn.Linear) -> headlong.Affine | headlong.SoftCap:
    ramp, out = _run(model, linear, torch.zeros(1, 2, dtype=torch.int64))
    named = [getattr(model.config, name, None) for name in sorted(vars(model.config)) if "logit" in name]
    text = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    named += [getattr(text, name, None) for name in sorted(vars(text)) if "logit" in name]
    known = [float(value) for value in named if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0]
    return link_between(ramp.scores.double().numpy(), out.logits[0, -1].double().numpy(), known, str(linear.weight.dtype))


def _calibration(model: Any, linear: nn.Linear, given: Any) -> Any:
    """Hidden vectors as they are, or those of token ids."""
    if given is None:
        return None
    array = given if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given))
    if array.is_floating_point():
        return array
    if array.ndim != 2:
        raise OptionError(f"calibration has shape {list(array.shape)}; expected token ids [batch, length] or vectors [n, dim]")
    ramps = [_run(model, linear, row[None])[0] for row in array]
    return torch.cat([hidden for ramp in ramps for hidden in ramp.hidden])
