"""Bounds of every node and class as the records of blocks state them, in float64: what native searches compute.

    bound(node) = base + scale <codes, x> + unit <lengths, ‖x_s‖>        no less than any logit below the node
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.plan import NEIGHBOURS, Blocks, BoxLevel

Doubles = NDArray[np.float64]
Ids = NDArray[np.int64]


class BoxQuery(NamedTuple):
    """The query's side of every bound: coordinates, lengths of its segments (for a closer look, too), and what all
    get.
    """

    x: Doubles
    lengths: Doubles
    closer: Doubles
    add: float
    slack: float


def children(nodes: Ids) -> Ids:
    """Those of every node, in order."""
    return (nodes[:, None] * NEIGHBOURS + np.arange(NEIGHBOURS)).ravel()


def halves_of(blocks: Blocks, hidden: Doubles) -> BoxQuery:
    """``x = leading @ (hidden - mean)``, and no less than the lengths of all segments."""
    centred = hidden - blocks.mean
    x, width, length = blocks.leading.astype(np.float64) @ centred, len(blocks.leading), float(np.linalg.norm(centred))
    sizes, behind = [], 0
    for start, stop in zip(blocks.edges, blocks.edges[1:], strict=False):
        if start < width:
            sizes.append(float(np.linalg.norm(x[start:stop])))
            continue
        assert blocks.rest_lost is not None
        assert blocks.back is not None
        assert blocks.rest is not None
        assert blocks.rest_scale is not None
        left, part = centred - x @ blocks.back.astype(np.float64), slice(start - width, stop - width)
        seen = left @ blocks.rest[:, part].astype(np.float64) * blocks.rest_scale[part]
        lost = blocks.rest_lost[behind] @ np.array([np.linalg.norm(left), length, np.linalg.norm(x)])
        sizes.append(float(np.linalg.norm(seen) * (1 + 2.0**-20) + lost))
        behind += 1
    halves = np.array([np.linalg.norm(x[: blocks.boxed]), np.linalg.norm(x[blocks.boxed :]), 1.0, length])
    widened = np.array(sizes) * (1 + 2.0**-18)
    shared, own = (float(np.array(factors) @ halves) * (1 + 2.0**-18) for factors in (blocks.shared, blocks.closer_shared))
    add = float(blocks.centre @ hidden)
    first = blocks.edges.index(width) if width in blocks.edges else len(sizes)
    return BoxQuery(x, np.append(widened, shared), np.append(widened[first:], own), add, abs(add) * 2.0**-20 + 2.0**-100)


def bounds(blocks: Blocks, level: BoxLevel, box: bool, query: BoxQuery, groups: Ids) -> tuple[Doubles, Doubles]:
    """``estimate, upper end [groups, 16]`` of the neighbours of some records: of boxes, or of classes."""
    records = level.records[groups]
    count, codes = len(records), level.codes * NEIGHBOURS
    numbers = codes + level.lengths * NEIGHBOURS
    x = query.x[: level.codes // 2 if box else level.codes]
    x = np.concatenate([np.maximum(x, 0), np.minimum(x, 0)]) if box else x
    coded = records[:, :codes].view(np.int8).reshape(count, level.codes, NEIGHBOURS).astype(np.float64)
    sizes = records[:, codes:numbers].reshape(count, level.lengths, NEIGHBOURS).astype(np.float64)
    product, lengths = np.einsum("gcs,c->gs", coded, x), np.einsum("gts,t->gs", sizes, query.lengths)
    scale, unit, base = np.moveaxis(
        np.ascontiguousarray(records[:, numbers:]).view(np.float32).reshape(count, 3, NEIGHBOURS).astype(np.float64), 1, 0
    )
    est = base + scale * product + query.add
    return est, est + unit * lengths + query.slack


def closer(blocks: Blocks, query: BoxQuery, places: Ids, est: Doubles) -> tuple[Doubles, Doubles]:
    """The same of single classes, by the coordinates behind those of a block."""
    assert blocks.closer is not None
    records, count = blocks.closer[places], len(blocks.leading) - blocks.boxed
    numbers = np.ascontiguousarray(records[:, -8:]).view(np.float32).astype(np.float64)
    product = records[:, :count].view(np.int8).astype(np.float64) @ query.x[blocks.boxed :]
    lengths = records[:, count:-8].astype(np.float64) @ query.closer
    est = est + numbers[:, 0] * product
    return est, est + numbers[:, 1] * lengths + query.slack
