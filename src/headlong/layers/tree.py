"""A tree of decisions with a class at every leaf: the log-probability of a class is the sum along its path.

::

    log p(class) = sum over the nodes on its path of log p(branch | node)
    two-way nodes    p(left | n) = sigmoid(weight[n] @ hidden + bias[n]), p(right | n) = 1 - that
    many-way nodes   p(branch r | n) = softmax(weight[rows of n] @ hidden + bias[rows of n])[r]

Two-way: Huffman, balanced and learned binary trees (Morin and Bengio 2005; Mnih and Hinton 2008). Many-way: classes of
words and the words in them (Goodman 2001), to any depth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from headlong.arrays import Array, as_numpy, resident, stored_bias, stored_matrix, to_host
from headlong.dtypes import Ids
from headlong.errors import OptionError, ShapeError
from headlong.layers.structured import StructuredLayer, register_layer


@register_layer
class TreeLayer(StructuredLayer):
    """``weight [rows, dim]``, ``bias [rows]`` or None, and where each branch leads.

    ``children``  of branches: a node's number (0 is the root), or ``~class`` for a leaf. Two-way: ``[nodes, 2]``, left and
                  right, node ``n`` being row ``n``; many-way: ``[rows]``, one branch for each row
    ``starts``    None: two-way; else ``[nodes + 1]``: node ``n`` has the rows ``starts[n] .. starts[n + 1] - 1``
    """

    kind: ClassVar[str] = "tree"

    def __init__(self, weight: Any, bias: Any, children: Any, starts: Any = None) -> None:
        self.resident = resident(weight)
        self.weight = stored_matrix(to_host(weight))
        rows, self.dim = self.weight.shape
        self.bias = None if bias is None else stored_bias(to_host(bias), rows)
        shape = (rows,) if starts is not None else (rows, 2)
        self.children = _integers(children, shape, "children")
        self.starts = None if starts is None else _checked_starts(_integers(starts, None, "starts"), rows)
        self.depths = check_tree(self.children.reshape(-1), self.branch_starts)
        """``[nodes]``: branches from the root to each node."""
        self.vocab = int((self.children < 0).sum())

    @property
    def branch_starts(self) -> Ids:
        """``[nodes + 1]``: node ``n`` has the branches ``branch_starts[n] .. branch_starts[n + 1] - 1`` of ``children``."""
        return 2 * np.arange(len(self.weight) + 1) if self.starts is None else self.starts

    @property
    def two_way(self) -> bool:
        return self.starts is None

    def tensors(self) -> dict[str, Array]:
        found: dict[str, Array] = {"weight": self.weight, "children": self.children}
        found |= {} if self.bias is None else {"bias": self.bias}
        return found | ({} if self.starts is None else {"starts": self.starts})

    def facts(self) -> dict[str, Any]:
        return {"two_way": self.two_way}

    @classmethod
    def rebuilt(cls, tensors: Mapping[str, Array], facts: Mapping[str, Any]) -> TreeLayer:
        if facts["two_way"] is not ("starts" not in tensors):
            raise OptionError(f"two_way is {facts['two_way']!r}, and starts are {'' if 'starts' in tensors else 'not '}there")
        return cls(tensors["weight"], tensors.get("bias"), tensors["children"], tensors.get("starts"))

    def __repr__(self) -> str:
        nodes = len(self.branch_starts) - 1
        way = "two-way" if self.two_way else "many-way"
        return f"TreeLayer(vocab={self.vocab}, dim={self.dim}, {nodes} {way} nodes, {self.weight.dtype.name})"


def _integers(values: Any, shape: tuple[int, ...] | None, name: str) -> Ids:
    array = as_numpy(to_host(values), name)
    if array.dtype.kind not in "iu" or (array.shape != shape if shape is not None else array.ndim != 1):
        wanted = "[nodes + 1]" if shape is None else str(list(shape))
        raise ShapeError(f"{name} is {array.dtype} of shape {list(array.shape)}; expected integers {wanted}")
    kept: Ids = np.array(array, np.int64)
    kept.flags.writeable = False
    return kept


def _checked_starts(starts: Ids, rows: int) -> Ids:
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != rows or (starts[1:] <= starts[:-1]).any():
        raise OptionError(f"starts has to rise from 0 to the {rows} rows, one step or more for each node; got {starts[:9]} ...")
    return starts


def check_tree(children: Ids, starts: Ids) -> Ids:
    """The depth of every node; OptionError unless the branches make one tree with each class at one leaf."""
    nodes = len(starts) - 1
    inner, leaves = children[children >= 0], ~children[children < 0]
    if not len(leaves):
        raise OptionError("the tree has no leaf; a branch to class c is written ~c")
    if inner.max(initial=0) >= nodes or leaves.max() >= len(leaves):
        wrong = f"node {inner.max()} of {nodes}" if inner.max(initial=0) >= nodes else f"class {leaves.max()}"
        raise OptionError(f"the tree leads to {wrong}, with {len(leaves):,} leaves: a class is missing, or a node is")
    seen = np.bincount(leaves, minlength=len(leaves))
    if (seen != 1).any():
        raise OptionError(f"the tree misses class {np.argmin(seen)} and has class {np.argmax(seen)} {seen.max()} times")
    times = np.bincount(inner, minlength=nodes)
    times[0] += 1  # nothing leads to the root, which counts as reached
    if (times != 1).any():
        node = int(np.argmax(times != 1))
        reached = f"{times[node] - (node == 0)} branches lead to node {node}"
        raise OptionError(f"{reached}; every node but the root, 0, has one branch that leads to it")
    owner = np.repeat(np.arange(nodes), np.diff(starts))
    above = np.zeros(nodes, np.int64)
    above[inner] = owner[children >= 0]
    depths = np.ones(nodes, np.int64)
    depths[0] = 0
    for _ in range(nodes.bit_length()):  # each round looks twice as far up
        depths += depths[above]
        above = above[above]
    if above.any():
        raise OptionError(f"node {int(np.argmax(above > 0))} cannot be reached from the root: the way up goes in a circle")
    return depths
