"""The tree of a plan in an engine's file: two arrays and a number, all of it checked on the way back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headlong.arrays import Array
from headlong.engines.saved.blocks import TensorReader
from headlong.links import Link
from headlong.node_sums import MOST_DIM, NodeSums, fields_of, levels_of, widths_of

NAME = "plan.sums."


def tensors_of(sums: NodeSums) -> dict[str, Array]:
    """Both arrays by their names in the file."""
    return {NAME + "order": sums.order, NAME + "nodes": sums.nodes}


def read_sums(most: Any, tensor: TensorReader, vocab: int, dim: int, link: Link) -> NodeSums | None:
    """What was kept; None: ``most`` is, and files from before there were any have no word of it. Else a ValueError."""
    if most is None:
        return None
    if type(most) not in (int, float) or not 0 < most < math.inf:
        raise ValueError(f"sums have {most!r} bytes at most; expected a number above 0")
    if dim > MOST_DIM or link.lowered()[0] != "affine":
        raise ValueError(f"sums of nodes are of at most {MOST_DIM} coordinates and an affine link")
    order = tensor(NAME + "order", np.int32, (vocab,))
    if not np.array_equal(np.sort(order), np.arange(vocab)):
        raise ValueError("the order of the tree leaves a class out, or holds ids that are none")
    nodes = tensor(NAME + "nodes", np.float64, (None, sum(widths_of(dim))))
    levels = levels_of(nodes)
    if len(nodes) != 2 ** (levels + 1) - 1 or 2**levels > vocab:
        raise ValueError(f"the tree has {len(nodes)} nodes for {vocab} classes; expected whole levels")
    if not np.isfinite(nodes).all():
        raise ValueError("the tree holds infinity or NaN")
    fields = fields_of(nodes, dim)
    if (fields.low > fields.high).any() or (fields.rest[:, 0] > fields.rest[:, 1]).any():
        raise ValueError("a node of the tree ends before it begins")
    return NodeSums(order, nodes, float(most))
