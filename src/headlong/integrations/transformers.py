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

import torch
from torch import Tensor, nn
from torch.nn import functional

import headlong
from headlong.checks import whole
from headlong.errors import DtypeError, InputError
from headlong.integrations.fill_scores import scattered
from headlong.integrations.fingerprint import Fingerprint
from headlong.integrations.inspect_model import calibration_of, post_head, put


class Limits(NamedTuple):
    """``rows``  a call on more rows than this is one dense product (prefill, training)
    ``candidates``  how many classes of a row the drop-in scores exactly; the others share what mass is left
    """

    rows: int = 64
    candidates: int = 256


LIMITS = Limits()
CHANGED = "the weights have changed since accelerate(); restore(model) and accelerate(model) again"


class FastHead(nn.Linear):
    """``hidden [..., dim] -> scores [..., vocab]``: exact on the best classes, the rest filled so that the mass is right.

    With ``C`` the ``candidates`` best classes, ``z`` their exact logits and ``f`` the model's soft-cap or scale::

        scores[i] = z[i]                                              i in C
        scores[i] = f^-1(log((exp(lse) - sum_C exp(f(z))) / (vocab - |C|)))      otherwise

    so that ``softmax(f(scores))`` is exact on C. ``paths`` counts rows by the way they were answered. Gradients, many
    rows and weights that changed since :func:`accelerate` take the dense product of ``nn.Linear``. A copy or a pickle of this
    module is the plain ``nn.Linear``: the engine belongs to these weights in this memory.
    """

    def __init__(self, linear: nn.Linear, engine: Any, limits: Limits) -> None:
        nn.Module.__init__(self)  # not nn.Linear's: it would allocate a second weight
        self.in_features, self.out_features = linear.weight.shape[1], linear.weight.shape[0]
        self.weight, self.bias = linear.weight, linear.bias
        self.engine, self.limits = engine, limits
        self.paths: Counter[str] = Counter()
        self._before = (linear,)  # a tuple hides the module from state_dict and named_modules
        self._seen = Fingerprint(*self._parameters_now())
        self._changed = self._suspect = False
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
        if (top.ids < 0).any():  # fewer than were asked for: the bounds are those of other weights
            self.count(f"dense: {self.changed()}", len(rows))
            return functional.linear(input, self.weight, self.bias)
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
        """Whether the weights have been written to, moved or replaced since the engine was compiled; reads them once."""
        self._changed = self._changed or self._seen.differs(self._parameters_now())
        self._suspect = False
        return self._changed

    def _parameters_now(self) -> tuple[Tensor, ...]:
        return tuple(part for part in (self.weight, self.bias) if part is not None)

    def _looks_stale(self) -> bool:
        """At a glance; all rows after a call that asked for gradients, since a step of an optimiser may have followed."""
        if self._suspect:
            return self.stale
        self._changed = self._changed or self._seen.at_a_glance(self._parameters_now())
        return self._changed

    def _dense(self, rows: Tensor) -> str:
        if why := getattr(self._taken, "dense", ""):
            return str(why)
        if torch.is_grad_enabled() and (rows.requires_grad or self.weight.requires_grad):
            self._suspect = True
            return "gradients"
        if len(rows) > self.limits.rows:
            return f"more than {self.limits.rows} rows"
        if self._looks_stale():
            return self.changed()
        return ""

    def changed(self) -> str:
        """The weights are others than the engine's: dense from now on, and said."""
        self._changed = True
        self.fall_back(CHANGED, 0)
        return "changed weights"

    def plain(self) -> nn.Linear:
        """The module that was here before, with the parameters and the mode of now."""
        before = self.replaced
        before.weight, before.bias = self.weight, self.bias
        before.out_features, before.in_features = self.weight.shape
        return before.train(self.training)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """``copy`` and ``pickle`` make the plain module: parameters are tied in the copy as they are here."""
        sizes = (self.in_features, self.out_features, self.bias is not None, "meta")  # nothing is allocated or drawn
        return nn.Linear, sizes, self.plain().__dict__

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
    limits = Limits(whole(limits.rows, "limits.rows", 0, 2**62), whole(limits.candidates, "limits.candidates", 1, 2**62))
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            found = post_head(model, linear) if link is None else link
            hidden = calibration_of(model, linear, calibration)
    finally:
        for module, training in modes:  # each its own: parts may be frozen in evaluation
            module.training = training
    options.setdefault("threads", torch.get_num_threads())
    bias = None if linear.bias is None else linear.bias.detach()
    layer = headlong.Layer(linear.weight.detach(), bias, found, name="lm_head.weight")
    head = FastHead(linear, headlong.compile(layer, eps=eps, delta=delta, calibration=hidden, **options), limits)
    put(model, linear, head)
    return head


def restore(model: Any) -> nn.Linear:
    """Put back the module that :func:`accelerate` replaced; it reads the weights that the model has now."""
    head = model.get_output_embeddings()
    if not isinstance(head, FastHead):
        raise InputError(f"the model's output layer is a {type(head).__name__}; expected one that accelerate() put there")
    _check_hooks(head)
    before = head.plain()
    put(model, head, before)
    return before


def _check(model: Any, linear: Any) -> None:
    if isinstance(linear, FastHead):
        raise InputError("the model is accelerated already; call restore(model) first")
    if type(linear) is not nn.Linear:
        raise InputError(f"the model's output layer is {type(linear).__name__}; expected torch.nn.Linear over all classes")
    if linear.weight.device.type != "cpu":
        raise DtypeError(f"the model is on {linear.weight.device}; this reads from the CPU's memory: pass model.cpu()")
    if linear.weight.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise DtypeError(f"the model is {linear.weight.dtype}; expected float32, float16 or bfloat16: pass model.float()")
    _check_hooks(linear)


def _check_hooks(module: nn.Module) -> None:
    """Hooks belong to a module, and would stay with the one that goes."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # torch has no other way to ask
    if any(getattr(module, kind) for kind in kinds):
        raise InputError("the output layer has hooks (forward or backward), which would be lost; remove them first")
