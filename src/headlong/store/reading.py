"""safetensors files, read by mapping: ``length (8 bytes) | JSON header | data``.

Reading trusts nothing: every malformed input is one StoreError, and whatever is accepted here is accepted by the safetensors
library. Tensors come back as read-only views of the file's bytes, bfloat16 included; they are copied only where a foreign
writer left them misaligned for their type. No pickle is ever read.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import stat
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from headlong.arrays import Array, memory
from headlong.errors import (
    DtypeError,
    MalformedFileError,
    MissingFileError,
    MissingTensorError,
    StoreError,
    VersionError,
    an,
    cause,
)
from headlong.number_checks import file_name
from headlong.store.checksum import KEY, checksum
from headlong.store.safetensors_dtypes import DTYPES, FOREIGN_BITS

PLAIN = (None, "pt", "np")
"""What files say their format is that torch and NumPy wrote."""
HEADER_LIMIT = 100_000_000
INT64_MAX = 2**63 - 1
MOST_AXES = 64


class TensorInfo(NamedTuple):
    """Where one tensor lies: its type as the format spells it, its shape, and its bytes within the data."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class TensorFile:
    """``file.tensors`` says what is there, ``file.read(name)`` gives a read-only array over the mapped bytes."""

    def __init__(self, data: bytes | mmap.mmap, name: str) -> None:
        self.name = name
        header, self._origin = _header(data, name)
        self.metadata = dict(_metadata(header.pop("__metadata__", None), name))
        self.checksum = self.metadata.pop(KEY, None)
        """What the bytes add up to, as the file says; None in files of others."""
        self.tensors = {key: _tensor_info(entry, f"{name}: tensor {key!r}") for key, entry in header.items()}
        _check_cover(self.tensors, len(data) - self._origin, name)
        self._data = data

    def verify(self, threads: int = 2) -> None:
        """Read the whole file and compare it with its checksum; MalformedFileError where a byte is not what was written."""
        if self.checksum is None:
            raise StoreError(f"{self.name} carries no checksum, so damage cannot be detected; save it again")
        data = memoryview(self._data)
        came = checksum(data[: self._origin], data[self._origin :], threads)
        if came != self.checksum:
            raise MalformedFileError(
                f"{self.name} is damaged: its bytes have the checksum {came}, it records {self.checksum!r}; "
                "copy it again from where it came, or save it again"
            )

    def check_call(self, about: Mapping[str, str]) -> None:
        """StoreError where the file, in which a run keeps what it found, is of a call with other facts than ``about``."""
        told = self.metadata.get
        other = [f"{name} {told(name)}, not {new}" for name, new in about.items() if told(name) != new]
        if other:
            raise StoreError(f"{self.name} is of another call ({', '.join(other)}); remove it, or name another place to write")

    def read(self, name: str) -> Array:
        """The tensor, mapped and read-only."""
        if name not in self.tensors:
            raise MissingTensorError(f"{self.name} has no tensor {name!r}; it has {_some(self.tensors)}")
        info = self.tensors[name]
        if info.dtype not in DTYPES:
            raise DtypeError(f"{self.name}: tensor {name!r} is {info.dtype}, which is not read; convert it first")
        dtype = DTYPES[info.dtype]
        if info.start == info.stop:
            return np.frombuffer(b"", dtype).reshape(info.shape)
        count = (info.stop - info.start) // dtype.itemsize
        flat = np.frombuffer(self._data, np.uint8 if info.dtype == "BOOL" else dtype, count, self._origin + info.start)
        if info.dtype == "BOOL":
            if flat.max() > 1:
                raise MalformedFileError(f"{self.name}: tensor {name!r} is BOOL but holds bytes other than 0 and 1")
            flat = flat.view(bool)
        if not flat.flags.aligned:
            flat = flat.copy()
        flat.flags.writeable = False
        return flat.reshape(info.shape)


def open_file(path: str | os.PathLike[str], mapped: bool = True) -> TensorFile:
    """Map a safetensors file: nothing but its header is read. ``mapped=False`` reads it all into memory of its own.

    A mapped file that somebody cuts off meanwhile ends the process with SIGBUS at the first byte that is gone, as every
    program that maps files does. Files are replaced as a whole here, never written in place; where others write them, read
    them with ``mapped=False``.
    """
    name = file_name(path)
    return TensorFile(mapped_bytes(name, "safetensors", mapped), name)


def mapped_bytes(path: str | os.PathLike[str], expected: str, mapped: bool = True) -> mmap.mmap:
    """The bytes of a regular file that is not empty; ``expected`` is what kind of file a message says it should have been."""
    name = file_name(path)
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):  # a pipe may never end
            raise StoreError(f"{name} is not a regular file; expected {an(expected)} file")
        with open(name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise MalformedFileError(f"{name} is empty; expected {an(expected)} file")
            if mapped:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            data = memory(size)  # on a page's border, as a mapped file is
            if file.readinto(data) != size:
                raise MalformedFileError(f"{name} was cut off while it was read; read it again")
            return data
    except StoreError:
        raise
    except OSError as error:
        kind = MissingFileError if isinstance(error, FileNotFoundError) else StoreError
        raise kind(f"{name} cannot be read: {cause(error)}") from error


def is_tensor_file(path: str | os.PathLike[str]) -> bool:
    """Whether a regular file starts as safetensors files do, whatever its name."""
    name = file_name(path)
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):
            return False
        with open(name, "rb") as file:
            start = file.read(9)
    except OSError:
        return False
    return len(start) == 9 and start[8:] == b"{" and struct.unpack("<Q", start[:8])[0] <= HEADER_LIMIT


def _some(names: Mapping[str, Any], most: int = 12) -> str:
    shown = ", ".join(repr(name) for name in list(names)[:most]) or "none"
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def _header(data: bytes | mmap.mmap, name: str) -> tuple[dict[str, Any], int]:
    size = len(data)
    if size < 8:
        raise MalformedFileError(f"{name} has {size:,} bytes; a safetensors file starts with 8 bytes of header length")
    (length,) = struct.unpack("<Q", data[:8])
    if length > HEADER_LIMIT:
        raise MalformedFileError(
            f"{name} is no safetensors file: its first bytes ask for a header of {length} bytes; at most {HEADER_LIMIT} "
            "are allowed"
        )
    if 8 + length > size:
        raise MalformedFileError(f"{name} is cut off: its header ends at byte {8 + length:,}, the file at {size:,}")
    if data[8:9] != b"{":
        raise MalformedFileError(f"{name} is not a safetensors file: its header does not start with '{{'")
    return json_object(data[8 : 8 + length], f"{name}: the header", _unsigned), 8 + length


def _unsigned(digits: str) -> int:
    if digits[0] == "-":  # -0 would pass for a size, but not in the safetensors library
        raise ValueError(f"the negative number {digits[:20]}")
    return int(digits)


def json_object(text: bytes, what: str, parse_int: Callable[[str], int] = int) -> dict[str, Any]:
    """The JSON object that ``text`` spells, without duplicate keys; MalformedFileError where it is not one."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise MalformedFileError(f"{what} names a key twice: {_some(found)}")
        return found

    try:
        value = json.loads(text.decode(), object_pairs_hook=unique, parse_int=parse_int)
        if b"\\u" in text:  # JSON can spell half a surrogate pair, which is no text: neither printed nor saved
            json.dumps(value, ensure_ascii=False).encode()
    except MalformedFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise MalformedFileError(f"{what} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise MalformedFileError(f"{what} is a JSON {type(value).__name__}; expected an object")
    return value


def _metadata(value: Any, name: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise MalformedFileError(f"{name}: __metadata__ has to map text to text")
    return value


def _tensor_info(entry: Any, what: str) -> TensorInfo:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise MalformedFileError(f"{what} has to have dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or (dtype not in DTYPES and dtype not in FOREIGN_BITS):
        raise MalformedFileError(f"{what} has the unknown dtype {dtype!r}; known are {', '.join(DTYPES)}")
    if not _naturals(shape) or len(shape) > MOST_AXES:
        raise MalformedFileError(f"{what} has the shape {str(shape)[:80]}; expected at most {MOST_AXES} sizes >= 0")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise MalformedFileError(f"{what} has data_offsets {str(offsets)[:80]}; expected [start, stop], start <= stop")
    bits = FOREIGN_BITS.get(dtype) or DTYPES[dtype].itemsize * 8
    # NumPy, too, refuses what would overflow if the empty axes were not there
    if math.prod(size for size in shape if size) * bits > INT64_MAX:
        raise MalformedFileError(f"{what} has the shape {shape}: more bytes than 64 bits can count")
    if math.prod(shape) * bits != (offsets[1] - offsets[0]) * 8:
        raise MalformedFileError(f"{what} has {offsets[1] - offsets[0]} bytes; shape {shape} of {dtype} takes another number")
    return TensorInfo(dtype, tuple(shape), *offsets)


def _naturals(value: Any) -> bool:
    """A JSON list of integers in 0..2^63-1; ``type`` because True is an int."""
    return isinstance(value, list) and all(type(number) is int and 0 <= number <= INT64_MAX for number in value)


def _check_cover(tensors: Mapping[str, TensorInfo], size: int, name: str) -> None:
    """The tensors have to lie side by side and fill the data: no holes, no overlaps, nothing cut off."""
    end = 0
    for key, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if info.start != end:
            trouble = "overlaps the tensor before it" if info.start < end else "leaves a hole before it"
            raise MalformedFileError(f"{name}: tensor {key!r} starts at byte {info.start:,}, not {end:,}: it {trouble}")
        end = info.stop
    if end != size:
        trouble = "is cut off" if end > size else "has bytes that belong to no tensor"
        raise MalformedFileError(f"{name} {trouble}: its tensors take {end:,} bytes, it holds {size:,}")


def check_version(metadata: Mapping[str, str], form: str, newest: int, name: str) -> int:
    """The version of a file whose metadata says ``format: form``; VersionError where it is newer than ``newest``."""
    if metadata.get("format") != form:
        said = f"{name} is no {form} file: its metadata says format {metadata.get('format')!r}"
        if metadata.get("format") in PLAIN:
            said += "; it is a plain checkpoint, whose output layer headlong.Layer.load(path) reads, to be compiled"
        raise MalformedFileError(said)
    text = metadata.get("version", "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) > 0):
        raise MalformedFileError(f"{name}: its metadata says version {text!r}; expected a whole number from 1")
    if int(text) > newest:
        raise VersionError(f"{name} has version {text} of the {form} format; this headlong reads up to {newest}: upgrade")
    return int(text)
