"""The header of a GGUF file, versions 2 and 3, little-endian, without the ``gguf`` package.

::

    "GGUF" | version u32 | tensors u64 | facts u64 | facts | tensors | padding | data
    fact    key, type u32, value                     text: length u64, UTF-8 bytes
    tensor  name, axes u32, sizes u64 (the shortest stride first), type u32, offset into the data u64

Nothing is believed: every count, length, offset and type is compared with the file's size before anything of that size is
made, so that a damaged file takes neither time nor memory. Lists stay in the file until somebody asks for them.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from headlong.arrays import Array
from headlong.errors import MalformedFileError, VersionError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of facts and how ``struct`` spells them; 8 is text, 9 a list."""
TEXT, LIST = 8, 9
MOST_ENTRIES = 1 << 20
"""Facts, and tensors: a hundred times what the largest models have."""
MOST_AXES = 4

KINDS: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
    26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
"""ggml's types: name, weights in a block, bytes of a block."""


class GgufTensor(NamedTuple):
    """``shape`` as NumPy has it, rows first; the bytes ``start..stop`` of the file are ``shape[-1] / block`` blocks a row."""

    name: str
    kind: str
    type: int
    shape: tuple[int, ...]
    start: int
    stop: int


class _List(NamedTuple):
    type: int
    length: int
    start: int


class GgufHeader:
    """``header.tensors`` by name, ``header.value(key)`` of a fact (None: absent), ``header.keys``, ``header.rows(tensor)``."""

    def __init__(self, data: bytes | mmap.mmap, name: str) -> None:
        self._data, self._name, self._at = data, name, 0
        if data[:4] != MAGIC:
            raise MalformedFileError(f"{name} does not start as GGUF files do; expected the bytes {MAGIC!r}")
        self._at = 4
        self.version = self._scalar("I")
        if self.version & 0xFFFF == 0:
            raise MalformedFileError(f"{name} is a GGUF file of a big-endian machine, which is not read; convert it again")
        if self.version not in VERSIONS:
            raise VersionError(f"{name} has GGUF version {self.version}; {VERSIONS[0]} and {VERSIONS[1]} are read")
        tensors, facts = self._scalar("Q"), self._scalar("Q")
        self._spans: dict[str, tuple[int, int]] = {}
        self._facts = dict(self._read_facts(self._count(facts, 13, "facts")))
        self.tensors = self._read_tensors(self._count(tensors, 24, "tensors"))

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._facts)

    def value(self, key: str) -> Any:
        """A number, a text, or a list of them; None where the file does not have it."""
        found = self._facts.get(key)
        if not isinstance(found, _List):
            return found
        self._at = found.start
        return [self._value(found.type) for _ in range(found.length)]

    @property
    def data(self) -> bytes | mmap.mmap:
        """The whole file."""
        return self._data

    def raw(self, key: str) -> bytes:
        """A fact as it is stored: key, type and value."""
        start, stop = self._spans[key]
        return self._data[start:stop]

    def rows(self, tensor: GgufTensor) -> Array:
        """The stored bytes, ``[..., bytes of a row] uint8``, mapped and read-only."""
        flat = np.frombuffer(self._data, np.uint8, tensor.stop - tensor.start, tensor.start)
        return flat.reshape(*tensor.shape[:-1], len(flat) // math.prod(tensor.shape[:-1]))

    def _read_facts(self, count: int) -> Iterator[tuple[str, Any]]:
        known: set[str] = set()
        for _ in range(count):
            start, key = self._at, self._text()
            if key in known:
                raise self._broken(f"has {key!r} twice")
            known.add(key)
            kind = self._scalar("I")
            yield key, self._skipped_list(key) if kind == LIST else self._value(kind)
            self._spans[key] = start, self._at

    def _skipped_list(self, key: str) -> _List:
        kind, count = self._scalar("I"), self._scalar("Q")
        size = 8 if kind == TEXT else struct.calcsize(self._code(kind))
        if count > (len(self._data) - self._at) // size:
            raise self._broken(f"says that {key!r} has {count:,} entries, more than fit into the file")
        found = _List(kind, count, self._at)
        if kind != TEXT:
            self._pass(size * count)
        else:
            self._pass_texts(count)
        return found

    def _pass_texts(self, count: int) -> None:
        """Hundreds of thousands of tokens, one after another: nothing but their lengths is looked at."""
        at, end, length = self._at, len(self._data) - 8, struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at > end:
                self._at = at
                self._pass(8)
            at += 8 + length(self._data, at)[0]
        self._at = at
        self._pass(0)

    def _read_tensors(self, count: int) -> dict[str, GgufTensor]:
        found = [(self._text(), self._sizes(), self._scalar("I"), self._scalar("Q")) for _ in range(count)]
        step = self._facts.get("general.alignment", 32)
        if type(step) is not int or step < 1 or step & (step - 1):
            raise self._broken(f"has a general.alignment of {step!r}; expected a power of two")
        origin = -(-self._at // step) * step
        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in found:
            if name in tensors:
                raise self._broken(f"has the tensor {name!r} twice")
            tensors[name] = self._tensor(name, shape, kind, offset, origin, step)
        last = origin
        for at in sorted(tensors.values(), key=lambda at: (at.start, at.stop)):
            if at.start < last:
                raise self._broken(f"puts {at.name!r} over the bytes of another tensor")
            last = at.stop
        return tensors

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int, origin: int, step: int) -> GgufTensor:
        if kind not in KINDS:
            raise self._broken(f"stores {name!r} as type {kind}, which ggml has not or not any more")
        spelled, block, size = KINDS[kind]
        if shape[-1] % block:
            raise self._broken(f"has rows of {shape[-1]} weights in {name!r}; {spelled} has blocks of {block}")
        start = origin + offset
        stop = start + math.prod(shape) // block * size
        if offset % step or stop > len(self._data):
            raise self._broken(f"puts {name!r} at the bytes {start:,} to {stop:,} of {len(self._data):,}")
        return GgufTensor(name, spelled, kind, shape, start, stop)

    def _sizes(self) -> tuple[int, ...]:
        axes = self._scalar("I")
        if not 1 <= axes <= MOST_AXES:
            raise self._broken(f"has a tensor of {axes} axes; expected 1 to {MOST_AXES}")
        shape = tuple(self._scalar("Q") for _ in range(axes))[::-1]
        if 0 in shape:
            raise self._broken(f"has a tensor of shape {list(shape)}, without a weight")
        return shape

    def _value(self, kind: int) -> Any:
        return self._text() if kind == TEXT else self._scalar(self._code(kind))

    def _code(self, kind: int) -> str:
        if kind not in SCALARS:
            raise self._broken(f"has a fact of type {kind}, which is none")
        return SCALARS[kind]

    def _scalar(self, code: str) -> Any:
        return struct.unpack(f"<{code}", self._take(struct.calcsize(code)))[0]

    def _text(self) -> str:
        text = self._take(self._scalar("Q"))
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise self._broken(f"has a text that is not UTF-8: {error}") from error

    def _take(self, count: int) -> bytes:
        start = self._at
        self._pass(count)
        return self._data[start : self._at]

    def _pass(self, count: int) -> None:
        self._at += count
        if self._at > len(self._data):
            raise self._broken(f"is cut off or damaged: its header needs byte {self._at:,}, it has {len(self._data):,}")

    def _count(self, count: int, size: int, what: str) -> int:
        if count > min(MOST_ENTRIES, (len(self._data) - self._at) // size):
            raise self._broken(f"says that it has {count:,} {what}, more than fit into its {len(self._data):,} bytes")
        return count

    def _broken(self, what: str) -> MalformedFileError:
        return MalformedFileError(f"{self._name} {what}; copy it again from where it came")
