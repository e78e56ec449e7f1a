"""Rotated codes of a matrix: a basis with one random rotation a segment, few-bit codes of every row, and how far off each is.

    x = (hidden - mean) @ rotation,      v_i = (row_i - centre) @ back,      <x, v_i> = <hidden - mean, row_i - centre>
    q_ij = 2 u_ij - (2^b - 1) odd,  the nearest to v_ij in steps of the row's own size;      scale_is = |v_is|^2 / <v_is, q_is>

so that the error ``e = scale q - v`` is orthogonal to ``v`` (RaBitQ: Gao and Long 2024). With a rotation from the uniform
law in each segment, drawn after everything that depends on data, ``<x_s, e>`` is ``|x_s| |e|`` times a coordinate of a
uniform point of a sphere in ``n_s - 1`` dimensions, whatever ``x`` and the row are. The codes of a row depend on that row
alone: the argument needs it.
``csrc/codes/rotated.h`` states the two radii that follow.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.arrays import evenly
from headlong.dtypes import Doubles, Floats
from headlong.encode.whitening import Directions, parts
from headlong.layers.matrix import Layer
from headlong.plan import GROUP, LARGEST, LEAST_SHARE, LINE, TILE, Codes, Segment, TileLayout, out_of_range
from headlong.progress import stage
from headlong.randomness import stream

STEP = {1: 1.596, 2: 0.9957, 3: 0.5860, 4: 0.3352, 5: 0.1881, 6: 0.1041, 8: 0.0308}
"""The best step of uniform levels for a Gaussian of variance one (Max, 1960)."""
LEAST_CODE = (0, 1)
"""The smallest code, and that of 8 bits: less 128 it has a negative."""
DIGESTED = 256
"""Rows that a digest takes."""
PIECE = 1 << 19
"""Numbers of float64 that encoding holds at once."""
PRODUCTS = 8 + 3
"""Roundings of a coordinate of a query: of 8 products in float32, of the vector itself, and at the end."""
SMALLEST = 1e-12
"""Below, as from :data:`headlong.plan.LARGEST`, squares of lengths leave float32: such layers have no codes."""



def fit(layer: Layer) -> bool:
    """Whether squares of the layer's numbers are within float32, and whether it has coordinates to rotate."""
    largest = max(float(np.abs(layer.weight[part]).max()) for part in parts(layer.weight))
    bias = 0.0 if layer.bias is None else float(np.abs(layer.bias).max(initial=0))
    return layer.dim > 1 and SMALLEST < largest < LARGEST and bias < LARGEST


def rotation_of(size: int, chance: np.random.Generator) -> Doubles:
    """A rotation from the uniform law: the orthogonal factor of a Gaussian matrix, its signs fixed by the triangular one."""
    orthogonal, triangle = np.linalg.qr(chance.standard_normal((size, size)))
    return np.asarray(orthogonal * np.where(np.diag(triangle) < 0, -1.0, 1.0))


def codes_of(layer: Layer, basis: Directions, segments: tuple[Segment, ...], seed: int = 0) -> Codes | None:
    """The codes of ``layer`` in ``basis``, rotated in every segment by a stream of ``seed`` and the layer's own; None where its
    numbers leave float32's range.
    """
    if not fit(layer):
        return None
    chance = stream("rotation", seed, _digest(layer))
    # Coordinates that are as they were are mixed within their segments alone.
    diagonal = np.count_nonzero(basis.rotation) == np.count_nonzero(np.diag(basis.rotation))
    runs = [slice(start, stop) for start, stop, *_ in segments] if diagonal else [slice(0, layer.dim)]
    turned = np.zeros((layer.dim, layer.dim), np.float32)
    for start, stop, *_ in segments:
        rows = slice(start, stop) if diagonal else slice(None)
        turned[rows, start:stop] = basis.rotation[rows, start:stop] @ rotation_of(stop - start, chance)
    back, lost, squares = [], 0.0, 0.0  # of a run each: dim x dim numbers of float64 are as much as a small head
    for run in runs:
        rounded = turned[run, run].astype(np.float64)
        inverse = np.ascontiguousarray(np.linalg.inv(rounded).T)
        back.append(inverse)
        squares += float(np.sum(inverse**2))
        lost += float(np.sum((np.eye(len(rounded)) - inverse @ rounded.T) ** 2))
    lengths = [float(np.linalg.norm(turned[:, start:stop].astype(np.float64))) for start, stop, *_ in segments]
    unit = np.finfo(np.float64).eps
    size = math.hypot(*lengths) * math.sqrt(squares)
    lost = math.sqrt(lost) + 8 * (layer.dim + 8) * unit * size
    tiles, norms, most, longest, most_base = _encoded(layer, basis, back, runs, segments)
    bounds = np.zeros((len(segments), 4))
    for s, (start, stop, *_) in enumerate(segments):
        inverse = back[s] if diagonal else back[0][:, start:stop]
        bounds[s] = (
            norms[s],
            most[s] * (1 + 1e-5),
            PRODUCTS * 2.0**-24 * lengths[s],
            2.0**-23 * longest * float(np.linalg.norm(inverse)),
        )
    mean, centre = np.ascontiguousarray(basis.mean, np.float64), np.ascontiguousarray(basis.centre, np.float64)
    padded = np.concatenate([np.pad(turned[:, a:b], ((0, 0), (0, -(b - a) % GROUP))) for a, b, *_ in segments], axis=1)
    rotation = np.ascontiguousarray(padded.reshape(layer.dim, -1, GROUP).swapaxes(0, 1))
    found = Codes(tiles, mean, centre, rotation, segments, bounds, lost * longest, most_base)
    return None if longest >= LARGEST or out_of_range(found) else found


def _digest(layer: Layer) -> str:
    """A digest of some of the rows: layers that are made to suit one rotation have another."""
    return hashlib.blake2b(np.ascontiguousarray(evenly(layer.stored, DIGESTED)).view(np.uint8).data).hexdigest()


def _encoded(
    layer: Layer, basis: Directions, back: list[Doubles], runs: list[slice], segments: tuple[Segment, ...]
) -> tuple[NDArray[np.uint8], Doubles, Doubles, float, float]:
    """The tiles, from ``back`` of each run of coordinates; the largest |q| and |scale q| of each segment; the longest
    row less the centre; the largest base.
    """
    vocab, dim = layer.vocab, layer.dim
    layout = TileLayout.of(segments)
    tiles = _aligned(-(-vocab // TILE), layout.bytes)
    norms, most, longest, most_base = np.zeros(len(segments)), np.zeros(len(segments)), 0.0, 0.0
    step, move = max(1, PIECE // (TILE * dim)) * TILE, stage(f"codes of {vocab:,} rows")
    for start in range(0, vocab, step):
        stop = min(start + step, vocab)
        at = slice(start // TILE, -(-stop // TILE))
        rows = np.asarray(layer.weight[start:stop], np.float32).astype(np.float64) - basis.centre
        base = rows @ basis.mean
        if layer.bias is not None:
            base += layer.bias[start:stop]
        longest = max(longest, float(np.sqrt(np.einsum("ij,ij->i", rows, rows).max(initial=0.0))) * (1 + 1e-6))
        turned = np.concatenate([rows[:, run] @ one for run, one in zip(runs, back, strict=True)], axis=1).astype(np.float32)
        most_base = max(most_base, float(np.abs(base).max(initial=0.0)))
        _put(tiles[at], layout.bases, base.astype(np.float32)[None], -np.inf)
        all_scales, all_errors = (
            np.zeros((len(segments), len(rows)), np.float32),
            np.zeros((len(segments), len(rows)), np.float32),
        )
        for s, (first, last, bits, _) in enumerate(segments):
            scale, error, length = _coded(np.ascontiguousarray(turned[:, first:last]), bits, tiles[at], layout.codes[s])
            all_scales[s], all_errors[s] = scale, error
            norms[s] = max(norms[s], float(length.max(initial=0.0)))
            most[s] = max(most[s], float((np.abs(scale) * length).max(initial=0.0)))
        _put(tiles[at], layout.scales, all_scales, 0.0)
        share, most_of_tile = shared(np.stack([all_errors, np.abs(all_scales)], axis=1).reshape(-1, len(rows)))
        _put(tiles[at], layout.shares, share[None], 0.0)
        tiles[at, layout.largest : layout.largest + most_of_tile[0].nbytes] = most_of_tile.view(np.uint8)
        move(stop, vocab)
    return tiles, norms, most, longest, most_base


def _coded(v: Floats, bits: int, tiles: NDArray[np.uint8], at: int) -> tuple[Floats, Floats, Floats]:
    """Puts the codes of rows into their tiles from byte ``at`` on; scales, error norms and lengths of the codes."""
    u, scale, error, length = quantised(v, bits)
    words = packed(u, bits).reshape(len(tiles), -1)
    tiles[:, at : at + words.shape[1]] = words
    return scale, error, length


def quantised(v: Floats, bits: int) -> tuple[NDArray[np.uint8], Floats, Floats, Floats]:
    """Codes ``u [n, m]``, scales, error norms and lengths ``|q|`` ``[n]`` of rows ``v [n, m]``, each by itself.

    ``e = scale q - v`` with ``scale = |v|^2 / <v, q>``. A row whose codes do not point its way (zeros) has scale 0 and error
    ``|v|``.
    """
    high = 2**bits - 1
    square = np.einsum("ij,ij->i", v, v)
    unit = np.sqrt(square / v.shape[1]) * (STEP[bits] / 2)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inverse = np.where(unit > 0, 1 / unit, 0.0).astype(np.float32)
        u = np.floor((v * inverse[:, None] + (high + 1)) * np.float32(0.5))
        u = np.fmin(np.fmax(u, np.float32(LEAST_CODE[bits == 8])), np.float32(high))  # what is no number has the smallest code
    q = 2 * u - np.float32(high)
    along, length = np.einsum("ij,ij->i", v, q), np.sqrt(np.einsum("ij,ij->i", q, q))
    good = (along > 0) & np.isfinite(inverse)
    scale = np.where(good, square / np.where(good, along, 1), 0).astype(np.float32)
    q *= scale[:, None]
    q -= v
    error = np.sqrt(np.einsum("ij,ij->i", q, q))
    # what float32 may have lost of the orthogonality and of the norm itself
    wider = np.float32(1 + 1e-4)
    return u.astype(np.uint8), scale, error * wider + np.float32(2.0**-22) * np.sqrt(square), length * wider


def packed(u: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """``[n, m] -> [tiles, groups, bits, 64, 4]``: fields of four, two and one bits of eight quads, as ``csrc/scan/tiles.h``
    says.
    """
    count, groups = -(-len(u) // TILE), -(-u.shape[1] // GROUP)
    wide = np.zeros((count * TILE, groups * GROUP), np.uint8)
    wide[: len(u), : u.shape[1]] = u
    quads = np.ascontiguousarray(wide.reshape(count, TILE, groups, 8, 4).transpose(0, 2, 3, 1, 4))  # [.., quad, 64, 4]
    if bits == 8:
        return quads
    words, left = [], bits
    for field in (4, 2, 1):
        if not bits & field:
            continue
        left -= field
        each, mask = 8 // field, np.uint8(2**field - 1)
        grouped = quads.reshape(count, groups, 8 // each, each, TILE, 4)
        word = grouped[:, :, :, 0] >> np.uint8(left) & mask
        for place in range(1, each):
            word |= (grouped[:, :, :, place] >> np.uint8(left) & mask) << np.uint8(field * place)
        words.append(word)
    return np.ascontiguousarray(np.concatenate(words, axis=2))


def shared(numbers: Floats) -> tuple[Floats, Floats]:
    """The share that each class of ``numbers [n, classes]`` has at most of those of its tile, and these, ``[tiles, n]``.

    A radius is a root of a sum of squares over the ``n``, by weights that a query brings. In proportion to their root mean
    squares no number is large for a class that has little of the others, as it is in proportion to the largest ones.
    """
    count = -(-numbers.shape[1] // TILE)
    wide = np.pad(numbers, ((0, 0), (0, count * TILE - numbers.shape[1]))).reshape(len(numbers), count, TILE)
    typical = np.sqrt(np.mean(wide.astype(np.float64) ** 2, axis=2))
    times = (wide / np.maximum(typical, np.finfo(np.float32).tiny)[:, :, None]).max(axis=0)
    most = times.max(axis=1)
    share = np.maximum(times / np.maximum(most, 1.0)[:, None], LEAST_SHARE).astype(np.float32)
    of_tiles = np.ascontiguousarray((typical * most).T, np.float32)
    return share.reshape(-1)[: numbers.shape[1]] * np.float32(1 + 2.0**-22), of_tiles


def _aligned(count: int, size: int) -> NDArray[np.uint8]:
    """Zeros ``[count, size]`` that begin at a line of the caches: a register of codes is one line then, not parts of two."""
    store = np.zeros(count * size + LINE, np.uint8)
    first = -store.ctypes.data % LINE
    return store[first : first + count * size].reshape(count, size)


def _put(tiles: NDArray[np.uint8], at: int, values: NDArray[Any], pad: float) -> None:
    """Numbers ``[k, classes]`` into the tiles, from byte ``at`` on: k runs of 64 in each."""
    wide = np.full((len(values), len(tiles) * TILE), pad, values.dtype)
    wide[:, : values.shape[1]] = values
    runs = np.ascontiguousarray(wide.reshape(len(values), len(tiles), TILE).transpose(1, 0, 2))
    size = math.prod(runs.shape[1:]) * runs.itemsize
    tiles[:, at : at + size] = runs.view(np.uint8).reshape(len(tiles), size)
