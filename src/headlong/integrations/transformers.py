"""Hugging Face models: swap the output layer, decode from candidates, undo.

::

    from headlong.integrations.transformers import accelerate, generate, restore

    head = accelerate(model, text=pages, tokenizer=tokenizer)     # one submodule is swapped
    model.generate(**inputs, max_new_tokens=20)                   # decodes from candidates: generation/decoding.py
    model(**inputs).logits                                        # the dense product, as before
    restore(model)                                                # the submodule and the generate that were there before

The module keeps ``weight`` and ``bias`` (the same parameters, so tying, saving and resizing work) and is an ``nn.Linear``
to whoever asks. What the model does to the scores afterwards (soft-cap, scale, bias) is found by running the model over a
ramp of known scores, so there is no code for any one architecture. Models on the CPU only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional
from transformers import GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase

import headlong
from headlong.compile import ADAPTED
from headlong.engines.contract import Verbs
from headlong.errors import DtypeError, InputError, OptionError, an, named
from headlong.integrations.generation.decoding import ACCELERATED, Generate, check_generate, generate, hooked
from headlong.integrations.generation.fast_head import FastHead, Gain
from headlong.integrations.generation.inspect_model import (
    AfterLayer,
    bar,
    calibration_of,
    one_step,
    post_head,
    put,
    run,
    vectors_of_text,
)
from headlong.integrations.graphs.hosts import Host, graph_host
from headlong.number_checks import flag
from headlong.progress import shown

__all__ = ["FastHead", "accelerate", "generate", "restore"]

REPEATS = 6
ENOUGH = 8 * REPEATS
"""Vectors from which some are held back."""


def accelerate(
    model: PreTrainedModel,
    calibration: ArrayLike | None = None,
    eps: float = 0.01,
    delta: float = 1e-6,
    *,
    text: str | Iterable[str] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    link: headlong.Affine | headlong.SoftCap | None = None,
    generate: bool = True,
    **options: Any,
) -> Any:
    """Replace ``model.get_output_embeddings()`` by a :class:`FastHead` over the same parameters, and return it.

    ``text, tokenizer``  strings like those to be generated; the model turns them into calibration vectors
    ``calibration``  the vectors ``[n, dim]`` themselves, or token ids ``[batch, length]``
    ``eps, delta``   as :func:`headlong.compile`; so are ``options`` (``method=``, ``threads=``, ...), for ``head.engine``,
                     which promises log-probabilities; greedy steps, draws and top-k ask ``head.by_ids``, a plan that reads
                     less and has codes of its own, unless ``segments`` or ``log_probs=False`` are named. Without vectors or
                     text the engine adapts to what it is asked (``adapt=True``), unless a ``seed`` or another method is named
    ``link``         what the model does to the scores afterwards; None: found by running the model
    ``generate``     set ``model.generate`` to decode from candidates, so that pipelines, servers and trainers do, too; False:
                     it stays as it is, and :func:`generate` asks
    The head's ``repr`` ends in what a decode step should gain on this machine, timed on the last vectors, which are held back;
    of fewer than :data:`ENOUGH` nothing is said. InputError where the model has no plain output layer, has a ``generate`` of
    its own that does not reach it, is not on the CPU or is accelerated already.
    """
    host: Host = (graph_host(model) or ModuleHost)(model)
    flag(generate, "generate")
    generate = generate and isinstance(model, GenerationMixin)
    if generate:
        check_generate(model)
    if text is not None and calibration is not None:
        raise OptionError("text and calibration were given; expected one of them")
    with torch.no_grad(), host.running(), shown(bar, otherwise=True):
        layer = host.layer(link)
        hidden = calibration_of(host, calibration) if text is None else vectors_of_text(host, text, tokenizer)
        options.setdefault("threads", torch.get_num_threads())
        method = options.get("method", "auto")
        planned = isinstance(method, str) and method in ADAPTED
        if hidden is None and "seed" not in options and planned:
            options.setdefault("adapt", True)
        hidden, rows = held_back(hidden)
        engine = headlong.compile(layer, eps=eps, delta=delta, calibration=hidden, **options)
        by_ids = engine
        if planned and engine.plan.looks and "segments" not in options and options.get("log_probs", True):
            by_ids = headlong.compile(layer, delta=delta, calibration=hidden, **{**options, "log_probs": False})
        gain = _gain(host, by_ids, rows)
        head = host.put(engine)
    head.by_ids, head.gain = by_ids, gain
    ACCELERATED[model] = head
    if generate:
        model.generate = Generate(model)
    return head


class ModuleHost:
    """A model of modules: one submodule is swapped."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.linear = model, output_layer_of(model)
        self.beside: tuple[Tensor, ...] = ()
        _check(self.linear)

    @property
    def known(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[0])

    @contextmanager
    def running(self) -> Iterator[None]:
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        try:
            yield
        finally:
            for module, training in modes:  # each its own: parts may be frozen in evaluation
                module.training = training

    def layer(self, link: headlong.Affine | headlong.SoftCap | None) -> headlong.Layer:
        seen = post_head(self.model, self.linear) if link is None else AfterLayer(link)
        self.beside = seen.beside
        return headlong.Layer(self.linear.weight.detach(), _bias(self.linear, seen), seen.link, name="lm_head.weight")

    def read(self, ids: Tensor) -> Tensor:
        return torch.cat(run(self.model, self.linear, ids)[0].hidden)

    def product(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden.to(self.linear.weight.dtype), self.linear.weight, self.linear.bias)

    def put(self, engine: Verbs) -> FastHead:
        head = FastHead(self.linear, engine, self.beside)
        put(self.model, self.linear, head)
        return head


def restore(model: PreTrainedModel) -> nn.Module | None:
    """Put back the module that :func:`accelerate` replaced, with today's weights; a plain model stays as it is. A model over
    a graph runs all of it again, and None is returned."""
    if graph_host(model) is not None:
        if (cut := ACCELERATED.pop(model, None)) is not None:
            cut.host.undo()
        _unset_generate(model)
        return None
    head: nn.Module = output_layer_of(model)
    if not isinstance(head, FastHead):
        if ACCELERATED.pop(model, None) is not None and any(isinstance(part, FastHead) for part in model.modules()):
            raise InputError(f"{named(head)} was put around the output layer; remove it first, then restore(model)")
        _unset_generate(model)
        return head
    _check_hooks(head)
    before = head.plain()
    put(model, head, before)
    ACCELERATED.pop(model, None)
    _unset_generate(model)
    return before


def _unset_generate(model: PreTrainedModel) -> None:
    if isinstance(vars(model).get("generate"), Generate):
        vars(model).pop("generate")  # no del: optimum has modules that were never begun as such


def _bias(linear: nn.Linear, seen: AfterLayer) -> Tensor | None:
    """The layer's own and what the model adds afterwards, in float32."""
    parts = [part.detach().float() for part in (linear.bias, seen.bias) if part is not None]
    return sum(parts[1:], parts[0]) if parts else None


def held_back(hidden: Any) -> tuple[Any, Any]:
    """Vectors to compile from, and the last few to time with: an engine is faster on those that it was fitted to."""
    if hidden is None or getattr(hidden, "ndim", 0) != 2:
        return hidden, None
    count = REPEATS if len(hidden) >= ENOUGH else 0
    return hidden[: len(hidden) - count], hidden[len(hidden) - count :]


def _gain(host: Host, engine: Verbs, rows: Any) -> Gain | None:
    """Timed in turn over a few rows: the product, the engine's look, and the model without either; None without rows."""
    one, rest = one_step(host)
    rows = torch.as_tensor(rows) if rows is not None else torch.zeros(1, engine.layer.dim) if one is None else one
    if not len(rows):
        return None
    product = _least(lambda row: host.product(row).argmax(), rows)
    return Gain(product, _least(lambda row: engine.topk(row, k=1, eps=math.inf), rows), rest)


def _least(call: Callable[[Tensor], Any], rows: Tensor) -> float:
    times = []
    for turn in range(REPEATS):
        row = rows[turn % len(rows)][None]
        began = time.perf_counter()
        call(row)
        times.append(time.perf_counter() - began)
    return 1e3 * sorted(times)[len(times) // 2]


def output_layer_of(model: PreTrainedModel) -> Any:
    """What ``model`` says is its output layer."""
    found = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if not isinstance(found, nn.Module):
        raise InputError(
            f"{named(model)} names no output layer over a vocabulary; expected a model of transformers that does, "
            "as those of AutoModelForCausalLM.from_pretrained(...); for any other module see headlong.torch.OutputLayer"
        )
    return found


def _check(linear: Any) -> None:
    if isinstance(linear, FastHead):
        raise InputError("the model is accelerated already; call restore(model) first")
    if type(linear) is not nn.Linear:
        kind = f"{type(linear).__module__}.{type(linear).__name__}"
        raise InputError(
            f"the model's output layer is {kind}; expected torch.nn.Linear over all classes: merge an adapter first "
            "(merge_and_unload), load without quantising the output layer"
        )
    if type(linear.weight) is not nn.Parameter:
        kind = type(linear.weight).__name__
        raise InputError(f"the output layer's weight is {an(kind)}; expected plain numbers: dequantise it")
    if linear.weight.device.type != "cpu":
        raise DtypeError(f"the model is on {linear.weight.device}; this reads from the CPU's memory: pass model.cpu()")
    if linear.weight.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise DtypeError(f"the model is {linear.weight.dtype}; expected float32, float16 or bfloat16: pass model.float()")
    _check_hooks(linear)


def _check_hooks(module: nn.Module) -> None:
    """Hooks belong to a module, and would stay with the one that goes."""
    if hooked(module):
        raise InputError(
            "the output layer has hooks (torch's or the accelerate library's), which would be lost; remove them first"
        )
