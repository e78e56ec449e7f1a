"""A short list of frequent classes, and bands of rarer ones behind one token each (Grave et al., 2017).

::

    head = log_softmax(head.weight @ hidden + head.bias)                 over the short list, then one token for each band
    log p(order[i]) = head[i]                                            i in the short list
    log p(class i of band j) = head[short + j] + log_softmax(weight_j @ x_j + bias_j)[i]
    x_j = projection_j @ hidden, or hidden itself

Classes keep their own ids: ``order`` says which class is at each position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from numpy.typing import NDArray

from headlong.arrays import Array
from headlong.errors import DtypeError, OptionError, ShapeError, named
from headlong.layers.matrix import Layer
from headlong.layers.structured import (
    StructuredLayer,
    checked_projection,
    class_order,
    part_of,
    part_tensors,
    parts_of,
    register_layer,
)  # fmt: skip
from headlong.links import IDENTITY


class Band(NamedTuple):
    """``layer [size, width]`` over ``projection [width, dim] @ hidden``; without a projection, over the hidden vector."""

    layer: Layer
    projection: NDArray[Any] | None = None


@register_layer
class BandsLayer(StructuredLayer):
    """``head [short + bands, dim]`` and the bands; ``order [vocab]`` gives the class at each position (None: 0, 1, ...)."""

    kind: ClassVar[str] = "bands"

    def __init__(self, head: Layer, bands: Sequence[Band], order: Any = None) -> None:
        if not isinstance(head, Layer):
            raise DtypeError(f"head is {named(head)}; expected headlong.Layer(weight, bias)")
        bands = parts_of(bands, Band, "bands")
        if not bands or head.vocab < len(bands):
            raise OptionError(f"a head of {head.vocab} rows for {len(bands)} bands; expected one row for each band, and a band")
        if head.link != IDENTITY or any(band.layer.link != IDENTITY for band in bands):
            raise OptionError("a part has a link; the parts of a bands layer are plain: fold scales into the weights")
        self.head, self.dim = head, head.dim
        self.bands = tuple(_checked(number, band, head.dim) for number, band in enumerate(bands))
        self.short = head.vocab - len(bands)
        self.vocab = self.short + sum(band.layer.vocab for band in bands)
        self.order = class_order(order, self.vocab)

    def tensors(self) -> dict[str, Array]:
        found = part_tensors("head", self.head) | ({} if self.order is None else {"order": self.order})
        for number, band in enumerate(self.bands):
            found |= part_tensors(f"bands.{number}", band.layer)
            if band.projection is not None:
                found[f"bands.{number}.projection"] = band.projection
        return found

    def facts(self) -> dict[str, Any]:
        return {"sizes": [band.layer.vocab for band in self.bands], "short": self.short}

    @classmethod
    def rebuilt(cls, tensors: Mapping[str, Array], facts: Mapping[str, Any]) -> BandsLayer:
        bands = [
            Band(part_of(f"bands.{number}", tensors), tensors.get(f"bands.{number}.projection"))
            for number in range(len(facts["sizes"]))
        ]
        layer = cls(part_of("head", tensors), bands, tensors.get("order"))
        if layer.facts() != {name: facts[name] for name in ("sizes", "short")}:
            raise OptionError(f"its parts are {layer.facts()}, its facts say {dict(facts)}")
        return layer

    def __repr__(self) -> str:
        bands = " + ".join(f"{band.layer.vocab} x {band.layer.dim}" for band in self.bands)
        return f"BandsLayer(vocab={self.vocab}, dim={self.dim}, short list {self.short}, bands {bands}, {self.head.dtype})"


def _checked(number: int, band: Band, dim: int) -> Band:
    """The band, or what is wrong with it."""
    layer, projection = band
    if projection is None:
        if layer.dim != dim:
            raise ShapeError(f"band {number} reads {layer.dim:,} numbers, the hidden vector has {dim:,}; give it a projection")
        return band
    return Band(layer, checked_projection(projection, (layer.dim, dim), f"band {number}"))
