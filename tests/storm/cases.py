"""What a storm throws: a layer, hidden vectors, calibration vectors, a method with options, and calls, all from one number.

::

    case = draw(number)          plain facts, quick to print and to repeat
    thrown = build(case)         layer, hidden and calibration vectors, and what is true of them

Layers of several parts come with their distribution in float64, by another route than any engine takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import headlong as hl
from headlong import Affine, Gss, Layer, SoftCap
from headlong.engines.shards import here
from headlong.layers.bands import Band
from headlong.layers.differentiated import Block
from headlong.layers.structured import StructuredLayer
from kinds import parts
from layers import DTYPES, around_tastes, bent, falling, shaped
from oracle import Truth, logsumexp, truth

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


SIZES = {
    "vocab": ([1, 2, 63, 64, 65, 1000, 12_103, 20_011, 200_003], [2, 2, 6, 6, 6, 40, 10, 10, 2]),
    "dim": ([1, 2, 7, 16, 64, 100, 513], [1, 1, 2, 3, 5, 4, 2]),
    "batch": ([1, 2, 7, 8, 17, 64, 100, 200], [1, 1, 1, 2, 1, 3, 2, 20]),
}
TASTES, ONE_IN = "around tastes", 16
"""Layers whose classes point the same way; one case in so many is of one, and asks for blocks."""
RIVAL = "one rival"
SPECTRA = (
    "flat", "decaying", "one direction", "low rank", "duplicates", "zero rows", "one huge row", "sparse", "long tail",
    "ties by the hundred", RIVAL,
)  # fmt: skip
LINKS = {"none": None, "scaled": Affine(2.5, -3.0), "softcap": SoftCap(5.0), "gss": Gss(), "table": None}
BIASES = ("none", "plain", "large")
CALIBRATIONS = ("none", "good", "alien", "zeros", "equal", "one row", "far larger", "far smaller")
METHODS = {
    "full": ({},), "codes": ({}, {"bits": 2.5}, {"blocks": True}), "svd": ({},), "auto": ({},), "shards": ({},),
    **dict.fromkeys(MAKERS, ({},)),
}  # fmt: skip
OFTEN = {"codes": 14, "auto": 4, "mixture": 3}
LARGE_TREE = 20_011
"""Classes beyond which a structured layer is not thrown: its distribution in float64 is walked, not multiplied."""
MOST_NUMBERS, MOST_LOGITS = 13_000_000, 2_500_000
"""What one case may weigh: the numbers of a layer, and the logits of a batch over it in float64."""


@dataclass(frozen=True)
class Case:
    number: int
    vocab: int
    dim: int
    batch: int
    spread: float
    spectrum: str
    dtype: str
    bias: str
    link: str
    method: str
    options: dict[str, Any]
    calibration: str
    eps: float
    delta: float
    mask: str
    k: int
    threads: int


def draw(number: int) -> Case:
    """The case of this number."""
    rng = np.random.default_rng([2026, number])
    case = _any(number, rng)
    return case if number % ONE_IN != ONE_IN // 2 - 2 else _around_tastes(case, rng)


def _around_tastes(case: Case, rng: np.random.Generator) -> Case:
    """The case on such a layer, asked for blocks."""
    vocab, dim = int(rng.choice([5_000, 12_103, 20_011])), int(rng.choice([16, 48, 64, 100]))
    calibration, eps = ("none", "good", "good", "alien")[int(rng.integers(4))], (0.01, 0.1, math.inf)[int(rng.integers(3))]
    return replace(
        case, vocab=vocab, dim=dim, batch=min(case.batch, MOST_LOGITS // vocab), spectrum=TASTES, method="codes",
        options={"blocks": True}, calibration=calibration, eps=eps,
    )  # fmt: skip


def _any(number: int, rng: np.random.Generator) -> Case:
    def one(values: Any, weights: Any = None) -> Any:
        chances = None if weights is None else np.asarray(weights, float) / sum(weights)
        return values[int(rng.choice(len(values), p=chances))]

    vocab, dim, batch = (one(*SIZES[name]) for name in ("vocab", "dim", "batch"))
    while vocab * dim > MOST_NUMBERS:
        dim = one(*SIZES["dim"])
    while vocab * batch > MOST_LOGITS and batch > 1:
        batch //= 2
    wide, spread_of = [10.0 ** rng.uniform(-30, 4), 10.0 ** rng.uniform(-6, 6)], 10.0 ** rng.uniform(-1, 2)
    spread = one([*wide, spread_of, 16.0, 60.0], [2, 2, 6, 1, 1])
    method = one([*METHODS], [OFTEN.get(name, 1.5) for name in METHODS])
    options = dict(one(METHODS[method]))
    if method in MAKERS:
        vocab = min(vocab, LARGE_TREE)
    calibration = one(CALIBRATIONS, [8, 6, 2, 1, 1, 1, 1, 1]) if method in ("codes", "auto") else "none"
    eps, delta = one([0.01, 0.1, 1e-4, math.inf], [6, 3, 1, 2]), one([1e-6, 1e-3, 0.05, 0.0], [2, 2, 3, 3])
    if "blocks" in options and rng.random() < 0.5:
        eps = math.inf  # ids alone: what blocks are for
    return Case(
        number, vocab, dim, batch, float(spread), one(SPECTRA), one([*DTYPES]), one(BIASES, [3, 2, 1]),
        one([*LINKS], [8, 1, 1, 1, 1]), method, options, calibration, float(eps), float(delta),
        one(["none", "few", "most", "by row", "exclude"], [6, 1, 1, 1, 1]), int(min(vocab, one([1, 5, 10, 100], [3, 4, 3, 1]))),
        one([1, 2, 3], [3, 3, 1]),
    )  # fmt: skip


class Thrown(NamedTuple):
    """``oracle`` says what is true of a structured layer; None: a matrix and a link, which the tests' own oracle knows."""

    layer: Layer | StructuredLayer
    hidden: Doubles
    vectors: Doubles | None
    oracle: Oracle | None


def build(case: Case) -> Thrown:
    """Layer, hidden vectors ``[batch, dim]`` and calibration vectors, if any."""
    rng = np.random.default_rng([7, case.number])
    structured = case.method in MAKERS
    around = around_tastes(case.vocab, case.dim, rng) if case.spectrum == TASTES else None
    weight = None if structured else around[0].astype(np.float32) if around else _rows(case, rng)
    turn = falling(case.dim) if case.spectrum == "decaying" else np.ones(case.dim)

    def vectors(count: int) -> Doubles:
        rows = around[1](count) if around else rng.standard_normal((count, case.dim)) * turn + 0.3 * np.ones(case.dim)
        return np.asarray(rows * np.exp(0.3 * rng.standard_normal((count, 1))))

    hidden, factor = vectors(case.batch), 1.0
    if weight is not None:
        factor = case.spread / (float(np.std(hidden[:8] @ weight[rng.integers(0, case.vocab, 256)].T)) or 1.0)
    seen = hidden[:8].copy()
    if case.batch > 4:
        hidden[1] = 0.0
        hidden[2] *= 10.0
    hidden = np.clip(hidden * factor, -1e30, 1e30).astype(np.float32).astype(np.float64)
    calibration = _calibration(case, lambda count: vectors(count) * factor, rng)
    if weight is None:
        wanted = Wanted(case.vocab, case.dim, min(case.spread, 300.0), DTYPES[case.dtype], seen, rng)
        layer, oracle = build_structured(case.method, wanted)
        return Thrown(layer, hidden, calibration, oracle)
    bias = {"none": None, "plain": rng.standard_normal(case.vocab), "large": 1000 * rng.standard_normal(case.vocab)}[case.bias]
    link = bent() if case.link == "table" else LINKS[case.link]
    matrix = Layer(weight.astype(DTYPES[case.dtype]), None if bias is None else bias.astype(np.float32), link)
    return Thrown(matrix, hidden, calibration, None)


def _rows(case: Case, rng: np.random.Generator) -> NDArray[np.float32]:
    vocab, dim = case.vocab, case.dim
    if case.spectrum != RIVAL:
        return np.asarray(shaped(case.spectrum, (vocab, dim), rng, np.float32), np.float32)
    # equal rows, one a little above them whose rest is long, and all others far below
    rows, base = rng.standard_normal((vocab, dim), np.float32), np.ones(dim, np.float32) / np.float32(dim**0.5)
    rows = np.float32(0.3) * rows - base * ((np.float32(0.3) * rows) @ base + 2)[:, None]
    some = rng.permutation(vocab)[: max(1, min(256, vocab // 8))]
    rows[some] = base
    rows[some[0]] *= np.float32(1 + 50 / max(case.spread, 1e-3))
    rows[some[0]] += np.float32(3) * np.where(np.arange(dim) % 2 == 0, base, -base)
    return rows


def _calibration(case: Case, vectors: Any, rng: np.random.Generator) -> Doubles | None:
    count = 600
    made: dict[str, Any] = {
        "none": lambda: None, "good": lambda: vectors(count),
        "alien": lambda: np.abs(rng.standard_cauchy((count, case.dim))), "zeros": lambda: np.zeros((count, case.dim)),
        "equal": lambda: np.tile(vectors(1), (count, 1)), "one row": lambda: vectors(1),
        "far larger": lambda: vectors(count) * 1e6, "far smaller": lambda: vectors(count) * 1e-6,
    }  # fmt: skip
    found = made[case.calibration]()
    return None if found is None else np.clip(found, -1e30, 1e30)


def compiled(case: Case, layer: Any, options: Any, threads: int | None = None) -> Any:
    """The case's engine: for shards, three over a third of the classes each."""

    def one(part: Any, method: str, asked: Any) -> Any:
        return hl.compile(part, method, threads=threads or case.threads, **asked)

    if case.method in MAKERS:
        return hl.compile(layer, case.method, threads=threads or case.threads, **options)
    if case.method != "shards":
        return one(layer, case.method, options)
    cuts = sorted({layer.vocab // 3, 2 * layer.vocab // 3} - {0, layer.vocab})
    share = options | {"delta": options["delta"] / (len(cuts) + 1)}
    return here([one(part, "codes", share) for part in parts(layer, *cuts)])


def facts_of(thrown: Thrown, live: Any) -> Truth:
    """What is true of the layer, under a mask where there is one."""
    if thrown.oracle is None:
        return truth(thrown.layer, thrown.hidden, live)
    found = thrown.oracle(thrown.hidden)
    exponents = found.exponents if live is None else np.where(live, found.exponents, -np.inf)
    return Truth(exponents, exponents, logsumexp(exponents), found.rounding)
