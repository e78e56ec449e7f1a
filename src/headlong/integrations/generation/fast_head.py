"""The module that stands where a model's output layer stood: the same product, with an engine beside it.

::

    head(hidden) = hidden @ weight.T + bias     to every call of the model: losses, training, beams, torch.compile
    head.engine                                 what generate asks instead, while the module only keeps ``hidden``
    head.by_ids                                 for ids alone, which take fewer bytes than normalisers

A dense answer is never made up from candidates here: whoever calls the model sees the scores it always had.
"""

from __future__ import annotations

import itertools
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import headlong
from headlong.cached_attribute import once
from headlong.engines.contract import Verbs
from headlong.errors import InputError
from headlong.integrations.generation.fingerprint import Fingerprint

FASTER = 1.05
"""Times as fast from which a step is called faster: less would be printed as 1.0x."""
CHANGED = "the weights have changed since accelerate(); restore(model) and accelerate(model) again"


class Gain(NamedTuple):
    """Milliseconds on this machine: the dense product, the engine's look, and all else of a decode step (NaN: unknown)."""

    product: float
    look: float
    rest: float

    @property
    def step(self) -> float:
        """How many times faster a greedy step should be."""
        return (self.product + self.rest) / (self.look + self.rest)

    def __str__(self) -> str:
        layer = f"output layer {self.look:.3g} ms instead of {self.product:.3g}"
        if self.rest != self.rest:
            return layer
        step = f"{self.step:.1f}x as fast" if self.step >= FASTER else "no faster"
        return f"{layer}, a greedy step {step} from candidates"


class Reading:
    """A head in the place of an output layer: keeps hidden vectors for whoever asks it to, and counts what it answers.

    ``paths`` counts rows by the way they were answered.
    """

    engine: Verbs
    by_ids: Verbs
    in_features: int
    out_features: int
    gain: Gain | None

    def begin(self, engine: Verbs) -> None:
        self.engine, self.by_ids, self.gain = engine, engine, None
        self.paths: Counter[str] = Counter()
        self._said: set[str] = set()
        self._taken = threading.local()

    @once
    def by_rows(self) -> Verbs:
        """All rows, for normalisers as close as beams ask for them, where codes do not come so close."""
        of: Any = self.engine
        rows: Verbs = headlong.compile(of.layer, "full", threads=of.threads)
        return rows

    def keeps(self, hidden: Tensor) -> int:
        """How many scores the answer to ``hidden`` is to have, where it is kept instead of multiplied; 0 elsewhere."""
        width = getattr(self._taken, "width", 0)
        if width:
            self._taken.hidden = hidden
        return int(width)

    def answered(self, hidden: Tensor, product: Callable[[Tensor], Tensor]) -> Tensor:
        """Zeros where ``hidden`` is kept, else the dense ``product``, counted."""
        if width := self.keeps(hidden):
            return hidden.new_zeros(*hidden.shape[:-1], width)
        why = getattr(self._taken, "dense", "") or "a plain call of the model"
        self.count(f"dense: {why}", hidden.numel() // self.in_features)
        return product(hidden)

    def taking(self, width: int = 1) -> Taking:
        """``with head.taking() as taken: model(...)``: the model runs, the head keeps what it was given, and answers zeros."""
        return Taking(self._taken, width)

    @contextmanager
    def dense(self, why: str) -> Iterator[None]:
        """A context: calls in this thread are counted as ``why``."""
        self._taken.dense = why
        try:
            yield
        finally:
            self._taken.dense = ""

    def count(self, path: str, rows: int) -> None:
        self.paths[path] += rows

    def fall_back(self, why: str, rows: int = 0) -> None:
        """Count rows that took the dense layer for the reason ``why``; the first time, warn."""
        self.count(f"dense: {why}", rows)
        if why not in self._said:
            self._said.add(why)
            warnings.warn(f"headlong reads the whole output layer for this: {why}", RuntimeWarning, stacklevel=4)

    @property
    def stale(self) -> bool:
        """Whether the weights are others than the engine's."""
        raise NotImplementedError

    def changed(self) -> None:
        """Warn that the weights are no longer those of the engine."""
        self.fall_back(CHANGED)


class FastHead(Reading, nn.Linear):
    """``hidden [..., dim] -> hidden @ weight.T + bias``, and ``engine`` over the same numbers.

    A copy or a pickle of this module is the plain ``nn.Linear``: the engine belongs to these weights in this memory. Under
    ``torch.compile`` the module is one opaque call.
    """

    def __init__(self, linear: nn.Linear, engine: Verbs, beside: tuple[Tensor, ...] = ()) -> None:
        nn.Module.__init__(self)  # not nn.Linear's: it would allocate a second weight
        self.in_features, self.out_features = linear.weight.shape[1], linear.weight.shape[0]
        self.weight, self.bias = linear.weight, linear.bias
        self.begin(engine)
        self._before = (linear,)  # a tuple hides the module from state_dict and named_modules
        self._beside = beside  # what else went into the engine's bias
        self._seen = Fingerprint(*self._parameters_now())
        self._changed = False
        self._number = next(_NUMBERS)
        _HEADS[self._number] = self
        self.train(linear.training)

    @property
    def replaced(self) -> nn.Linear:
        """The module that was here before."""
        return self._before[0]

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # nn.Linear's name
        if torch.compiler.is_compiling():
            if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
                return functional.linear(input, self.weight, self.bias)
            scores: Tensor = output_layer(input, self.weight, self.bias, self._number)
            return scores
        return self.answered(input, lambda hidden: functional.linear(hidden, self.weight, self.bias))

    @property
    def stale(self) -> bool:
        """Whether the weights have been written to, moved or replaced since the engine was compiled; reads them once."""
        self._changed = self._changed or self._seen.differs(self._parameters_now())
        return self._changed

    def changed(self) -> None:
        self._changed = True
        super().changed()

    def _parameters_now(self) -> tuple[Tensor, ...]:
        return tuple(part for part in (self.weight, self.bias, *self._beside) if part is not None)

    def plain(self) -> nn.Linear:
        """The module that was here before, with the current parameters and mode."""
        before = self.replaced
        before.weight, before.bias = self.weight, self.bias
        before.out_features, before.in_features = self.weight.shape
        return before.train(self.training)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """``copy`` and ``pickle`` make the plain module: parameters are tied in the copy as they are here."""
        sizes = (self.in_features, self.out_features, self.bias is not None, "meta")  # nothing is allocated or drawn
        return nn.Linear, sizes, self.plain().__dict__

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.engine!r}" + (f", {self.gain}" if self.gain else "")


class Taking:
    """Asks a head, in this thread only, to keep its input instead of answering."""

    def __init__(self, taken: threading.local, width: int) -> None:
        self.taken, self.width = taken, width

    def __enter__(self) -> Taking:
        self.taken.width, self.taken.hidden = self.width, None
        return self

    def __exit__(self, *exception: object) -> None:
        self.taken.width = 0

    @property
    def latest(self) -> Tensor | None:
        """What the head was given by the last call, ``[..., dim]``."""
        latest: Tensor | None = self.taken.hidden
        return latest

    @property
    def hidden(self) -> Tensor:
        """The same, where there has to be one."""
        if self.latest is None:
            raise InputError("the model ran without calling its output layer; expected one that ends in it")
        return self.latest


_NUMBERS = itertools.count()
_HEADS: weakref.WeakValueDictionary[int, FastHead] = weakref.WeakValueDictionary()


@torch.library.custom_op("headlong::output_layer", mutates_args=())
def output_layer(hidden: Tensor, weight: Tensor, bias: Tensor | None, number: int) -> Tensor:
    """The head ``number``, which a compiled graph does not look into."""
    head = _HEADS.get(number)
    if head is not None and head.keeps(hidden.clone()):
        return hidden.new_zeros(*hidden.shape[:-1], len(weight))
    return functional.linear(hidden, weight, bias)


@output_layer.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, number: int) -> Tensor:
    return hidden.new_empty(*hidden.shape[:-1], weight.shape[0])
