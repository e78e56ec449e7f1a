"""optimum's models over OpenVINO and ONNX Runtime: the body ends in hidden vectors, and a head stands behind ``forward``.

::

    body:  ... -> hidden, named "logits"           the host compiles it with the model's own settings; states and caches are its
    rest:  hidden -> "logits"                      the host's own product, compiled when a plain call asks for scores

``transformers.accelerate`` asks a host for what it asks a model of modules for: :class:`Host` says what.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from headlong import Layer
from headlong.errors import InputError
from headlong.integrations.generation.fast_head import Reading

AGAIN = "the model was compiled again since accelerate(); restore(model) and accelerate(model) again"


class Host(Protocol):
    """``known``  how many token ids it reads; ``read``  token ids ``[1, n]`` to what feeds the layer, ``[n, dim]``;
    ``product``  its own answer to such vectors; ``put``  a head over the engine in the layer's place, which is returned.
    """

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


class GraphHost:
    """What the two have in common; ``cut`` reads the graph, ``body`` and ``rest`` are compiled by the host."""

    slot: str
    """Where the model keeps what runs its graph."""

    def __init__(self, model: Any) -> None:
        if "forward" in vars(model):
            raise InputError("model.forward was set on this model, not a method of its class; call restore(model) first")
        self._model = weakref.ref(model)  # a head is kept as long as its model: it must not keep the model
        self.body: Any = None
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
        return int(self.model.config.get_text_config().vocab_size)

    def layer(self, link: Any) -> Layer:
        raise NotImplementedError

    def rest(self) -> Callable[[Any], Any]:
        raise NotImplementedError

    def whole(self) -> None:
        """The model as it was before."""
        raise NotImplementedError

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.undo()
            raise

    @property
    def current(self) -> bool:
        return getattr(self.model, self.slot) is self.body

    def read(self, ids: Tensor) -> Tensor:
        hidden = self.stock(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        return torch.as_tensor(hidden).reshape(-1, hidden.shape[-1])

    def product(self, hidden: Tensor) -> Tensor:
        if self._product is None:
            run = self.rest()
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
        if self.body is not None and self.current:
            self.whole()
        self.body = None


def _openvino(model: Any) -> GraphHost:
    from headlong.integrations.graphs.on_openvino import OpenVino

    return OpenVino(model)


def _onnx(model: Any) -> GraphHost:
    from headlong.integrations.graphs.on_onnx import OnnxRuntime

    return OnnxRuntime(model)


KINDS: dict[str, Callable[[Any], GraphHost]] = {"OVModelForCausalLM": _openvino, "ORTModelForCausalLM": _onnx}


def graph_host(model: Any) -> Callable[[Any], GraphHost] | None:
    """What cuts models of this class; None for all but optimum's."""
    names = [kind.__name__ for kind in type(model).__mro__ if kind.__module__.partition(".")[0] == "optimum"]
    return next((KINDS[name] for name in names if name in KINDS), None)
