"""The doubly sparse layer: a gate over K experts, each a small output layer over some of the classes.

::

    x = [hidden, 1]  (``constant``)   or   hidden
    G = softmax(gate @ x)        k = argmax G, the smaller among equals        g = G[k] (1 where ``scaled`` is off)
    z_c = weight_c . (g x)        for the rows starts[k] .. starts[k + 1], whose classes are ids
    log p(c) = z_c - log(sum over those rows of exp(z))        every other class: -inf

The experts' rows are one packed matrix, so an expert is a run of it. The finished form of doubly sparse softmax (Liao,
Chen, Lin, Zhou and Wang, 2019); with ``scaled`` off it is a layer screened by clusters (Chen et al., 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import Array, as_numpy, resident, stored_matrix, to_host
from headlong.errors import DtypeError, IdError, NonFiniteError, OptionError, ShapeError
from headlong.layers.matrix import Layer
from headlong.layers.structured import StructuredLayer, register_layer


@register_layer
class ExpertsLayer(StructuredLayer):
    """``gate [K, width]``, ``weight [rows, width]``, ``ids [rows]``, ``starts [K + 1]``; width: that of x.

    Inside an expert the ids ascend. A class may be in several experts, or in none: then it has probability 0.
    ``constant``  x ends in a 1, so the last column of the weights is a bias
    ``scaled``    the gate's probability multiplies x; off: the gate only chooses
    """

    kind: ClassVar[str] = "experts"

    def __init__(
        self, gate: Any, weight: Any, ids: Any, starts: Any, vocab: int, *, constant: bool = False, scaled: bool = True
    ) -> None:
        self.gate: NDArray[np.float32] = _frozen(stored_matrix(to_host(gate), "gate").astype(np.float32))
        self.resident = resident(weight)
        self.weight = stored_matrix(to_host(weight))
        self.ids, self.starts = whole_numbers(ids, "ids"), whole_numbers(starts, "starts")
        if type(vocab) is not int or type(constant) is not bool or type(scaled) is not bool:
            raise OptionError(f"vocab={vocab!r}, constant={constant!r}, scaled={scaled!r}; expected a number and two flags")
        self.vocab, self.constant, self.scaled = vocab, constant, scaled
        self.dim = self.width - constant
        self._check()

    @property
    def experts(self) -> int:
        return len(self.gate)

    @property
    def width(self) -> int:
        """The length of x, which the gate and the experts read."""
        return int(self.weight.shape[1])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Classes of each expert."""
        return np.diff(self.starts)

    def part(self, number: int) -> slice:
        """The rows of one expert."""
        return slice(int(self.starts[number]), int(self.starts[number + 1]))

    def expert(self, number: int) -> Layer:
        """One expert as a layer of one matrix that reads g x over its own classes: a view, not a copy."""
        return Layer(self.weight[self.part(number)])

    def tensors(self) -> dict[str, Array]:
        return {"gate": self.gate, "weight": self.weight, "ids": self.ids, "starts": self.starts}

    def facts(self) -> dict[str, Any]:
        return {"vocab": self.vocab, "constant": self.constant, "scaled": self.scaled}

    @classmethod
    def rebuilt(cls, tensors: Mapping[str, Array], facts: Mapping[str, Any]) -> ExpertsLayer:
        gate, weight, ids, starts = (tensors[name] for name in ("gate", "weight", "ids", "starts"))
        return cls(gate, weight, ids, starts, facts["vocab"], constant=facts["constant"], scaled=facts["scaled"])

    def _check(self) -> None:
        gate, starts, ids, rows = self.gate, self.starts, self.ids, len(self.weight)
        if self.dim < 1 or gate.shape[1] != self.width:
            raise ShapeError(f"gate has shape {list(gate.shape)}; expected [experts, {self.width}], as wide as the weight")
        if not np.isfinite(gate).all():
            raise NonFiniteError("gate holds NaN or infinity; expected finite numbers: repair or retrain it")
        if len(gate) > self.vocab:
            raise OptionError(f"{len(gate):,} experts for {self.vocab:,} classes; expected no more experts than classes")
        if starts.shape != (len(gate) + 1,) or starts[0] != 0 or starts[-1] != rows or ids.shape != (rows,):
            raise ShapeError(
                f"starts {list(starts.shape)} and ids {list(ids.shape)} do not divide {rows:,} rows among {len(gate)} experts; "
                "expected starts [experts + 1] from 0 to the rows, ids [rows]"
            )
        if (empty := starts[1:] <= starts[:-1]).any():  # compared, not subtracted: damaged numbers may be far apart
            raise OptionError(
                f"expert {int(np.argmax(empty))} has no class; leave every expert one or more, or drop it and its gate"
            )
        if ids.min() < 0 or ids.max() >= self.vocab:
            raise IdError(f"ids hold {int(ids.min())}..{int(ids.max())}; class ids run from 0 to {self.vocab - 1}")
        inner = np.ones(rows, bool)
        inner[starts[:-1]] = False
        if (np.diff(ids, prepend=-1)[inner] <= 0).any():
            raise IdError("the ids of an expert do not ascend, or one occurs twice; sort each expert's rows by class id")

    def __repr__(self) -> str:
        sizes = self.sizes
        return (
            f"ExpertsLayer(vocab={self.vocab}, dim={self.dim}, {self.weight.dtype.name}, {self.experts} experts of "
            f"{sizes.min()} to {sizes.max()} classes, {len(self.weight):,} rows)"
        )


def _frozen(array: Any) -> Any:
    array.flags.writeable = False
    return array


def whole_numbers(value: Any, name: str) -> NDArray[np.int64]:
    """``value`` as a read-only list of int64."""
    array = as_numpy(to_host(value), name)
    if array.dtype not in (np.int32, np.int64) or array.ndim != 1:
        raise DtypeError(f"{name} is {array.dtype} of shape {list(array.shape)}; expected a list of int64 numbers")
    numbers: NDArray[np.int64] = _frozen(array.astype(np.int64))
    return numbers
