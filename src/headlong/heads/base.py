"""What every trainable output layer does::

    output, loss = head(hidden, target)     # hidden [N, dim], target [N] -> target log-probabilities [N], a scalar
    head(hidden)                            # [N, vocab] log-probabilities, as head.log_prob(hidden)
    head.predict(hidden)                    # [N], the most probable class
    head.to_layer()                         # the finished layer: data only, what engines read

    n_i  = -w[target_i] log p[target_i]                                 w = class_weight, or 1
    s_i  = -sum_c w[c] log p[c] / vocab                                 e = label_smoothing
    loss = sum_i ((1 - e) n_i + e s_i) / sum_i w[target_i]              over the rows whose target is not ignore_index

``loss`` is what training minimises, as ``torch.nn.functional.cross_entropy`` has it. ``output`` costs a pass of its own and
is computed when it is first asked for, so a training step that only takes ``.loss`` pays nothing. A head is a constructor
``Kind(dim, vocab, weight=None, **options)``; ``weight`` is the embedding that a tied model shares with it.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headlong.errors import DtypeError, IdError, OptionError, ShapeError, UnsupportedError, named
from headlong.number_checks import real, whole

MOST = 2**40
"""Dimensions, and classes."""


class HeadOutput:
    """The pair ``(output, loss)``: ``output [N]`` the targets' log-probabilities, or what computes them; ``loss`` a scalar."""

    def __init__(self, loss: Tensor, output: Tensor | Callable[[], Tensor]) -> None:
        self.loss = loss
        self._output = output

    @property
    def output(self) -> Tensor:
        if not isinstance(self._output, Tensor):
            self._output = self._output()
        return self._output

    def __iter__(self) -> Iterator[Tensor]:
        yield self.output
        yield self.loss

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: int) -> Tensor:
        return (self.output, self.loss)[place]


class Head(nn.Module, ABC):
    """A module from ``hidden [N, dim]`` and ``target [N]`` to a :class:`HeadOutput`."""

    opaque: ClassVar[bool] = False
    """The loss is made by native calls or of data-dependent shapes: torch.compile leaves it as it is."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for verb in ("log_prob", "predict"):
            if verb in vars(cls):
                setattr(cls, verb, _of_checked_rows(vars(cls)[verb]))

    def __init__(self, dim: int, vocab: int) -> None:
        super().__init__()
        self.dim, self.vocab = whole(dim, "dim", 1, MOST), whole(vocab, "vocab", 2, MOST)

    def forward(
        self,
        hidden: Tensor,
        target: Tensor | None = None,
        *,
        ignore_index: int | None = -100,
        label_smoothing: float = 0.0,
        class_weight: Tensor | None = None,
    ) -> HeadOutput | Tensor:
        """``ignore_index`` None: no target is passed over, and a compiled graph is in one piece where it can be."""
        for name, value in (("hidden", hidden), ("target", target), ("class_weight", class_weight)):
            if not isinstance(value, Tensor) and (name == "hidden" or value is not None):
                raise DtypeError(f"{name} is {named(value)}; expected a torch tensor: pass torch.as_tensor({name})")
        kind = next((part.dtype for part in self.parameters()), hidden.dtype)
        if hidden.dtype == torch.float64 and kind != torch.float64:  # answered in float64, gradients in the parameters' type
            parts = [*self.named_parameters(), *self.named_buffers()]
            wide = {name: part.double() for name, part in parts if part.is_floating_point()}
            options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing, "class_weight": class_weight}
            answer: HeadOutput | Tensor = torch.func.functional_call(self, wide, (hidden, target), options)
            return answer
        if target is None:
            return self.log_prob(hidden)
        if self.opaque and torch.compiler.is_compiling():
            whole: HeadOutput = _in_one_piece(self, hidden, target, ignore_index, label_smoothing, class_weight)
            return whole
        found = self._called(hidden, target, ignore_index, label_smoothing, class_weight)
        if hidden.dtype == torch.float64:
            found.output  # noqa: B018  # now: the parameters may be others after this call
        return found

    def _called(
        self, hidden: Tensor, target: Tensor, ignore_index: int | None, label_smoothing: float, class_weight: Tensor | None
    ) -> HeadOutput:
        kept = None if ignore_index is None or target.dtype != torch.int64 else _kept(target, ignore_index)
        if not torch.compiler.is_compiling():  # ids are data: looking at them would break the graph
            self.check(hidden, target, target if kept is None else target[kept])
        rows, ids = (hidden, target) if kept is None else (hidden[kept], target[kept])
        if label_smoothing or class_weight is not None:
            found = self.weighted(rows, ids, *_checked(self.vocab, label_smoothing, class_weight))
        else:
            found = self.score(rows, ids)
        if kept is None:
            return found
        return HeadOutput(found.loss, lambda: found.output.new_zeros(len(hidden)).index_put((kept,), found.output))

    @abstractmethod
    def score(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        """``forward`` on checked input, every row counted once."""

    def weighted(self, hidden: Tensor, target: Tensor, smoothing: float, weight: Tensor | None) -> HeadOutput:
        """``forward`` on checked input with label smoothing, class weights, or both; costs ``[N, vocab]`` to smooth."""
        output = self.score(hidden, target).output
        share = torch.ones_like(output) if weight is None else weight.to(output)[target]
        losses = -(1 - smoothing) * share * output
        if smoothing:
            every = self.log_prob(hidden)
            spread = every.mean(-1) if weight is None else every @ weight.to(every) / self.vocab
            losses = losses - smoothing * spread
        return HeadOutput(losses.sum() / share.sum(), output)

    @abstractmethod
    def log_prob(self, hidden: Tensor) -> Tensor:
        """``[N, vocab]``, rows that sum to one."""

    def predict(self, hidden: Tensor) -> Tensor:
        """``[N]``, the most probable class; a head whose ranking is cheaper than its probabilities overrides this."""
        return self.log_prob(hidden).argmax(-1)

    @abstractmethod
    def to_layer(self) -> Any:
        """The finished layer, a copy that later training does not change."""

    def check(self, hidden: Tensor, target: Tensor, counted: Tensor | None = None) -> None:
        """ShapeError, DtypeError or IdError where the two, or the targets that are counted, do not fit this head."""
        self.check_rows(hidden)
        if target.shape != hidden.shape[:1]:
            raise ShapeError(f"target has shape {list(target.shape)}; expected [{hidden.shape[0]}], one class per row")
        if target.dtype != torch.int64:
            raise DtypeError(f"target is {target.dtype}; expected int64 class ids: pass target.long()")
        ids = target if counted is None else counted
        if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= self.vocab):
            raise IdError(f"target holds {int(ids.min())}..{int(ids.max())}; class ids run from 0 to {self.vocab - 1}")

    def check_rows(self, hidden: Any) -> None:
        """DtypeError or ShapeError for what are no hidden vectors of this head."""
        if not isinstance(hidden, Tensor) or hidden.layout != torch.strided:
            kind = f"{hidden.layout}" if isinstance(hidden, Tensor) else named(hidden)
            advice = "pass torch.as_tensor(hidden) or hidden.to_dense()"
            raise DtypeError(f"hidden is {kind}; expected a dense torch tensor: {advice}")
        place = next((part.device for part in self.parameters()), hidden.device)
        if hidden.device != place:
            raise DtypeError(f"hidden is on {hidden.device}, the head on {place}; expected both in one place: move one of them")
        if hidden.ndim != 2 or hidden.shape[1] != self.dim:
            raise ShapeError(f"hidden has shape {list(hidden.shape)}; expected [N, {self.dim}]: flatten batch and time")

    def check_tied(self, weight: Any, shape: tuple[int, int], advice: str = "") -> None:
        """DtypeError or ShapeError for a tied weight that is none."""
        if weight is not None and not isinstance(weight, Tensor):
            raise DtypeError(f"the tied weight is {named(weight)}; expected the embedding's own nn.Parameter")
        if weight is not None and tuple(weight.shape) != shape:
            raise ShapeError(f"the tied weight has shape {list(weight.shape)}; expected {list(shape)}{advice}")

    def refuse_tied(self, weight: Tensor | None) -> None:
        """OptionError for a weight that this head cannot share with an embedding."""
        if weight is not None:
            raise OptionError(f"{type(self).__name__} has no [vocab, dim] matrix to share; build the model with tied=false")

    def extra_repr(self) -> str:
        return f"dim={self.dim}, vocab={self.vocab}"


def product_type(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """The type that products of the two run in: autocast's where it is on."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype


def widened(values: Tensor) -> Tensor:
    """In float32 at least: the type that sums and exponentials are taken in."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def refuse_graph() -> None:
    """In a backward pass that is written by hand: UnsupportedError where its results are to be differentiated again."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise UnsupportedError("Second-order gradients are not supported: call backward without create_graph=True")


def _of_checked_rows(verb: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A verb of a head, asked by users directly: its rows are looked at first."""

    @functools.wraps(verb)
    def asked(head: Head, hidden: Tensor) -> Tensor:
        head.check_rows(hidden)
        return verb(head, hidden)

    return asked


def _kept(target: Tensor, ignored: int) -> Tensor | None:
    """The rows that count; None: all of them."""
    counts = target != ignored
    return None if bool(counts.all()) else counts.nonzero()[:, 0]


def _checked(vocab: int, smoothing: float, weight: Tensor | None) -> tuple[float, Tensor | None]:
    smoothing = real(smoothing, "label_smoothing", 0.0, 1.0)
    if weight is not None and tuple(weight.shape) != (vocab,):
        raise ShapeError(f"class_weight has shape {list(weight.shape)}; expected [{vocab}], one number per class")
    return smoothing, weight


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _in_one_piece(head: Head, *given: Any) -> HeadOutput:
    """One break in a compiled graph, where the loss is a loop over native calls that would break it many times."""
    return head._called(*given)  # noqa: SLF001
