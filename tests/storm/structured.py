"""Layers of several parts as a storm throws them, each with its distribution in float64 by another route than any engine takes.

::

    layer, reference = build_structured(kind, vocab, dim, spread, dtype, rng, queries)
    reference(hidden) = Reference(exponents [batch, vocab], rounding [batch])

``exponents`` are what an answer's ``logits`` are: log-probabilities of trees, bands and mixtures, logits of the others, -inf
for a class that is not there. ``rounding``: how far either side may be off in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import headlong as hl
from headlong.layers.bands import Band
from headlong.layers.differentiated import Block
from headlong.layers.structured import StructuredLayer

Doubles = NDArray[np.float64]
Ids = NDArray[np.int64]
UNIT = 2.0**-52


class Reference(NamedTuple):
    exponents: Doubles
    rounding: Doubles


Oracle = Callable[[Doubles], Reference]
Made = tuple[StructuredLayer, Oracle]


class Wanted(NamedTuple):
    """What a layer should be like: ``queries`` are some hidden vectors, over which its logits spread by about ``spread``."""

    vocab: int
    dim: int
    spread: float
    dtype: Any
    queries: Doubles
    rng: np.random.Generator

    def rows(self, count: int, width: int, seen: Doubles | None = None, constant: bool = False) -> NDArray[Any]:
        """``[count, width]`` random rows of that spread over ``seen``."""
        rows = self.rng.standard_normal((count, width))
        rows *= np.exp(0.4 * self.rng.standard_normal((count, 1)))
        over = self.queries if seen is None else seen
        over = np.column_stack([over, np.ones(len(over))]) if constant else over
        size = float(np.std(over @ rows[: min(count, 256)].T)) or 1.0
        return np.asarray(np.clip(rows * (self.spread / size), -6e4, 6e4).astype(self.dtype))

    def bias(self, count: int) -> NDArray[np.float32] | None:
        return self.rng.standard_normal(count).astype(np.float32) if self.rng.random() < 0.5 else None


def build_structured(kind: str, wanted: Wanted) -> Made:
    return MAKERS[kind](wanted)


def _product(rows: Any, bias: Any, x: Doubles) -> tuple[Doubles, Doubles]:
    """``(rows @ x + bias, how far off)``."""
    wide = np.asarray(rows, np.float64)
    longest = float(np.linalg.norm(wide, axis=1).max())
    largest = 0.0 if bias is None else float(np.abs(bias).max())
    off = (wide.shape[1] + 8) * UNIT * (longest * np.linalg.norm(x, axis=1) + largest + 1)
    return x @ wide.T + (0.0 if bias is None else bias), off


def _log_softmax(z: Doubles) -> Doubles:
    shift = z.max(axis=1, keepdims=True)
    return np.asarray(z - shift - np.log(np.exp(z - shift).sum(axis=1, keepdims=True)))


def _tree(wanted: Wanted) -> Made:
    """A balanced tree, a chain, or classes of words and the words in them."""
    vocab, rng, starts = wanted.vocab, wanted.rng, None
    shape = rng.choice(["balanced", "chain", "words"]) if 2 < vocab <= 300 else rng.choice(["balanced", "words"])
    leaves = ~rng.permutation(vocab)
    if vocab == 1 or shape == "words":
        cuts = np.sort(rng.choice(np.arange(1, vocab), int(vocab**0.5) - 1, replace=False)) if vocab > 3 else []
        edges = np.concatenate([[0], cuts, [vocab]]).astype(np.int64)
        groups = len(edges) - 1
        starts = np.concatenate([[0], groups + edges])
        children = np.concatenate([np.arange(1, groups + 1), leaves])
    elif shape == "chain":
        children = np.stack([leaves[: vocab - 1], np.append(np.arange(1, vocab - 1), leaves[vocab - 1])], axis=1)
    else:
        below = np.arange(1, 2 * vocab - 1).reshape(vocab - 1, 2)
        children = np.where(below < vocab - 1, below, leaves[np.maximum(below - (vocab - 1), 0)])
    count = len(children)
    layer = hl.structured.TreeLayer(wanted.rows(count, wanted.dim), wanted.bias(count), children, starts)
    return layer, lambda hidden: _walked(layer, hidden)


def _walked(layer: Any, hidden: Doubles) -> Reference:
    """Level after level: the log-probability of a node, and of its branches."""
    z, off = _product(layer.weight, layer.bias, hidden)
    edges, children = layer.branch_starts, layer.children.reshape(-1)
    if layer.starts is None:
        branches = -np.logaddexp(0.0, np.stack([-z, z], axis=2)).reshape(len(hidden), -1)
    else:
        branches = z - np.repeat(np.logaddexp.reduceat(z, edges[:-1], axis=1), np.diff(edges), axis=1)
    owner = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    nodes, found = np.zeros((len(hidden), len(edges) - 1)), np.zeros((len(hidden), layer.vocab))
    levels = np.argsort(layer.depths, kind="stable")
    cuts = np.flatnonzero(np.diff(layer.depths[levels])) + 1
    for level in np.split(levels, cuts):
        some = np.flatnonzero(np.isin(owner, level))
        value, to = nodes[:, owner[some]] + branches[:, some], children[some]
        nodes[:, to[to >= 0]] = value[:, to >= 0]
        found[:, ~to[to < 0]] = value[:, to < 0]
    deep = int(layer.depths.max()) + 2
    largest = np.abs(found).max(axis=1)
    return Reference(found, deep * (4 * off + 64 * UNIT) + 8 * UNIT * deep * largest)


def _parted(wanted: Wanted, most: int) -> list[int]:
    """The sizes of up to ``most`` runs of the classes."""
    count = int(wanted.rng.integers(1, min(most, wanted.vocab) + 1))
    inner = np.sort(wanted.rng.choice(np.arange(1, wanted.vocab), count - 1, replace=False)) if count > 1 else []
    return [int(size) for size in np.diff(np.concatenate([[0], inner, [wanted.vocab]]))]


def _order(wanted: Wanted) -> Ids | None:
    return wanted.rng.permutation(wanted.vocab) if wanted.rng.random() < 0.7 else None


def _projection(wanted: Wanted, width: int) -> NDArray[np.float32]:
    return (wanted.rng.standard_normal((width, wanted.dim)) / wanted.dim**0.5).astype(np.float32)


def _bands(wanted: Wanted) -> Made:
    sizes = _parted(wanted, 4)
    short, rest = (sizes[0], sizes[1:]) if len(sizes) > 1 else (0, sizes)
    bands = []
    for size in rest:
        width = max(1, wanted.dim // int(wanted.rng.integers(1, 5)))
        project = None if width == wanted.dim else _projection(wanted, width)
        seen = wanted.queries if project is None else wanted.queries @ project.T
        bands.append(Band(hl.Layer(wanted.rows(size, width, seen), wanted.bias(size)), project))
    head = hl.Layer(wanted.rows(short + len(rest), wanted.dim), wanted.bias(short + len(rest)))
    layer = hl.structured.BandsLayer(head, bands, _order(wanted))

    def reference(hidden: Doubles) -> Reference:
        z, off = _product(head.weight, head.bias, hidden)
        top, parts = _log_softmax(z), []
        for number, (part, project) in enumerate(bands):
            own, more = _seen(part, project, hidden)
            parts.append(top[:, short + number, None] + _log_softmax(own))
            off = off + more
        joined = np.concatenate([top[:, :short], *parts], axis=1)
        return Reference(_in_order(joined, layer.order), 8 * off + 16 * UNIT * (1 + np.abs(joined).max(axis=1)))

    return layer, reference


def _seen(part: Any, project: Any, hidden: Doubles) -> tuple[Doubles, Doubles]:
    """The logits of a part that reads a projection, and how far off."""
    if project is None:
        return _product(part.weight, part.bias, hidden)
    x, lost = _product(project, None, hidden)
    z, off = _product(part.weight, part.bias, x)
    return z, off + lost * float(np.abs(part.weight.astype(np.float64)).sum(axis=1).max())


def _in_order(values: Doubles, order: Ids | None) -> Doubles:
    if order is None:
        return values
    found = np.empty_like(values)
    found[:, order] = values
    return found


def _blocks(wanted: Wanted) -> Made:
    blocks, rng = [], wanted.rng
    for size in _parted(wanted, 4):
        width = int(rng.integers(1, wanted.dim + 1))
        start = int(rng.integers(0, wanted.dim - width + 1))
        project = _projection(wanted, width) if rng.random() < 0.3 else None
        seen = wanted.queries[:, start : start + width] if project is None else wanted.queries @ project.T
        part = hl.Layer(wanted.rows(size, width, seen), wanted.bias(size))
        blocks.append(Block(part, 0 if project is not None else start, project))
    layer = hl.structured.BlocksLayer(blocks, wanted.dim, _order(wanted))

    def reference(hidden: Doubles) -> Reference:
        parts = [
            _seen(part, project, hidden if project is not None else hidden[:, start : start + part.dim])
            for part, start, project in layer.blocks
        ]
        z = np.concatenate([z for z, _ in parts], axis=1)
        return Reference(_in_order(z, layer.order), np.max([off for _, off in parts], axis=0))

    return layer, reference


def _overlapping(wanted: Wanted, count: int) -> tuple[Ids, Ids]:
    """``(ids, starts)``: every class in one of the sets at least, some in two."""
    owner = wanted.rng.integers(0, count, wanted.vocab)
    owner[wanted.rng.choice(wanted.vocab, count, replace=False)] = np.arange(count)
    sets = [
        np.union1d(np.flatnonzero(owner == one), wanted.rng.choice(wanted.vocab, wanted.vocab // (4 * count), replace=False))
        for one in range(count)
    ]
    return np.concatenate(sets).astype(np.int64), np.cumsum([0, *map(len, sets)])


def _experts(wanted: Wanted) -> Made:
    rng, constant, scaled = wanted.rng, bool(wanted.rng.random() < 0.5), bool(wanted.rng.random() < 0.7)
    count = int(rng.integers(1, min(8, wanted.vocab) + 1))
    ids, starts = _overlapping(wanted, count)
    gate = rng.standard_normal((count, wanted.dim + constant)).astype(np.float32)
    layer = hl.structured.ExpertsLayer(
        gate, wanted.rows(len(ids), wanted.dim + constant, constant=constant), ids, starts, wanted.vocab,
        constant=constant, scaled=scaled,
    )  # fmt: skip

    def reference(hidden: Doubles) -> Reference:
        x = np.column_stack([hidden, np.ones(len(hidden))]) if constant else hidden
        chance = np.exp(_log_softmax(x @ gate.astype(np.float64).T))
        chosen = (x @ gate.astype(np.float64).T).argmax(axis=1)
        by = chance[np.arange(len(x)), chosen] if scaled else np.ones(len(x))
        _, off = _product(layer.weight, None, x)
        found = np.full((len(x), wanted.vocab), -np.inf)
        for row, (expert, factor) in enumerate(zip(chosen, by, strict=True)):
            part = layer.part(int(expert))
            found[row, ids[part]] = layer.weight[part].astype(np.float64) @ (x[row] * factor)
        size = np.abs(np.where(np.isfinite(found), found, 0.0)).max(axis=1)
        wide = (wanted.dim + 16) * UNIT * np.linalg.norm(x, axis=1) * np.linalg.norm(gate, axis=1).max() if scaled else 0.0
        return Reference(found, 4 * off + size * (wide + 32 * UNIT))

    return layer, reference


def _mixture(wanted: Wanted) -> Made:
    rng, count, latent = wanted.rng, int(wanted.rng.integers(1, 5)), max(1, wanted.dim // int(wanted.rng.integers(1, 3)))
    size = float(np.std(wanted.queries)) * wanted.dim**0.5 or 1.0
    project = (rng.standard_normal((count * latent, wanted.dim)) / size).astype(np.float32)
    offset = rng.standard_normal(count * latent).astype(np.float32)
    prior = (rng.standard_normal((count, wanted.dim)) / size).astype(np.float32)
    link = [None, None, hl.Affine(0.5, 1.0), hl.SoftCap(10.0)][int(rng.integers(4))]
    seen = np.tanh(wanted.queries @ project[:latent].T.astype(np.float64) + offset[:latent])
    matrix = hl.Layer(wanted.rows(wanted.vocab, latent, seen), wanted.bias(wanted.vocab), link)
    layer = hl.structured.MixtureLayer(matrix, project, offset, prior, pooled=bool(rng.random() < 0.3))

    def reference(hidden: Doubles) -> Reference:
        inner, lost = _product(project, offset, hidden)
        contexts = np.tanh(inner).reshape(len(hidden), count, latent)
        logits, moved = _product(prior, None, hidden)
        chances = _log_softmax(logits)
        if layer.pooled:
            contexts = (np.exp(chances)[:, :, None] * contexts).sum(axis=1, keepdims=True)
        z, off = _product(matrix.weight, matrix.bias, contexts.reshape(-1, latent))
        parts = _log_softmax(matrix.link(z)).reshape(len(hidden), -1, wanted.vocab)
        steep = max(1.0, float(matrix.link.steepest))
        reach = float(np.abs(matrix.weight.astype(np.float64)).sum(axis=1).max())
        off = steep * (off.reshape(len(hidden), -1).max(axis=1) + (lost + moved + 8 * UNIT) * reach) + moved
        joined = parts[:, 0] if layer.pooled else np.logaddexp.reduce(parts + chances[:, :, None], axis=1)
        return Reference(joined, 4 * off + 32 * UNIT * (1 + np.abs(joined).max(axis=1)))

    return layer, reference


MAKERS: dict[str, Callable[[Wanted], Made]] = {
    "tree": _tree, "bands": _bands, "blocks": _blocks, "experts": _experts, "mixture": _mixture,
}  # fmt: skip
