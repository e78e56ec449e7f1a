"""Files as the command line names them: ``path[:tensor[:bias]]`` for a layer, ``path[:tensor]`` for hidden vectors.

A layer comes from a safetensors file, a sharded index or a checkpoint's folder; hidden vectors from a safetensors file
or an ``.npy``. An engine's file is told from a layer's by its metadata. Everything is mapped, and nothing pickled is read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np

from headlong.arrays import HIDDEN
from headlong.compile import load
from headlong.engines import saved, saved_structured
from headlong.engines.base import Engine
from headlong.engines.structured import StructuredEngine
from headlong.errors import MalformedFileError, MissingTensorError, ShapeError, StoreError
from headlong.layers.matrix import Layer
from headlong.store import open_file

PLAIN = "weight"
"""The tensor of a file that holds one layer and no model; looked for after the names that models use."""
HIDDEN_NAMES = ("hidden", "valid_hidden", "hidden_states")


def results(paths: list[Path]) -> list[tuple[str, Any]]:
    """``(name, content)`` of every .json file (an object) and .jsonl file (a list of objects); folders are opened."""
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    found = []
    for file in files:
        if file.suffix not in (".json", ".jsonl"):
            if file in paths:
                raise MalformedFileError(f"{file} is no .json or .jsonl; expected results, or a folder of them")
            continue
        try:
            text = file.read_text(encoding="utf-8")
            lines = [json.loads(line) for line in text.splitlines() if line.strip()] if file.suffix == ".jsonl" else None
            found.append((file.name, json.loads(text) if lines is None else lines))
        except OSError as error:
            raise StoreError(f"{file} cannot be read: {error}") from error
        except ValueError as error:
            raise MalformedFileError(f"{file} is no JSON: {error}") from error
    if not found:
        raise MalformedFileError("no .json or .jsonl file was given; expected results of bench, inspect --json or reproduce")
    return found


def split(text: str, most: int) -> list[str]:
    """``"path:a:b" -> ["path", "a", "b"]``, at most ``most`` names; colons that are part of the path stay."""
    for count in range(most + 1):
        parts = text.rsplit(":", count)
        if len(parts) == count + 1 and Path(parts[0]).exists():
            return parts
    return [text]


def layer(text: str, weight: str | None = None, bias: str | None = None) -> Layer:
    """The layer that ``path[:tensor[:bias]]`` names; the options win over the names. An empty bias takes none."""
    path, *names = split(text, 2)
    weight = weight or (names[0] if names else None)
    bias = bias if bias is not None else (names[1] if len(names) > 1 else None)
    kept: str | Literal[False] | None = False if bias == "" else bias
    if weight:
        return Layer.load(path, weight=weight, bias=kept)
    try:
        return Layer.load(path, bias=kept)
    except MissingTensorError:
        if Path(path).is_file() and path.endswith(".safetensors") and PLAIN in open_file(path).tensors:
            return Layer.load(path, weight=PLAIN, bias=kept)
        raise


def engine(text: str, threads: int | None = None) -> Engine | StructuredEngine | None:
    """The engine that was saved there, or None where the file holds no engine."""
    if not Path(text).is_file() or not text.endswith(".safetensors"):
        return None
    if open_file(text).metadata.get("format") not in (saved.FORMAT, saved_structured.FORMAT):
        return None
    return load(text, threads=threads)


def hidden(text: str) -> Any:
    """``[n, dim]`` hidden vectors from ``path.npy`` or ``path.safetensors[:tensor]``."""
    path, *names = split(text, 1)
    rows = _npy(path) if path.endswith(".npy") else _tensor(path, names[0] if names else None)
    if rows.ndim == 1:
        rows = rows[None, :]
    if rows.ndim != 2:
        raise ShapeError(f"{text} has shape {list(rows.shape)}; expected hidden vectors [n, dim]")
    return rows


def _npy(path: str) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    except (ValueError, EOFError) as error:
        raise MalformedFileError(f"{path} is no .npy file of numbers: {error}; save it with numpy.save") from error


def _tensor(path: str, name: str | None) -> Any:
    file = open_file(path)
    if name is None:
        matrices = [key for key, info in file.tensors.items() if len(info.shape) == 2]
        named = [key for key in HIDDEN_NAMES if key in matrices] or matrices
        if not named or (len(named) > 1 and named[0] not in HIDDEN_NAMES):
            listed = ", ".join(matrices) or "none"
            raise MissingTensorError(f"{path} has the matrices {listed}; expected one called hidden: name it, {path}:TENSOR")
        name = named[0]
    rows = file.read(name)
    if rows.dtype not in HIDDEN:
        raise ShapeError(f"{path}: {name} is {rows.dtype}; expected hidden vectors of a floating-point type")
    return rows
