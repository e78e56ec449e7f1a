"""A layer laid out by coordinates, for engines that read a few coordinates of every class.

    columns[j, i] = B[i, j],   B = (W - centre) T,   x = T^-1 hidden:     <w_i, hidden> = <B_i, x> + <centre, hidden>

One contiguous run of all classes for each coordinate; a *block* is 16 neighbouring ones, so that a look at a block is a
few long reads. T sorts coordinates by energy: the eigenvectors of W^T W, or those that predict the logits of calibration
vectors best (as in ``previews/svd.py``). It decides how much is read, never what is true: ``lost`` covers its rounding.
The published search reads the layer's own coordinates, or those of a randomised Hadamard rotation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headlong.dtypes import UNIT
from headlong.layers.matrix import Layer
from headlong.native import Doubles, round_up
from headlong.plan import padded

BLOCK = 16
GROUP = 64
"""Classes that the published search reads together."""
MOST_DIM = 4096
"""Beyond, a rotation costs more than it saves: coordinates stay as they are."""
PIECE = 1 << 21
RIDGE = 1e-4

Arrays = dict[str, NDArray[Any]]


def race_arrays(layer: Layer, calibration: Doubles | None) -> Arrays | None:
    """``columns, column_weight, base, size, peak, squares, centre, back, lost``; None where float32 cannot hold them."""
    vocab, dim = layer.vocab, layer.dim
    centre = _mean_row(layer)
    with np.errstate(over="ignore", invalid="ignore"):
        forth, back, lost = basis(layer, centre, calibration)
        blocks = -(-dim // BLOCK)
        columns, squares = np.zeros((dim, padded(vocab)), np.float32), np.zeros((blocks, padded(vocab)))
        size = np.zeros(padded(vocab))
        for part, rows in pieces(layer):
            rotated = (rows - centre if forth is None else (rows - centre) @ forth).astype(np.float32)
            columns[:, part] = rotated.T
            wide = np.zeros((len(rows), blocks * BLOCK))
            wide[:, :dim] = rotated
            each = (wide.reshape(len(rows), blocks, BLOCK) ** 2).sum(axis=2)
            squares[:, part] = each.T
            size[part] = np.sqrt(each.sum(axis=1)) * (1 + 1e-12)
        fits = bool(np.isfinite(columns).all()) and bool((size < 1e19).all())
    if not fits:
        return None
    down = squares.astype(np.float32)
    arrays: Arrays = {} if back is None else {"back": np.ascontiguousarray(back)}
    return arrays | {
        "columns": columns,
        "column_weight": np.sqrt(squares[:, :vocab].mean(axis=1)),
        "base": _base(layer),
        "size": round_up(size),
        "peak": round_up(np.sqrt(squares.max(axis=0)) * (1 + 1e-12)),
        "squares": np.where(down > squares, np.nextafter(down, np.float32(0)), down).astype(np.float32),
        "centre": centre,
        "lost": np.array([lost]),
    }


def published_arrays(layer: Layer, hadamard: bool, seed: int) -> Arrays:
    """``columns, column_weight, base, spread``, and ``signs`` of the rotation where there is one.

    Columns stand in groups of 64 classes, ``[groups, coordinates, 64]``, so that a group is one run of memory, and those that
    are not rotated keep the type of the weights: half the bytes where those are halves.
    """
    arrays: Arrays = {"base": _base(layer)}
    if hadamard:
        size = 1 << (layer.dim - 1).bit_length()
        arrays["signs"] = np.random.default_rng(seed).choice([-1.0, 1.0], size)
    dim = len(arrays["signs"]) if hadamard else layer.dim
    columns = np.zeros((padded(layer.vocab) // GROUP, dim, GROUP), np.float32 if hadamard else layer.weight.dtype)
    heavy = np.zeros(dim)
    for part, rows in pieces(layer):
        kept = (hadamard_rotated(rows, arrays["signs"]) if hadamard else rows).astype(columns.dtype)
        ids = np.arange(part.start, part.stop)
        columns[ids // GROUP, :, ids % GROUP] = kept
        heavy += np.abs(kept.astype(np.float64)).sum(axis=0)
    shares = np.divide(heavy.sum(), heavy, out=np.zeros_like(heavy), where=heavy > 0)
    widest = 0.0
    for _, rows in pieces(layer):
        kept = hadamard_rotated(rows, arrays["signs"]) if hadamard else rows
        widest = max(widest, float((kept**2 @ shares).max()))
    return arrays | {"columns": columns, "column_weight": heavy, "spread": np.array([widest / dim**2])}


def check_arrays(arrays: Mapping[str, NDArray[Any]], numbers: Mapping[str, int]) -> None:
    """ValueError unless all of ``numbers`` are there, finite and of that size (0: any): a file may hold anything."""
    if "columns" not in arrays:
        raise ValueError("the array columns is missing; the method needs it")
    for name, size in numbers.items():
        array = arrays.get(name)
        if array is None or (size and array.size != size):
            raise ValueError(f"the array {name} is {'missing' if array is None else array.shape}; the method needs it")
        if not np.isfinite(array.astype(np.float64)).all():
            raise ValueError(f"the array {name} holds NaN or infinity")


def by_coordinate(columns: NDArray[Any], vocab: int) -> NDArray[Any]:
    """``[coordinates, vocab]`` of the published search's columns."""
    return np.ascontiguousarray(columns.transpose(1, 0, 2).reshape(columns.shape[1], -1)[:, :vocab])


def hadamard_rotated(rows: Doubles, signs: Doubles) -> Doubles:
    """``rows`` times random signs and the Hadamard matrix over sqrt(n), padded with zeros: products of two are kept."""
    wide = np.zeros((len(rows), len(signs)))
    wide[:, : rows.shape[1]] = rows
    wide *= signs
    step = 1
    while step < len(signs):
        pairs = wide.reshape(len(rows), len(signs) // (2 * step), 2, step)
        wide = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2).reshape(wide.shape)
        step *= 2
    return np.asarray(wide / np.sqrt(len(signs)))


def coordinates(hidden: Doubles, arrays: Arrays) -> Doubles:
    """``x = T^-1 hidden`` of one vector or a batch."""
    return np.ascontiguousarray(hidden @ arrays["back"]) if "back" in arrays else np.ascontiguousarray(hidden)


def pieces(layer: Layer) -> Iterator[tuple[slice, Doubles]]:
    """The rows as float64, some at a time."""
    step = max(1, PIECE // layer.dim)
    for start in range(0, layer.vocab, step):
        part = slice(start, min(start + step, layer.vocab))
        yield part, layer.weight[part].astype(np.float64)


def basis(layer: Layer, centre: Doubles, calibration: Doubles | None) -> tuple[Doubles | None, Doubles | None, float]:
    """``T``, ``T^-T`` and what their rounding loses, |<a, h> - <a T, h T^-T>| <= lost |a| |h|; None: none is worth while."""
    dim = layer.dim
    gram = _gram(layer, centre) if 1 < dim <= MOST_DIM else None
    if gram is None or not np.isfinite(gram).all() or not gram.any():
        return None, None, 0.0
    factor = np.eye(dim)
    if calibration is not None and np.abs(calibration).max(initial=0.0) > 0:
        scaled = calibration / np.abs(calibration).max()
        moment = scaled.T @ scaled
        factor = np.linalg.cholesky(moment * (dim / np.trace(moment)) + RIDGE * np.eye(dim))
    turn = np.linalg.eigh(factor.T @ gram @ factor)[1][:, ::-1]
    forth, back = factor @ turn, np.linalg.solve(factor.T, turn)
    sizes = float(np.linalg.norm(forth) * np.linalg.norm(back))
    gap = float(np.linalg.norm(np.eye(dim) - forth @ back.T))
    return forth, back, gap + 8 * (dim + 8) * UNIT * sizes


def _gram(layer: Layer, centre: Doubles) -> Doubles:
    """``A^T A`` up to a factor, of the rows less their mean."""
    largest = max(float(np.abs(rows).max()) for _, rows in pieces(layer)) or 1.0
    total = np.zeros((layer.dim, layer.dim))
    for _, rows in pieces(layer):
        scaled = (rows - centre) / largest
        total += scaled.T @ scaled
    return total


def _mean_row(layer: Layer) -> Doubles:
    total = np.zeros(layer.dim)
    for _, rows in pieces(layer):
        total += rows.sum(axis=0) / layer.vocab
    return total


def _base(layer: Layer) -> NDArray[np.float32]:
    base = np.zeros(padded(layer.vocab), np.float32)
    if layer.bias is not None:
        base[: layer.vocab] = layer.bias
    return base
