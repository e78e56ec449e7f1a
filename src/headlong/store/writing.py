"""safetensors files, written beside the old file and renamed: a killed write leaves the old file whole.

Writing streams (no second copy in memory), aligns the data to 64 bytes, and ends with the checksum of all that was written.
"""

from __future__ import annotations

import glob
import json
import math
import os
import secrets
import stat
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from headlong.arrays import Array, as_numpy
from headlong.errors import DtypeError, OptionError, StoreError, cause
from headlong.number_checks import file_name
from headlong.store.checksum import KEY, NONE, PIECE, START, Checksum
from headlong.store.safetensors_dtypes import DTYPES

ALIGNMENT = 64
ABANDONED = 3600.0
"""Seconds without a write after which a file beside a target is taken to be what a killed writer left."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def cache_folder() -> Path:
    """Where the system keeps what can be made again: ``XDG_CACHE_HOME`` or ``~/.cache``, and their likes elsewhere."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "headlong"


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
    """A file that takes the place of ``path``, on disk for sure, when the block ends without a fault.

    Its folder is made where there is none, and it has the old file's permissions. A device, a pipe or a folder is no file that
    could be replaced: it is refused. Until then it has no name, where the system
    has such files, so that a killed writer leaves nothing; elsewhere it lies beside ``path``, until a later writer removes it.
    """
    name = file_name(path)
    if os.path.exists(name) and not os.path.isfile(name):
        raise StoreError(f"{name} cannot be written: it is not a regular file, and would be replaced by one; give another name")
    target = Path(os.path.realpath(name))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear_abandoned(target)
        with _unnamed(target.parent) or open(temporary, "xb") as file:
            _take_permissions(file, target)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if not temporary.exists():  # a handle of any kind makes Python follow the link to the file
                os.link(f"/proc/self/fd/{file.fileno()}", temporary, src_dir_fd=file.fileno())
        os.replace(temporary, target)
        _sync_folder(target.parent)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{name} cannot be written: {cause(error)}") from error
    finally:
        with suppress(OSError):  # its folder may be none
            temporary.unlink(missing_ok=True)


def _unnamed(folder: Path) -> BinaryIO | None:
    """A file of a folder that vanishes with its writer unless it is named; None where the file system has none."""
    if not os.access("/proc/self/fd", os.X_OK):  # where it gets its name from
        return None
    try:
        return os.fdopen(os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o666), "wb")
    except (AttributeError, OSError):  # not Linux; or a file system without them, or a fault that opening by name meets again
        return None


def _take_permissions(file: BinaryIO, target: Path) -> None:
    if os.name == "posix" and target.exists():
        os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))


def _clear_abandoned(target: Path) -> None:
    """Remove the files of killed writers of ``target``: those that nobody has written to for long."""
    for found in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 8}.tmp"):
        with suppress(OSError):  # another writer clears away, too, or the file is not ours
            if time.time() - found.stat().st_mtime > ABANDONED:
                found.unlink()


def _sync_folder(folder: Path) -> None:
    """Only then does the rename survive a power cut; Windows has no such call and needs none."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
