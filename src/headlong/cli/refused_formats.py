"""Files that are something else than was asked for: known by their content, and how to turn them into what is read.

A layer is a safetensors file (an index, a checkpoint's folder); hidden vectors are a tensor of one. Either may be an array in
``.npy`` or ``.npz`` (:mod:`headlong.cli.arrays`). Nothing here is read beyond its first bytes, and no pickle at all.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

NUMPY, ZIP, PICKLE = b"\x93NUMPY", b"PK\x03\x04", b"\x80"
TABLES = (".csv", ".tsv", ".txt")


def kind(path: str) -> str:
    """``npy``, ``npz``, ``torch``, ``pickle``, ``csv``; empty for what is none of them or cannot be opened."""
    from headlong.store import is_tensor_file

    if not Path(path).is_file():
        return ""  # a pipe might never end
    try:
        with open(path, "rb") as file:
            start = file.read(4096)
    except OSError:
        return ""
    if start.startswith(NUMPY):
        return "npy"
    if start.startswith(ZIP):
        names = _names(path)
        return "npz" if names and all(name.endswith(".npy") for name in names) else "torch" if names else ""
    if start.startswith(PICKLE) and not is_tensor_file(path):  # a header of 128 bytes modulo 256 starts like a pickle
        return "pickle"
    return "csv" if _is_table(path, start) else ""


def _names(path: str) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError):
        return []


def _is_table(path: str, start: bytes) -> bool:
    """Text whose first or second line holds numbers with separators; a first line may name the columns."""
    if Path(path).suffix.lower() not in TABLES:
        return False
    try:
        lines = start.decode("utf-8", errors="strict").splitlines()[:2]
    except UnicodeDecodeError:
        return False
    return any(line and all(_number(part) for part in line.replace(",", " ").replace(";", " ").split()) for line in lines)


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def as_hidden(path: str) -> str:
    """What a file is that was given as hidden vectors, and how to save them; empty where nothing is known of it."""
    found = kind(path)
    if found == "csv":
        return f"{path} is a table of text; save its numbers: numpy.save('hidden.npy', numpy.loadtxt({path!r}, delimiter=','))"
    if found in ("torch", "pickle"):
        return f"{path} is a pickle, which is never read; load it with what wrote it, then numpy.save('hidden.npy', array)"
    return ""


def as_layer(path: str) -> str:
    """The same for a file that was given as a layer."""
    found, save = kind(path), "save('layer.safetensors')"
    if found == "csv":
        return f"{path} is a table of text; a layer is a safetensors file: headlong.Layer(weight, bias).{save}"
    if found in ("torch", "pickle"):
        return f"{path} is a pickle, which is never read; load it with torch, then headlong.Layer(weight, bias).save(...)"
    return ""
