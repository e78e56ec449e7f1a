"""Arrays as NumPy saves them: ``path.npy``, or ``path.npz:name``. Mapped where they can be, and nothing pickled is read."""

from __future__ import annotations

import re
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from headlong.cli import refused_formats
from headlong.errors import DtypeError, HeadlongError, MalformedFileError, MissingTensorError, StoreError, an, cause
from headlong.store import mapped_bytes

FAULTS = (ValueError, TypeError, EOFError, OverflowError, SyntaxError, tokenize.TokenError, RecursionError, MemoryError,
          zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError)  # fmt: skip
"""What NumPy raises over a header that is broken, or whose shape is: the header is a Python literal."""


def is_array(path: str) -> bool:
    """By its content, whatever it is called; a file that cannot be opened by its name."""
    return refused_formats.kind(path) in ("npy", "npz") or path.endswith((".npy", ".npz"))


def read(path: str, name: str | None = None, usual: Sequence[str] = ()) -> Any:
    """The array; of an ``.npz`` the one called ``name``, the only one, or the first of the ``usual`` names that is there."""
    packed = refused_formats.kind(path) == "npz"
    if not packed and name is not None:
        raise MissingTensorError(f"{path}:{name}: an .npy file holds one array, without a name; leave :{name} out")
    try:
        if packed:
            return _numbers(path, _packed(path, name, usual))
        if mapped_bytes(path, ".npy")[: len(refused_formats.NUMPY)] == refused_formats.NUMPY:
            return _numbers(path, np.load(path, mmap_mode="r", allow_pickle=False))
    except HeadlongError:
        raise
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {cause(error)}") from error
    except FAULTS as error:
        what = f"is not {an('.npz' if packed else '.npy')} file of numbers: {error}"
        objects = re.search("Object arrays|Python objects", str(error))
        said = "holds Python objects, which are never read" if objects else what
        raise MalformedFileError(f"{path} {said}; save numbers with numpy.save") from error
    raise MalformedFileError(f"{path} is not an .npy file of numbers; save one with numpy.save")


def _packed(path: str, name: str | None, usual: Sequence[str]) -> Any:
    with np.load(path, allow_pickle=False) as archive:
        there = list(archive.files)
        asked = [name] if name else there if len(there) == 1 else [one for one in usual if one in there][:1]
        if not asked or asked[0] not in there:
            raise MissingTensorError(f"{path} has the arrays {', '.join(there[:8])}; name one: {path}:{there[0]}")
        return archive[asked[0]]


def _numbers(path: str, array: Any) -> Any:
    if array.dtype.kind in "USOV":
        kind = "text" if array.dtype.kind in "US" else "records" if array.dtype.names else "objects"
        found = f"{path} holds {kind} ({array.dtype}), shape {list(array.shape)}"
        raise DtypeError(f"{found}; expected float16, bfloat16, float32 or float64")
    return array


def weight(path: str, name: str | None, usual: Sequence[str]) -> Any:
    """``[classes, dim]`` of an array that was given as a layer; float64, which no layer has, is rounded, and said to be."""
    found = read(path, name, usual)
    if found.dtype == np.float64:
        sys.stderr.write(f"headlong: {path} is float64 and is read as float32: answers are of the rounded numbers\n")
        found = found.astype(np.float32)
    return found
