"""What a rival is: a name, the packages it needs, and a builder that gives a contestant for one layer.

A new rival is written in the file of its kind: ``dense`` products, ``graphs``, ``codes`` of few bits, ``clusters``, and
``vector_search`` for what FAISS and ScaNN have besides. It is measured, never wrapped as an engine. ``about`` says what it
reads; ``build`` seconds and ``memory`` bytes beyond the layer, where it can tell, are for the tables.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.bench.measure import Contestant
from headlong.dtypes import Floats
from headlong.errors import MissingPackageError
from headlong.layers.matrix import Layer

Build = Callable[[Layer, int, int], Contestant]


class Found(NamedTuple):
    """What a rival answers; ``log_probs`` is None where it has none."""

    ids: NDArray[np.int64]
    log_probs: NDArray[np.float64] | None


class Rival(NamedTuple):
    """``build(layer, k, threads)`` once its ``packages`` are installed."""

    name: str
    packages: tuple[str, ...]
    build: Build

    def installed(self) -> bool:
        return all(importlib.util.find_spec(package) is not None for package in self.packages)


RIVALS: dict[str, Rival] = {}


def rival(name: str, *packages: str) -> Callable[[Build], Build]:
    """Registers ``build`` under ``name``."""

    def register(build: Build) -> Build:
        RIVALS[name] = Rival(name, packages, build)
        return build

    return register


class Search(NamedTuple):
    """``ids [n, k]`` of hidden vectors with a 1 behind them and zeros up to a ``multiple``, as :func:`with_bias` has the rows;
    what it ``reads``, and what else the record says of it."""

    ids: Callable[[Floats], Any]
    reads: str
    multiple: int = 1
    about: Mapping[str, Any] = {}


def searching(name: str, *packages: str) -> Callable[[Callable[[Layer, int, int], Search]], Any]:
    """Registers what finds ids alone under ``name``."""

    def register(build: Callable[[Layer, int, int], Search]) -> Any:
        def made(layer: Layer, k: int, threads: int) -> Contestant:
            found = build(layer, k, threads)

            def call(hidden: Floats) -> Found:
                return Found(np.asarray(found.ids(hidden), np.int64).reshape(len(hidden), k), None)

            about = {"reads": found.reads, **found.about}
            return Contestant(name, call, partial(with_one, multiple=found.multiple), about=about)

        rival(name, *packages)(made)
        return build

    return register


def contestant(name: str, layer: Layer, k: int, threads: int) -> Contestant:
    """The rival of that name, built for ``layer``."""
    if not RIVALS[name].installed():
        needed = " and ".join(RIVALS[name].packages)
        raise MissingPackageError(f"{name} needs {needed}, which is not installed: pip install 'headlong[bench]'")
    return RIVALS[name].build(layer, k, threads)


def installed() -> list[str]:
    """The names of the rivals that can be built here."""
    return [name for name, entry in RIVALS.items() if entry.installed()]


def float32(hidden: NDArray[Any]) -> Floats:
    return np.ascontiguousarray(hidden, np.float32)


def matrix(layer: Layer) -> Floats:
    return np.ascontiguousarray(layer.weight, np.float32)


def bias_of(layer: Layer) -> Floats:
    return np.zeros(layer.vocab, np.float32) if layer.bias is None else np.asarray(layer.bias)


def with_bias(layer: Layer, multiple: int = 1) -> Floats:
    """``[weight, bias, 0 ...]``: the bias as one more coordinate, whose half in the query is 1; zeros up to a ``multiple``."""
    return _whole(np.column_stack([matrix(layer), bias_of(layer)]), multiple)


def with_one(hidden: NDArray[Any], multiple: int = 1) -> Floats:
    """``[hidden, 1, 0 ...]``"""
    return _whole(np.column_stack([float32(hidden), np.ones(len(hidden), np.float32)]), multiple)


def _whole(rows: Floats, multiple: int) -> Floats:
    return np.ascontiguousarray(np.pad(rows, ((0, 0), (0, -rows.shape[1] % multiple))))


def best(scores: Floats, k: int) -> NDArray[np.int64]:
    """``[batch, k]``: the places of the largest scores of each row, the largest first."""
    found = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    return np.take_along_axis(found, np.argsort(-np.take_along_axis(scores, found, axis=1), axis=1, kind="stable"), axis=1)
