"""Files as the command line names them: ``path[:tensor[:bias]]`` for a layer, ``path[:tensor]`` for hidden vectors.

A layer comes from a safetensors file, a sharded index, a checkpoint's folder, or a table of vectors (Parquet, Arrow, Lance,
PostgreSQL's binary COPY); hidden vectors from a safetensors file, such a table, or an ``.npy``. Its metadata says whether a
file holds an engine or a layer. What can be is mapped, and nothing pickled is read.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from headlong.cli import arrays, refused_formats
from headlong.dtypes import HIDDEN
from headlong.engines.base import Engine
from headlong.engines.changed import Changed
from headlong.engines.saved import engine as saved
from headlong.engines.structured import saved as saved_structured
from headlong.engines.structured.base import StructuredEngine
from headlong.errors import DtypeError, MalformedFileError, MissingTensorError, OptionError, ShapeError, StoreError, cause
from headlong.layers import matrix, structured
from headlong.layers.matrix import Layer
from headlong.layers.structured import StructuredLayer
from headlong.loading import load
from headlong.number_checks import file_name
from headlong.store import is_tensor_file, mapped_bytes, open_file
from headlong.tables import files

PLAIN = "weight"
"""The tensor of a file that holds one layer and no model; looked for after the names that models use."""
ENGINES = (saved.FORMAT, saved_structured.FORMAT)
ITEM_NAMES = ("weight", "items")
HIDDEN_NAMES = ("hidden", "valid_hidden", "hidden_states", "queries")


def labels(path: Path, vocab: int) -> list[str]:
    """A label for each class: the lines of a text file."""
    try:
        found = Path(file_name(path)).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {cause(error)}") from error
    except UnicodeDecodeError as error:
        raise MalformedFileError(f"{path} is not text in UTF-8; expected a label in each line") from error
    if len(found) != vocab:
        raise ShapeError(f"{path} has {len(found):,} lines; expected a label for each of {vocab:,} classes")
    return found


def results(paths: list[Path]) -> list[tuple[str, Any]]:
    """``(name, content)`` of every .json file (an object) and .jsonl file (a list of objects); folders are opened."""
    for path in paths:
        file_name(path)
    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    found = []
    for file in files:
        if file.suffix not in (".json", ".jsonl"):
            if file in paths:
                raise MalformedFileError(f"{file} is not a .json or .jsonl file; expected results, or a folder of them")
            continue
        try:
            text = mapped_bytes(file, "JSON")[:].decode()
            lines = [json.loads(line) for line in text.splitlines() if line.strip()] if file.suffix == ".jsonl" else None
            found.append((file.name, json.loads(text) if lines is None else lines))
        except StoreError:
            raise
        except ValueError as error:
            raise MalformedFileError(f"{file} is not JSON: {error}") from error
    if not found:
        raise MalformedFileError("no .json or .jsonl file was given; expected what bench, demo or inspect wrote with -o")
    return found


def verified(text: str, threads: int) -> str:
    """Every byte of a file that this library wrote against the file's checksum."""
    path = split(text, 2)[0]
    open_file(path).verify(threads)
    return f"{path}: every byte is as it was written"


def split(text: str, names: int) -> list[str]:
    """``"path:a:b" -> ["path", "a", "b"]``, at most ``names`` names; colons that are part of the path stay."""
    file_name(text)
    for count in range(names + 1):
        parts = text.rsplit(":", count)
        if len(parts) == count + 1 and Path(parts[0]).exists():
            return parts
    return [text]


def layer(text: str, weight: str | None = None, bias: str | None = None) -> Layer:
    """The layer that ``path[:tensor[:bias]]`` names; the options win over the names. An empty bias takes none."""
    path, *names = split(text, 2)
    if files.kind(path):
        if bias or len(names) > 1:
            raise OptionError(f"{path} is a table of vectors, which have no bias; leave {bias or names[1]!r} out")
        return Layer.from_arrow(path, weight or (names[0] if names else None))
    if arrays.is_array(path):
        if bias or len(names) > 1:
            raise OptionError(f"{path} is an array, which has no bias; leave {bias or names[1]!r} out, or save a layer")
        return Layer(arrays.weight(path, weight or (names[0] if names else None), ITEM_NAMES), name=path)
    if form(path) in ENGINES:
        raise OptionError(f"{path} is a compiled engine; expected a layer: use topk to query it, or name its layer")
    if form(path) == structured.FORMAT:
        raise OptionError(
            f"{path} holds {structured.load_layer(path)!r}; expected a layer of one matrix: compile and topk read all kinds"
        )
    weight = weight or (names[0] if names else None)
    bias = bias if bias is not None else (names[1] if len(names) > 1 else None)
    kept: str | Literal[False] | None = False if bias == "" else bias
    if said := refused_formats.as_layer(path):
        raise MalformedFileError(said)
    if weight:
        return Layer.load(path, weight=weight, bias=kept)
    try:
        return Layer.load(path, bias=kept)
    except MissingTensorError:
        if Path(path).is_file() and path.endswith(".safetensors") and PLAIN in open_file(path).tensors:
            return Layer.load(path, weight=PLAIN, bias=kept)
        raise


def any_layer(text: str, weight: str | None = None, bias: str | None = None) -> Layer | StructuredLayer:
    """As :func:`layer`, or the structured layer that was saved there, which needs no names of tensors."""
    path, *names = split(text, 2)
    if form(path) != structured.FORMAT:
        return layer(text, weight, bias)
    if weight or bias or names:
        named = weight or bias or names[0]
        raise OptionError(f"{path} holds a structured layer, whose tensors have fixed names: leave {named} out")
    return structured.load_layer(path)


def form(path: str | Path) -> str:
    """What the metadata of a safetensors file says it holds, whatever the file is called; empty for other files."""
    return open_file(path).metadata.get("format", "") if is_tensor_file(path) else ""


def engine(text: str, threads: int | None, given: Mapping[str, bool]) -> Engine | StructuredEngine | Changed | None:
    """The engine that was saved there, or None where the file holds none; ``given`` options that engines do not take."""
    if form(text) not in ENGINES:
        return None
    if useless := [name for name, there in given.items() if there]:
        raise OptionError(f"{text} is a compiled engine and does not take {', '.join(useless)}: leave that out")
    found: Engine | StructuredEngine | Changed = load(text, threads=threads)
    return found


JSON, PAGE, TENSORS = (".json", ".jsonl"), (".html", ".htm"), (".safetensors",)
"""How the names of files end that commands write; a name without an ending is taken, too."""


def target(path: Path, ends: tuple[str, ...], *read: str | None, replaced: tuple[str, ...] = ()) -> Path:
    """``path``, which a command will write: it ends as what is written there does, its folder is there, and no file of the
    user's is in its place.

    ``read``  what the command reads, which it must not replace; tensors are replaced only where they are ``replaced`` forms
    """
    if path.suffix and path.suffix not in ends:
        raise OptionError(f"{path} ends in {path.suffix}; expected a name that ends in {' or '.join(ends)}, or has no ending")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder, open_to_us = path.is_dir(), os.access(path.parent, os.W_OK)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {cause(error)}") from error
    if folder:
        raise StoreError(f"{path} is a folder; expected the name of a file to write")
    if not open_to_us:
        raise StoreError(f"{path} cannot be written: no permission to write to its folder; name another one")
    sources = [Path(split(text, 2)[0]) for text in read if text]
    if path.exists() and any(source.exists() and path.samefile(source) for source in sources):
        raise StoreError(f"{path} is a file that the command reads; name another one to write")
    if path.exists() and (replaced or is_tensor_file(path)) and form(path) not in replaced:
        raise StoreError(f"{path} exists and was not written by this command; name another file, or move it away")
    return path


def hidden(text: str, dim: int | None = None, vocab: int | None = None) -> Any:
    """``[n, dim]`` hidden vectors from ``path.npy``, ``path.npz[:array]`` or ``path.safetensors[:tensor]``, of a type we read.

    ``vocab``: the layer's classes, so that a weight the wrong way round is suspected by name.
    """
    path, *names = split(text, 1)
    if said := refused_formats.as_hidden(path):
        raise MalformedFileError(said)
    name = names[0] if names else None
    if arrays.is_array(path):
        rows = arrays.read(path, name, HIDDEN_NAMES)
    else:
        rows = files.whole(path, name) if files.kind(path) else _tensor(path, name)
    if rows.ndim == 1 and rows.size == (dim or rows.size):
        sys.stderr.write(f"headlong: {text} has shape [{rows.size}]: one vector\n")
        rows = rows[None, :]
    if rows.ndim != 2 or rows.shape[1] != (dim or rows.shape[1]):
        wanted = f"{text} has shape {list(rows.shape)}; expected hidden vectors [n, {dim or 'dim'}]"
        raise ShapeError(f"{wanted}{_transposed(rows, dim, vocab)}")
    if rows.dtype.newbyteorder("=") not in HIDDEN:
        raise DtypeError(f"{text} is {rows.dtype}; expected float16, bfloat16, float32 or float64: convert it first")
    return rows


def _transposed(rows: Any, dim: int | None, vocab: int | None) -> str:
    """What is probably the wrong way round, and how to turn it."""
    if rows.ndim == 2 and vocab is not None and rows.shape[1] == vocab != dim:
        shapes = f"[{vocab}, {dim}] looks transposed: it is read as [classes, dimensions]"
        return f": the layer's weight {shapes}; save weight.T, headlong.Layer(weight.T).save(...)"
    return ": save its transpose" if rows.ndim == 2 and rows.shape[0] == dim else ""


def _tensor(path: str, name: str | None) -> Any:
    file = open_file(path)
    if name is None and (kind := file.metadata.get("format")) in (matrix.FORMAT, structured.FORMAT, *ENGINES):
        kind = str(kind).removeprefix("headlong ")
        raise MalformedFileError(f"{path} holds a layer or an engine ({kind}); expected hidden vectors, a row for each query")
    if name is None:
        matrices = [key for key, info in file.tensors.items() if len(info.shape) == 2]
        named = [key for key in HIDDEN_NAMES if key in matrices] or matrices
        if not named or (len(named) > 1 and named[0] not in HIDDEN_NAMES):
            listed = ", ".join(matrices) or "none"
            raise MissingTensorError(f"{path} has the matrices {listed}; expected one called hidden: name it, {path}:TENSOR")
        name = named[0]
    return file.read(name)
