r"""Vectors as PostgreSQL's ``COPY ... TO ... (FORMAT BINARY)`` writes pgvector's types, as ``[n, dim]``.

::

    "PGCOPY\n\377\r\n\0"  flags int32  length of what follows int32, skipped
    for each row           fields int16, then of each: length int32 (-1: null), bytes;      fields -1: the end
    vector                 dim int16, 0 int16, dim float32          halfvec   dim int16, 0 int16, dim float16

Every number has its high byte first.
"""

from __future__ import annotations

import mmap
import struct
from typing import Any

import numpy as np

from headlong.arrays import Array
from headlong.errors import MalformedFileError, MissingTensorError, ShapeError

MAGIC = b"PGCOPY\n\xff\r\n\0"
WITH_OIDS = 1 << 16
FIXED = struct.Struct(">ii")


def vectors(data: bytes | mmap.mmap, field: str | None, name: str) -> Array:
    """``[n, dim]`` of the field ``field`` (its number, from 0), or of the only one that holds vectors."""
    flags, extra = _unpack(FIXED, data, len(MAGIC), name)
    if flags & 0xFFFF0000 or extra < 0:
        raise MalformedFileError(f"{name} has the flags {flags:#x} of COPY; expected none: write it by a PostgreSQL of today")
    starts, sizes, place = _bodies(data, len(MAGIC) + FIXED.size + extra, field, name)
    if not starts:
        return np.empty((0, 0), np.float32)
    size, raw = sizes[0], np.frombuffer(data, np.uint8)
    if (other := np.flatnonzero(np.array(sizes) != size)).size:
        row = int(other[0])
        said = f"row {row:,} of {name} has a vector of {sizes[row]:,} bytes where those before have {size:,}"
        raise ShapeError(f"{said}; expected vectors of one length")
    heads = np.stack([raw[start : start + 4] for start in starts]).view(">u2").reshape(-1, 2)
    dim = int(heads[0, 0])
    if not _is_vector(raw[starts[0] : starts[0] + size].tobytes()) or (heads != heads[0]).any():
        raise MalformedFileError(f"{name}: field {place} holds no pgvector values; expected vector or halfvec")
    kind = np.dtype(np.float32 if size == 4 + 4 * dim else np.float16)
    found = np.empty((len(starts), dim), kind)
    for row, start in enumerate(starts):
        found[row] = np.frombuffer(data, kind.newbyteorder(">"), dim, start + 4)
    found.flags.writeable = False
    return found


def _bodies(data: bytes | mmap.mmap, at: int, field: str | None, name: str) -> tuple[list[int], list[int], int]:
    """Where the vector of each row starts and how long it is, and which field that is."""
    count, length = struct.Struct(">h"), struct.Struct(">i")
    starts: list[int] = []
    sizes: list[int] = []
    place = -1
    while True:
        (fields,) = _unpack(count, data, at, name)
        at += count.size
        if fields == -1:
            if at != len(data):
                raise MalformedFileError(f"{name} goes on after the end of its rows; copy it again")
            return starts, sizes, place
        bodies = []
        for _ in range(max(0, fields)):
            (size,) = _unpack(length, data, at, name)
            at += length.size
            bodies.append((at, size))
            at += max(0, size)
        if at > len(data) or fields < 1:
            raise MalformedFileError(f"{name} is cut off or damaged in row {len(starts):,}; copy it again")
        if place < 0:
            place = _place(data, bodies, field, name)
        if place >= len(bodies) or bodies[place][1] < 0:
            raise ShapeError(f"row {len(starts):,} of {name} has no vector (null); add WHERE ... IS NOT NULL to what is copied")
        starts.append(bodies[place][0])
        sizes.append(bodies[place][1])


def _place(data: bytes | mmap.mmap, bodies: list[tuple[int, int]], field: str | None, name: str) -> int:
    """The number of the field that holds vectors."""
    if field is not None:
        if not field.isdecimal() or int(field) >= len(bodies):
            raise MissingTensorError(f"{name} has {len(bodies):,} fields, numbered from 0; there is no {field!r}")
        return int(field)
    found = [place for place, (start, size) in enumerate(bodies) if size > 0 and _is_vector(bytes(data[start : start + size]))]
    if len(found) != 1:
        raise MissingTensorError(
            f"{name}: {len(found)} of {len(bodies)} fields of its first row look like vectors; copy the vector's column alone, "
            f"or name its number, {name}:0"
        )
    return found[0]


def _is_vector(body: bytes) -> bool:
    if len(body) < 6:
        return False
    dim, unused = struct.unpack(">HH", body[:4])
    return unused == 0 and dim > 0 and len(body) - 4 in (2 * dim, 4 * dim)


def _unpack(form: struct.Struct, data: bytes | mmap.mmap, at: int, name: str) -> tuple[Any, ...]:
    if at + form.size > len(data):
        raise MalformedFileError(f"{name} is cut off; copy it again")
    return form.unpack(data[at : at + form.size])
