"""What a search by blocks and a look at all classes cost on this machine: what each reads, priced by :mod:`headlong.costs`.

    ns of a search  =  call + threads * (memory * what every search reads + fetched(what it opens)
                       + (row + gathered * a row's bytes) * rows)                               a search is one thread's
    ns of a look    =  call + passes + bytes of every class + 0.7 * narrowed * classes + row * candidates
                       + the same of the classes that are looked at closer, and of rows
    ns of a dense pass, which larger batches share over a small layer
                    =  call + a product for every number + 0.7 * narrowed * classes + row * candidates + k rows

    candidates  =  k (1 + log(classes / k))      those that are better than all before, where classes come in any order

Both are those of a call after another, half of whose bytes are in the caches: between a loop and cold calls.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from headlong.costs import Costs
from headlong.layers.matrix import Layer
from headlong.plan import Plan
from headlong.previews.look_costs import SET_UP, WIDENED, scanned

MOST_STREAMS = 4
"""Threads that take all of the bandwidth of the memory."""
PASSES = 4
"""Of all threads, in the look of one query: some classes, all classes, those that are looked at closer, rows."""
COMPARED = 0.7
"""Of :attr:`Costs.narrowed`: an interval and its comparison, without exponentials and sums."""


MOST_BYTES = 2.0**60
"""More than any search opens."""
LEAD = 0.85
"""Of the look's time: the vectors that a search is judged by chose its bounds, too, and others open more."""


class Counted(NamedTuple):
    """Of one query: bytes that every query reads, bytes that it opens, and rows; ``items`` of what it opens, where each of them
    is asked for alone; the share of queries that have to be asked again, another way."""

    every: float
    opened: float
    rows: float
    items: float = 0.0
    again: float = 0.0


class Asked(NamedTuple):
    """What is asked of ``layer``: the ``k`` best for each of ``batch`` queries."""

    layer: Layer
    k: int
    batch: int = 1

    @property
    def row(self) -> int:
        """The bytes of a row."""
        return self.layer.dim * self.layer.weight.itemsize


def sooner(asked: Asked, plan: Plan, search: Counted, look: Counted, costs: Costs) -> bool:
    """Whether the search is well over before the look is, or a dense pass where a batch takes that, for one query of it."""
    by_all = of_dense_pass(asked, plan, costs) if asked.batch > plan.dense.batch else of_look(asked, plan, look, costs)
    return of_search(asked, search, costs) <= LEAD * by_all * (1 - search.again)


def later_from(asked: Asked, plan: Plan, search: Counted, look: Counted, costs: Costs) -> float:
    """Bytes, without the rows of the answers, from which a search for one query is over after the look: such a search as this
    one, but for what it opens."""
    by_all, low, high = of_look(asked, plan, look, costs), search.opened, max(1.0, search.opened)
    while high < MOST_BYTES and of_search(asked, search._replace(opened=high), costs) < by_all:
        low, high = high, 2 * high
    for _ in range(16):
        middle = (low + high) / 2
        later = of_search(asked, search._replace(opened=middle), costs) >= by_all
        low, high = (low, middle) if later else (middle, high)
    return search.every + high + max(0.0, search.rows - asked.k) * asked.row


def of_search(asked: Asked, search: Counted, costs: Costs) -> float:
    """Nanoseconds. In a batch every thread has queries of its own."""
    threads = costs.threads if asked.batch == 1 else 1
    reading = costs.call / asked.batch + min(threads, MOST_STREAMS) * costs.memory * search.every / asked.batch
    return reading + threads * (fetched(search.opened, costs) + (costs.row + costs.gathered * asked.row) * search.rows)


def of_look(asked: Asked, plan: Plan, look: Counted, costs: Costs) -> float:
    """Nanoseconds. What a batch shares is codes: intervals and candidates are each query's own."""
    batch, every = asked.batch, asked.layer.vocab * asked.row
    looking = costs.call / batch + max(scanned(look.every, costs) / batch, look.every * costs.product)
    looking += compared(asked, costs) + (PASSES * costs.level if batch == 1 else 0.0)
    if plan.rotation is not None:
        looking += SET_UP[batch > 1] * costs.level
    alone = (costs.threads if batch == 1 else 1) * costs.row + costs.gathered * asked.row
    closer = costs.threads * costs.row * look.items + costs.gathered * look.opened + alone * look.rows
    return looking + min(closer, max(scanned(every, costs) / batch, every * WIDENED * costs.product))


def of_dense_pass(asked: Asked, plan: Plan, costs: Costs) -> float:
    """Nanoseconds."""
    products = asked.layer.weight.size * WIDENED * costs.product / plan.dense.code_product
    rows = (costs.row + costs.gathered * asked.row) * asked.k
    return costs.call / asked.batch + products + compared(asked, costs) + rows


def compared(asked: Asked, costs: Costs) -> float:
    """Nanoseconds of the intervals of all classes, and of those that are among the best so far. Of one query each thread has
    some of the classes, and the best of those."""
    threads, k = costs.threads if asked.batch == 1 else 1, max(1, asked.k)
    candidates = threads * k * (1 + math.log(max(1.0, asked.layer.vocab / (threads * k))))
    return COMPARED * costs.narrowed * asked.layer.vocab + costs.row * candidates


def fetched(count: float, costs: Costs) -> float:
    """Nanoseconds of so many bytes here and there: those that the caches hold are there every other time."""
    return 0.0 if count <= 0 else costs.gathered * count * scanned(count, costs) / (costs.memory * count)
