"""optimum's models over OpenVINO and ONNX Runtime: bodies end in hidden vectors, and a head stands behind ``forward``.

::

    body:  ... -> hidden, named "logits"           the host compiles it with the model's own settings; states and caches are its
    rest:  hidden -> "logits"                      the host's own product, compiled when a plain call asks for scores

A decoder beside an encoder may be two graphs, one that starts a text and one that goes on; both end in the same layer.
``transformers.accelerate`` asks a host for what it asks a model of modules for: :class:`Host` says what.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from headlong import Layer
from headlong.errors import InputError
from headlong.integrations.generation.fast_head import Reading
from headlong.integrations.generation.inspect_model import inputs_of
from headlong.packed_rows import PackedRows

AGAIN = "the model was compiled again since accelerate(); restore(model) and accelerate(model) again"


class Host(Protocol):
    """``model``  whose layer it is; ``known``  how many token ids it reads; ``running``  a context in which it may be run and
    changed; ``layer``  the numbers of the layer; ``read``  token ids ``[1, n]`` to what feeds it, ``[n, dim]``;
    ``product``  its own answer to such vectors; ``put``  a head over the engine in the layer's place, which is returned.
    """

    @property
    def model(self) -> Any: ...

    @property
    def known(self) -> int: ...

    def running(self) -> Any: ...

    def layer(self, link: Any) -> Layer: ...

    def read(self, ids: Tensor) -> Tensor: ...

    def product(self, hidden: Tensor) -> Tensor: ...

    def put(self, engine: Any) -> Any: ...


class CutHead(Reading, nn.Module):
    """``hidden [..., dim] -> [..., vocab]``, the host's own scores, and ``engine`` over the weights of its graph."""

    def __init__(self, host: GraphHost, engine: Any) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = engine.layer.dim, engine.layer.vocab
        self.begin(engine)
        self.host = host

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # as FastHead's
        return self.answered(input, self.host.product)

    @property
    def stale(self) -> bool:
        """A graph's constants do not change."""
        return False

    def extra_repr(self) -> str:
        return repr(self.engine) + (f", {self.gain}" if self.gain else "")


class Part:
    """One graph of a model that makes "logits": ``owner`` runs it, by what it keeps under the name ``slot``."""

    slot: str

    def __init__(self, owner: Any) -> None:
        self._owner = weakref.ref(owner)  # a head is kept as long as its model: it must not keep the model
        self.body: Any = None

    @property
    def owner(self) -> Any:
        return self._owner()

    def layer(self, link: Any) -> Layer:
        """The layer, which is cut off: from here on the owner runs the body."""
        raise NotImplementedError

    def rest(self) -> Callable[[Any], Any]:
        raise NotImplementedError

    def whole(self) -> None:
        """The owner as it was before."""
        raise NotImplementedError

    @property
    def current(self) -> bool:
        return getattr(self.owner, self.slot) is self.body


class GraphHost:
    """A model of ``parts`` that end in the same layer."""

    def __init__(self, model: Any, parts: list[Part]) -> None:
        if "forward" in vars(model):
            raise InputError("model.forward was set on this model, not a method of its class; call restore(model) first")
        self._model, self.parts = weakref.ref(model), parts
        self._product: Callable[[Tensor], Tensor] | None = None

    @property
    def model(self) -> Any:
        return self._model()

    @property
    def stock(self) -> Callable[..., Any]:
        """``forward`` as the model's class has it."""
        return types.MethodType(type(self.model).forward, self.model)

    @property
    def known(self) -> int:
        return int(self.model.config.get_text_config(decoder=True).vocab_size)

    def layer(self, link: Any) -> Layer:
        return same_layer([part.layer(link) for part in self.parts])

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.undo()
            raise

    @property
    def current(self) -> bool:
        return all(part.current for part in self.parts)

    def read(self, ids: Tensor) -> Tensor:
        given = inputs_of(self.model, ids)
        given |= {"attention_mask": torch.ones_like(ids)} if "input_ids" in given else {}
        hidden = self.stock(**given).logits
        return torch.as_tensor(hidden).reshape(-1, hidden.shape[-1])

    def product(self, hidden: Tensor) -> Tensor:
        if self._product is None:
            run = self.parts[0].rest()
            self._product = lambda rows: torch.from_numpy(run(rows.detach().numpy()))
        return self._product(hidden)

    def put(self, engine: Any) -> CutHead:
        head, stock = CutHead(self, engine), self.stock

        @functools.wraps(stock)
        def forward(*inputs: Any, **options: Any) -> Any:
            out = stock(*inputs, **options)
            if out.logits.shape[-1] == head.in_features:
                out.logits = head(out.logits)
            return out

        self.model.forward = forward
        return head

    def undo(self) -> None:
        vars(self.model).pop("forward", None)
        for part in self.parts:
            if part.body is not None and part.current:
                part.whole()
            part.body = None


def same_layer(layers: list[Layer]) -> Layer:
    """The layer that the graphs of a model end in: one that starts a text and one that goes on."""

    def numbers(layer: Layer) -> list[Any]:
        weight = layer.weight
        return [type(weight), weight.stored if isinstance(weight, PackedRows) else weight, layer.bias, layer.link]

    for other in layers[1:]:
        if not all(np.array_equal(a, b) for a, b in zip(numbers(layers[0]), numbers(other), strict=True)):
            raise InputError("the graphs that start a text and go on end in different layers; expected the same in both")
    return layers[0]


def _openvino(owner: Any) -> Part:
    from headlong.integrations.graphs.on_openvino import OpenVino

    return OpenVino(owner)


def _onnx(owner: Any) -> Part:
    from headlong.integrations.graphs.on_onnx import OnnxRuntime

    return OnnxRuntime(owner)


KINDS: dict[str, Callable[[Any], Part]] = {
    "OVModelForCausalLM": _openvino, "ORTModelForCausalLM": _onnx,
    "OVModelForSeq2SeqLM": _openvino, "ORTModelForConditionalGeneration": _onnx,
}  # fmt: skip
"""optimum's classes, those that others are made of; the latter two have decoders, Whisper's among them."""


def graph_host(model: Any) -> Callable[[Any], GraphHost] | None:
    """What cuts models of this class; None for all but optimum's."""
    names = [kind.__name__ for kind in type(model).__mro__ if kind.__module__.partition(".")[0] == "optimum"]
    of = next((KINDS[name] for name in names if name in KINDS), None)
    if of is None:
        return None
    owners = [getattr(model, name, None) for name in ("decoder", "decoder_with_past")] if hasattr(model, "encoder") else [model]
    return lambda model: GraphHost(model, [of(owner) for owner in owners if owner is not None])
