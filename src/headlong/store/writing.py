"""safetensors files, written beside the old file and renamed: a killed write leaves the old file whole.

Writing streams (no second copy in memory), aligns the data to 64 bytes, and ends with the checksum of all that was written.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import stat
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from headlong.arrays import Array, as_numpy
from headlong.errors import DtypeError, OptionError, StoreError, cause
from headlong.store.checksum import KEY, NONE, PIECE, START, Checksum
from headlong.store.safetensors_dtypes import DTYPES

ALIGNMENT = 64
ABANDONED = 60.0
"""Seconds after which a file beside a target that nobody holds is taken to be what a killed writer left."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_file(
    path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Stream NumPy arrays or CPU tensors into a safetensors file; a killed write leaves the old file whole."""
    arrays = {key: as_numpy(value, key) for key, value in tensors.items()}
    _check_names(arrays, metadata or {})
    # whole multiples of 64 bytes first, then of 32, ...: each tensor starts as aligned as its own size allows
    order = sorted(arrays, key=lambda key: -_alignment(arrays[key].nbytes))
    header: dict[str, Any] = {"__metadata__": {KEY: NONE} | dict(metadata or {})}
    offset = 0
    for key in order:
        stop = offset + arrays[key].nbytes
        header[key] = {"dtype": _name_of(arrays[key], key), "shape": arrays[key].shape, "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    start, sum_of = struct.pack("<Q", len(text)) + text, Checksum()
    with replacing(path) as file:
        file.write(start)
        for key in order:
            for piece in _pieces(arrays[key]):
                file.write(piece.data)
                sum_of.add(piece.data)
        file.seek(8 + len(START))
        file.write(sum_of.text(start).encode())


def _check_names(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    for text in (*arrays, *metadata, *metadata.values()):
        if not isinstance(text, str) or text.encode(errors="replace") != text.encode(errors="surrogatepass"):
            raise OptionError(f"{text!r} is not text that JSON can store; tensor names and metadata have to be strings")
    if KEY in metadata:
        raise OptionError(f"metadata cannot have a key {KEY!r}, which is the file's own checksum; rename it")
    if "__metadata__" in arrays:
        raise OptionError("a tensor cannot be called '__metadata__', which the format keeps for itself; rename it")


def _alignment(size: int) -> int:
    return math.gcd(size, ALIGNMENT)


def _name_of(array: Array, key: str) -> str:
    name = _NAMES.get(array.dtype.newbyteorder("="))
    if name is None:
        raise DtypeError(f"{key} is {array.dtype}, which safetensors has no name for; expected {', '.join(DTYPES)}")
    return name


def _pieces(array: Array) -> Iterator[Array]:
    """The bytes of an array in C order and little-endian, about 16 MB at a time."""
    rows = array if array.ndim else array.reshape(1)
    step = max(1, PIECE * len(rows) // max(1, rows.nbytes))
    for start in range(0, len(rows), step):
        yield np.ascontiguousarray(rows[start : start + step], rows.dtype.newbyteorder("=")).reshape(-1).view(np.uint8)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file written beside ``path`` and put in its place, on disk for sure, when the block ends without a fault.

    It has the old file's permissions; what killed writers left beside it is cleared away.
    """
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        _clear_abandoned(target)
        with open(beside, "xb") as file:
            _hold(file)
            _take_permissions(file, target)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
        _sync_folder(target.parent)
    except OSError as error:
        raise StoreError(f"{os.fspath(path)} cannot be written: {cause(error)}") from error
    finally:
        beside.unlink(missing_ok=True)


def _hold(file: BinaryIO) -> bool:
    """Lock the file for as long as it is open; False where another writer holds it. A killed writer holds nothing."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _take_permissions(file: BinaryIO, target: Path) -> None:
    if os.name == "posix" and target.exists():
        os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))


def _clear_abandoned(target: Path) -> None:
    """Remove the files of killed writers of ``target``: those that have not been written for a while, and nobody holds."""
    for found in target.parent.glob(f".{_literal(target.name)}.{'[0-9a-f]' * 8}.tmp"):
        with suppress(OSError):  # another writer clears away, too, or the file is not ours
            if time.time() - found.stat().st_mtime < ABANDONED:
                continue
            with open(found, "rb") as file:
                free = _hold(file)
            if free:
                found.unlink()


def _literal(name: str) -> str:
    """The name as a pattern that matches nothing else."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _sync_folder(folder: Path) -> None:
    """Only then does the rename survive a power cut; Windows has no such call and needs none."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
