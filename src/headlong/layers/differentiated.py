"""Differentiated softmax, finished: blocks of classes each read a part of the hidden vector; one softmax over all of them.

::

    z[order[first_j + i]] = weight_j[i] @ x_j + bias_j[i]           for block j, class i of it
    x_j = hidden[start_j : start_j + width_j]    or    projection_j @ hidden
    log p = z - log(sum(exp(z)))

After Chen, Grangier and Auli (2016): frequent classes read many coordinates, rare ones few. These blocks are of any size, and
not those of sixteen classes that searches bound together (``encode/blocks/boxes.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from numpy.typing import NDArray

from headlong.arrays import Array
from headlong.errors import OptionError
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
from headlong.number_checks import whole


class Block(NamedTuple):
    """``layer`` reads ``layer.dim`` columns of the hidden vector from ``start`` on, or ``projection [width, dim] @ hidden``."""

    layer: Layer
    start: int = 0
    projection: NDArray[Any] | None = None


@register_layer
class BlocksLayer(StructuredLayer):
    """``blocks`` in turn take the classes ``order[0], order[1], ...`` (None: 0, 1, ...) of hidden vectors of size ``dim``."""

    kind: ClassVar[str] = "blocks"

    def __init__(self, blocks: Sequence[Block], dim: int, order: Any = None) -> None:
        self.dim = dim = whole(dim, "dim", 1, 2**40)
        self.blocks = tuple(_checked(number, block, dim) for number, block in enumerate(parts_of(blocks, Block, "blocks")))
        if not self.blocks:
            raise OptionError("there are no blocks; expected one or more")
        self.vocab = sum(block.layer.vocab for block in self.blocks)
        self.order = class_order(order, self.vocab)

    def tensors(self) -> dict[str, Array]:
        found: dict[str, Array] = {} if self.order is None else {"order": self.order}
        for number, block in enumerate(self.blocks):
            found |= part_tensors(f"blocks.{number}", block.layer)
            if block.projection is not None:
                found[f"blocks.{number}.projection"] = block.projection
        return found

    def facts(self) -> dict[str, Any]:
        return {"dim": self.dim, "starts": [block.start for block in self.blocks]}

    @classmethod
    def rebuilt(cls, tensors: Mapping[str, Array], facts: Mapping[str, Any]) -> BlocksLayer:
        blocks = [
            Block(part_of(f"blocks.{number}", tensors), start, tensors.get(f"blocks.{number}.projection"))
            for number, start in enumerate(facts["starts"])
        ]
        return cls(blocks, facts["dim"], tensors.get("order"))

    def __repr__(self) -> str:
        parts = " + ".join(f"{block.layer.vocab} x {block.layer.dim}" for block in self.blocks)
        return f"BlocksLayer(vocab={self.vocab}, dim={self.dim}, {parts}, {self.blocks[0].layer.dtype})"


def _checked(number: int, block: Block, dim: int) -> Block:
    """The block, or what is wrong with it."""
    layer, start, projection = block
    if layer.link != IDENTITY:
        raise OptionError(f"block {number} has the link {layer.link}; blocks share one softmax: fold the link into the weights")
    if projection is not None:
        return Block(layer, 0, checked_projection(projection, (layer.dim, dim), f"block {number}"))
    if type(start) is not int or not 0 <= start <= dim - layer.dim:
        raise OptionError(
            f"block {number} reads {layer.dim:,} columns from {start!r} on; the hidden vector has {dim:,}: start at 0 to "
            f"{dim - layer.dim}"
        )
    return block
